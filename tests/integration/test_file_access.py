"""Which files of the server an agent reads for somebody who reaches it over HTTP."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import httpx
import pytest

from pyagent.core.errors import RequestError
from pyagent.core.fleet.agent import Agent
from pyagent.core.fleet.file_access import FileAccess, find_path, grant, readable_path
from pyagent.core.fleet.orchestrator import Fleet
from pyagent.infrastructure.server.agents import AgentBackend
from pyagent.infrastructure.server.app import create_app
from pyagent.logic.agents.code_health import CodeHealthAgent
from pyagent.testing import ScriptedBackend, serve

CODE = "def {name}(x):\n    return 1 if x else 2\n"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A folder to be served, and beside it what nobody outside should learn of."""
    root = tmp_path / "root"
    (root / "widgets").mkdir(parents=True)
    (root / "widgets" / "cog.py").write_text(CODE.format(name="turn"), encoding="utf-8")
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "payroll.py").write_text(CODE.format(name="raise_salaries"), encoding="utf-8")
    (root / "link").symlink_to(outside)
    (root / "widgets" / "link.py").symlink_to(outside / "payroll.py")
    (root / "round").symlink_to(root / "round")
    return root


def said(asked: Sequence[str], root: Path | None) -> list[httpx.Response]:
    """What `agent:code-health` answers to each of the texts."""
    agents: list[Agent] = [CodeHealthAgent()]
    backend = AgentBackend(lambda: Fleet(ScriptedBackend([]), agents), root)
    with serve(create_app(ScriptedBackend([]), agents=backend)) as url, httpx.Client(base_url=url, timeout=60) as http:
        bodies = [{"model": "agent:code-health", "messages": [{"role": "user", "content": text}]} for text in asked]
        return [http.post("/v1/chat/completions", json=body) for body in bodies]


def test_an_agent_reads_below_the_servers_root_only(tree: Path) -> None:
    """A path below the root is read, and told as it stands there; all others fail as one that is not there does."""
    whole, part = said([".", "widgets/cog.py"], tree)
    for answer in (whole, part):
        text = answer.json()["choices"][0]["message"]["content"]
        assert "widgets/cog.py" in text
        assert "raise_salaries" not in text
        assert str(tree) not in answer.text
    outside = str(tree.parent / "outside")
    names = [
        f"{outside}/payroll.py",
        "../outside/payroll.py",
        "link/payroll.py",
        "widgets/link.py",
        "/etc/passwd",
        "round/x",
    ]
    names += ["widgets/../../outside/payroll.py", "~/x.py", "/nothing/at/all.py", "x" * 5000 + "/y", "a\0/b.py"]
    for name, answer in zip(names, said(names, tree), strict=True):
        assert answer.status_code == 400, name
        assert answer.json()["error"]["message"].startswith("there is no file or folder "), name


def test_an_agent_reads_nothing_where_the_server_has_no_root(tree: Path) -> None:
    """Without a root, paths that are there and those that are not get the same answer."""
    names = [
        str(tree),
        f"{tree}/widgets/cog.py",
        f"{tree}/widgets/none.py",
        ".",
        "src/pyagent",
        "how healthy is the code?",
    ]
    answers = said(names, None)
    assert {answer.status_code for answer in answers} == {400}
    told = {
        answer.json()["error"]["message"].replace(repr(name), "it") for name, answer in zip(names, answers, strict=True)
    }
    assert told <= {
        "there is no file or folder it",
        "agents of this run read no files; server.files_root names a folder for clients",
    }


def test_plugins_agents_are_held_to_the_same_root(tree: Path) -> None:
    """What `readable_path` gives is inside the root whatever the name."""
    grant(FileAccess.below(tree))
    try:
        assert readable_path("widgets/cog.py") == tree.resolve() / "widgets" / "cog.py"
        assert find_path("../outside") is None
        with pytest.raises(RequestError, match="there is no file or folder"):
            readable_path("link")
    finally:
        grant(FileAccess())


def test_a_named_pipe_below_the_root_holds_nobody_up(tree: Path) -> None:
    """A pipe that nobody writes to, and a device, are told like what is not there; whoever works here may name them."""
    os.mkfifo(tree / "pipe.py")
    (answer,) = said(["pipe.py"], tree)
    assert answer.status_code == 400
    assert "there is no file or folder 'pipe.py'" in answer.text
    grant(FileAccess())
    assert find_path(str(tree / "pipe.py")) is not None


def test_a_task_over_http_has_a_bound(tree: Path) -> None:
    """A task of megabytes is refused before agents' rules search it and the journal has it with every event."""
    (answer,) = said(["x" * 2_000_001], tree)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "context_length_exceeded")
    assert "got 2000001" in answer.text
