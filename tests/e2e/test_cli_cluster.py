"""`pyagent cluster`: two machines become a cluster by two commands and a code."""

from __future__ import annotations

import gc
import io
import re
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.command_line import fresh_environment, listening_ports, pyagent, started

from pyagent.infrastructure.cluster.cluster_file import ClusterFile, cluster_folder
from pyagent.infrastructure.cluster.keys import NodeKeys


def machine(folder: Path) -> dict[str, str]:
    """The environment of a user on a machine of its own, whose door is on loopback."""
    folder.mkdir()
    ours = {"PYAGENT_CLUSTER__PORT": "0", "PYAGENT_CLUSTER__MULTICAST": "false", "PYAGENT_CLUSTER__NAME": folder.name}
    return fresh_environment(folder) | ours | {"PYAGENT_CLUSTER__BIND": "127.0.0.1"}


def test_cluster_is_joined_by_a_code(tmp_path: Path) -> None:
    """`init` on one machine, `invite` there, and `join` with the code on the other: both know one secret."""
    desk, laptop = machine(tmp_path / "desk"), machine(tmp_path / "laptop")
    made = pyagent("cluster", "init", "--name", "home", env=desk)
    assert made.returncode == 0, made.stderr
    assert "the cluster 'home' is made" in made.stdout
    inviting = started("cluster", "invite", env=desk)
    assert inviting.stdout is not None
    shown = ""
    while not (code := re.search(r"cluster join (\S+)", shown)):
        shown += inviting.stdout.readline()
    [port] = listening_ports(inviting.pid)
    joined = pyagent("cluster", "join", "--at", f"127.0.0.1:{port}", env=laptop, text=f"{code[1].lower()}\n")
    assert joined.returncode == 0, joined.stderr
    assert "joined the cluster 'home' by desk" in joined.stdout
    rest, errors = inviting.communicate(timeout=60)
    assert inviting.returncode == 0, errors
    assert "has joined" in rest
    desks, laptops = (ClusterFile(cluster_folder(tmp_path / name / "data")) for name in ("desk", "laptop"))
    assert desks.load().current == laptops.load().current
    again = pyagent("cluster", "join", code[1], env=laptop)
    assert (again.returncode, "in a cluster already" in again.stderr) == (1, True)
    for file in laptops.folder.iterdir():
        assert stat.S_IMODE(file.stat().st_mode) == 0o600, file


@pytest.mark.parametrize("text", ["", None])
def test_join_without_a_code_or_input_is_wrong_usage(
    tmp_path: Path, text: str | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where the input is empty or closed, `join` says to give the code as an argument, with exit code 2."""
    from pyagent.cli.root import run

    monkeypatch.setenv("PYAGENT_PATHS__DATA", str(tmp_path))
    monkeypatch.setattr("sys.stdin", None if text is None else io.StringIO(text))
    assert run(["cluster", "join"]) == 2
    assert "give it as an argument: `pyagent cluster join CODE`" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["invite"], "this node is in no cluster; make one with `pyagent cluster init`"),
        (["status"], "this machine is in no cluster; make one with `pyagent cluster init`"),
        (["forget", "x"], "this machine is in no cluster"),
        (["join", "hello"], "expected a join code such as K7Q-F92-4XNM"),
        (["join", "K7Q-F92-4XNM", "--at", "127.0.0.1:1"], "cannot be reached"),
        (["join", "K7Q-F92-4XNM"], "say where the node is with --at HOST"),
        (["join", "K7Q-F92-4XNM", "--at", "http://desk"], "expected HOST or HOST:PORT"),
    ],
)
def test_cluster_command_says_what_is_missing(
    arguments: list[str], told: str, monkeypatch: pytest.MonkeyPatch, told_by: Callable[[list[str]], str]
) -> None:
    """A command that cannot do what was asked says what to do, in one line."""
    monkeypatch.setenv("PYAGENT_SERVER__PORT", "1")
    assert told in told_by(["cluster", *arguments])


@pytest.fixture
def told_by(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Callable[[list[str]], str]]:
    """What a command says that cannot do what was asked, on the machine `desk`."""
    from pyagent.cli.main import fail
    from pyagent.cli.root import run
    from pyagent.core.errors import PyAgentError

    for name, value in machine(tmp_path / "desk").items():
        if name.startswith("PYAGENT_"):
            monkeypatch.setenv(name, value)

    def told(arguments: list[str]) -> str:
        with pytest.raises(PyAgentError) as caught:
            run(arguments)
        fail(caught.value)
        return capsys.readouterr().err

    yield told
    gc.enable()  # a server puts that off until it has started


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["--seed", "http://desk"], "cluster.seeds = ['http://desk'] (flag): expected HOST or HOST:PORT"),
        (["--bind", "desk"], "expected addresses such as 192.0.2.5"),
        (["--bind", "192.0.2.1"], "this machine has no address 192.0.2.1 for --bind"),
    ],
)
def test_node_says_in_one_line_why_it_cannot_listen(
    tmp_path: Path, flags: list[str], told: str, told_by: Callable[[list[str]], str]
) -> None:
    """A seed that is no address, an address that is none or not this machine's: one line that names the option."""
    ClusterFile(cluster_folder(tmp_path / "desk" / "data")).init("home")
    said = told_by(["node", "--port", "0", "--model", "none.gguf", *flags])
    assert told in said
    assert said.count("\n") == 1


def test_node_refuses_a_rule_that_trusts_a_name(tmp_path: Path, told_by: Callable[[list[str]], str]) -> None:
    """`rules.private` with a node's name is refused at the start, with the id to write in its place."""
    files = ClusterFile(cluster_folder(tmp_path / "desk" / "data"))
    files.init("home")
    laptop = NodeKeys.make()
    files.add_member(laptop.node_id, laptop.public, "laptop")
    settings = tmp_path / "private.toml"
    settings.write_text('[rules]\nprivate = ["native", "peer:laptop"]\n')
    said = told_by(["node", "--port", "0", "--model", "none.gguf", "--config", str(settings)])
    assert "'peer:laptop' trusts any member that takes that name" in said
    assert f"peer:{laptop.node_id}" in said
