"""`pyagent mcp`, `config show` and `doctor` with MCP servers in the settings, as a user runs them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from support.command_line import COMMAND, fresh_environment

SUPPORT = Path(__file__).parent.parent / "support"
SETTINGS = f"""
[mcp_servers.raw]
command = "{sys.executable}"
args = ["-S", "-E", "{SUPPORT / "raw_mcp_server.py"}", "plain", "--key=sk-abcdefghijkl"]
env = {{ KEY = "hush-hush", OTHER = "env:HOME" }}
startup_seconds = 60

[mcp_servers.gone]
command = "./nonesuch"
"""


def ran(folder: Path, *words: str, settings: str = SETTINGS) -> subprocess.CompletedProcess[str]:
    (folder / "pyagent.toml").write_text(settings)
    environment = fresh_environment(folder)
    return subprocess.run(
        [*COMMAND, *words], cwd=folder, env=environment, capture_output=True, text=True, timeout=60, check=False
    )


def test_list_shows_each_server_and_its_tools(tmp_path: Path) -> None:
    """A server that answers is shown with its tools, one that does not with the reason, and the exit code is 1."""
    shown = ran(tmp_path, "mcp", "list")
    assert shown.returncode == 1, shown.stderr
    assert "raw  protocol 2025-06-18, 1 tools" in shown.stdout
    assert "raw__echo  asks  Give back a text." in shown.stdout
    assert f"gone  its command '{tmp_path}/nonesuch' is not found" in shown.stdout
    listed = json.loads(ran(tmp_path, "mcp", "list", "--json").stdout)
    assert [server["name"] for server in listed] == ["raw", "gone"]


def test_settings_are_shown_without_secrets(tmp_path: Path) -> None:
    """`config show` has the servers, and of their variables only where they are read."""
    shown = ran(tmp_path, "config", "show", "mcp_servers", "--json").stdout
    table = json.loads(shown)["mcp_servers"]["value"]["raw"]
    assert table["env"] == {"KEY": "[redacted]", "OTHER": "env:HOME"}
    assert "hush" not in shown
    assert "sk-abc" not in shown


def test_misspelt_key_is_named_with_the_nearest(tmp_path: Path) -> None:
    """A key that there is not is refused in a line, with the server's name and no value."""
    wrong = ran(tmp_path, "mcp", "list", settings='[mcp_servers.x]\ncomand = "hush-hush"\n')
    assert wrong.returncode == 1
    assert "expected 'command' in the MCP server x, got 'comand'" in wrong.stderr
    assert "hush" not in wrong.stderr


def test_start_imports_no_mcp(tmp_path: Path) -> None:
    """The package is imported when a server is opened, and by nothing before."""
    (tmp_path / "pyagent.toml").write_text(SETTINGS)
    program = "import pyagent, sys; pyagent.Fleet(agents=[]); print([name for name in sys.modules if name == 'mcp'])"
    environment = fresh_environment(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
