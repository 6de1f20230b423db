"""`pyagent node`: two servers of one cluster, looked at and steered from the command line."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import subprocess
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import httpx
from support.command_line import Terminal, fresh_environment, listening_ports, pyagent, started
from support.nodes import running_node
from support.waiting import until

from pyagent.infrastructure.cluster.cluster_file import ClusterFile, cluster_folder

LIMIT_SECONDS = 90.0


@contextmanager
def node(home: Path, *options: str) -> Generator[tuple[dict[str, str], str, str]]:
    """Run a node; gives the environment of its user, its URL, and its door's port. It ends by SIGTERM, with code 0."""
    own = {"PYAGENT_CLUSTER__MULTICAST": "false", "PYAGENT_ENGINE__THREADS": "1"}
    own["PYAGENT_CLUSTER__PLACEMENT"] = '{"nowhere": 2}'
    env = fresh_environment(home) | own
    flags = ["--port", "0", "--door", "0", "--bind", "127.0.0.1", "--name", home.name]
    process = started("node", *flags, *options, env=env)
    assert process.stdout
    try:
        said = "".join(process.stdout.readline() for _ in range(3))
        url, door = re.search(r"http://\S+:\d+", said), re.search(r"knock at port (\d+)", said)
        assert url, said
        assert door, said
        yield env, url[0], door[1]
        process.send_signal(signal.SIGTERM)
        assert process.wait(LIMIT_SECONDS) == 0
    finally:
        process.kill()
        process.communicate()


def peers(env: dict[str, str], url: str) -> list[dict[str, object]]:
    return json.loads(pyagent("cluster", "peers", "--json", "--url", url, env=env).stdout)


def until_connected(env: dict[str, str], url: str, number: int) -> list[dict[str, object]]:
    end = time.monotonic() + LIMIT_SECONDS
    while True:
        found = peers(env, url)
        if [peer["is_connected"] for peer in found].count(True) == number:
            return found
        assert time.monotonic() < end, found


def test_two_nodes_are_seen_drained_and_revoked(tmp_path: Path, tiny_model_path: Path) -> None:
    """A node serves as ever, one without links by its peer; `cluster status`, `drain` and `revoke` do as they say."""
    desk, laptop = tmp_path / "desk", tmp_path / "laptop"
    state = ClusterFile(cluster_folder(_made(desk) / "data")).init("home")
    ClusterFile(cluster_folder(_made(laptop) / "data")).join(state)
    with (
        node(desk, "--model", str(tiny_model_path)) as (env, url, door),
        node(laptop, "--chain", "", "--seed", f"127.0.0.1:{door}") as (other, other_url, _),
    ):
        [found] = until_connected(env, url, 1)
        assert (found["name"], found["state"]) == ("laptop", "alive")
        shown = pyagent("cluster", "status", "--url", url, env=env).stdout
        assert "desk" in shown
        assert "1 of 1 peers connected" in shown
        assert "placement: nowhere on 0 of 2 nodes; no node has it in engine.models" in shown
        asked = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
        until_connected(other, other_url, 1)
        said = httpx.post(f"{other_url}/v1/chat/completions", json=asked, timeout=LIMIT_SECONDS).json()
        assert said["backend"] == "peer:desk", said
        assert pyagent("cluster", "drain", "--url", other_url, env=other).stdout == "drained\n"
        assert "draining" in pyagent("cluster", "status", "--url", other_url, env=other).stdout
        resumed = pyagent("cluster", "drain", "--resume", "--url", other_url, env=other)
        assert resumed.stdout == "takes requests of peers again\n"
        wrong = pyagent("cluster", "revoke", "phone", "--url", url, env=env)
        assert (wrong.returncode, "no node is called 'phone'" in wrong.stderr) == (1, True)
        assert (
            pyagent("cluster", "revoke", "laptop", "--url", url, env=env).stdout == f"revoked laptop ({found['id']})\n"
        )
        until_connected(other, other_url, 0)
        _join_by_invitation(env, door, _made(tmp_path / "phone"))


def test_node_on_a_terminal_shows_who_comes_and_goes(tmp_path: Path) -> None:
    """Whoever sits at a node sees the next command to type, and each node that comes or stops, by name and id."""
    desk = _made(tmp_path / "desk")
    state = ClusterFile(cluster_folder(desk / "data")).init("home")
    ClusterFile(tmp_path / "laptop").join(state)
    env = fresh_environment(desk) | {"PYAGENT_CLUSTER__MULTICAST": "false"}
    flags = ["--port", "0", "--door", "0", "--bind", "127.0.0.1", "--name", "desk", "--chain", ""]
    terminal = Terminal("node", *flags, env=env)

    async def visit(door: str) -> None:
        async with running_node(tmp_path / "laptop", [], seeds=[f"127.0.0.1:{door}"]) as laptop:
            await asyncio.to_thread(terminal.read_until, "is here")
            await until(lambda: any(peer.is_connected for peer in laptop.status().peers))

    try:
        said = terminal.read_until("`pyagent cluster invite` prints a code for one")
        found = re.search(r"knock at port (\d+)", said)
        assert found, said
        asyncio.run(visit(found[1]))
        terminal.read_until(") has stopped")
        assert re.search(r"laptop \([a-z2-7]{13}\) is here\r\n", terminal.shown)
    finally:
        terminal.process.terminate()
        terminal.process.wait(LIMIT_SECONDS)


def test_url_that_is_none_is_told_as_one(tmp_path: Path) -> None:
    """`--url` with a name alone is told what a URL looks like, not that a server does not answer."""
    done = pyagent("cluster", "status", "--url", "desk", env=fresh_environment(tmp_path))
    assert done.stderr == "error: 'desk' is no URL of a server; expected one such as http://127.0.0.1:8321\n"


def _join_by_invitation(env: dict[str, str], door: str, home: Path) -> None:
    """Beside a node whose door is elsewhere than the settings say, `invite` opens none: the node's answers the code."""
    inviting = started("cluster", "invite", env=env)
    assert inviting.stdout
    shown = ""
    while not (code := re.search(r"cluster join (\S+)", shown)):
        shown += inviting.stdout.readline()
    assert listening_ports(inviting.pid) == []
    joined = pyagent("cluster", "join", code[1], "--at", f"127.0.0.1:{door}", env=fresh_environment(home))
    assert joined.returncode == 0, joined.stderr
    rest, errors = inviting.communicate(timeout=LIMIT_SECONDS)
    assert inviting.returncode == 0, errors
    assert "has joined" in rest
    assert f":{door}" in rest or "--at" not in rest


def _made(home: Path) -> Path:
    home.mkdir()
    return home


def test_server_that_is_no_node_says_so(tmp_path: Path, tiny_model_path: Path) -> None:
    """Without a cluster `pyagent node` names the commands to make or join one, and ends with code 1."""
    env = fresh_environment(tmp_path) | {"PYAGENT_CLUSTER__MULTICAST": "false"}
    ended: subprocess.CompletedProcess[str] = pyagent("node", "--model", str(tiny_model_path), "--port", "0", env=env)
    assert ended.returncode == 1
    assert "pyagent cluster init" in ended.stderr
