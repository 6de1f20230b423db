"""`pyagent cluster` where things go wrong: a full disk, two codes at once."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import anyio
import pytest
from support.command_line import COMMAND, fresh_environment, pyagent
from support.doors import Node

from pyagent.cli.running_servers import running_servers
from pyagent.core.cluster.join_code import written
from pyagent.infrastructure.cluster.cluster_file import ClusterFile, cluster_folder
from pyagent.infrastructure.cluster.invitation import InvitationFile
from pyagent.infrastructure.cluster.keys import load_or_make_keys

LIMIT_SECONDS = 60.0


def on_full_disk(*command: str, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a command for which no file has room: none may have a byte."""
    limited = ["sh", "-c", 'ulimit -f 0; exec "$@"', "sh", *command]
    return subprocess.run(
        limited, check=False, env=env, capture_output=True, text=True, timeout=LIMIT_SECONDS, cwd=env["HOME"]
    )


@pytest.mark.anyio
async def test_join_on_a_full_disk_leaves_the_code_for_another_try(tmp_path: Path) -> None:
    """A machine that could not keep the cluster does not use the code up, and says what to do; then it joins."""
    env = fresh_environment(tmp_path)
    desk = Node(tmp_path / "desk", "desk")
    desk.cluster.init("home")
    code = desk.invitations.make().code
    load_or_make_keys(cluster_folder(tmp_path / "data"))
    await desk.start()
    try:
        join = "cluster", "join", written(code), "--at", f"127.0.0.1:{desk.door.port}"
        full = await anyio.to_thread.run_sync(lambda: on_full_disk(*COMMAND, *join, env=env))
        assert full.returncode == 1
        assert full.stderr.endswith("cannot be written: File too large; make room on its disk\n")
        assert desk.invitations.outcome() == "open"
        assert desk.cluster.load().members == {}
        roomy = await anyio.to_thread.run_sync(lambda: pyagent(*join, env=env))
    finally:
        await desk.door.stop()
    assert "joined the cluster 'home'" in roomy.stdout, roomy.stderr
    assert desk.invitations.outcome() == "used"


def test_init_on_a_full_disk_makes_no_half_of_a_cluster(tmp_path: Path) -> None:
    """What `init` could not finish it has not begun: once there is room the same command works."""
    env = fresh_environment(tmp_path)
    folder = cluster_folder(tmp_path / "data")
    assert "make room on its disk" in on_full_disk(*COMMAND, "cluster", "init", env=env).stderr
    assert {file.name for file in folder.iterdir()} == {".lock"}
    assert pyagent("cluster", "init", env=env).returncode == 0
    again = pyagent("cluster", "init", env=env)
    assert "`pyagent cluster invite` prints a code for another machine" in again.stderr


def test_folder_that_is_a_file_is_told_as_one(tmp_path: Path) -> None:
    """The advice fits the fault: nobody is told to make a file writable that stands where a folder is to be."""
    env = fresh_environment(tmp_path)
    (tmp_path / "data").write_text("")
    told = pyagent("cluster", "init", env=env).stderr
    assert "what stands where a folder is to be must go, or set paths.data" in told


def test_second_code_ends_the_first_invitation_and_not_itself(tmp_path: Path) -> None:
    """Of two `invite` the first says that its code was replaced, and ends; the second says so too, and stays open."""
    env = fresh_environment(tmp_path) | {"PYAGENT_CLUSTER__MULTICAST": "false", "PYAGENT_CLUSTER__PORT": "0"}
    folder = cluster_folder(tmp_path / "data")
    ClusterFile(folder).init("home")
    invitations = InvitationFile(folder)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(pyagent, "cluster", "invite", env=env)
        while not (replaced := invitations.find_open()):
            assert not first.done()
            time.sleep(0.01)
        second = pool.submit(pyagent, "cluster", "invite", env=env)
        ended = first.result()
        assert ended.returncode == 1
        assert "another code was made here since" in ended.stderr
        invitation = invitations.find_open()
        assert invitation is not None
        assert invitation.code != replaced.code
        assert not second.done()
        invitations.use(invitation.code, "b" * 13)
        told = second.result().stdout
    assert "counts no longer" in told
    assert f"node {'b' * 13} has joined" in told


def test_server_that_cannot_be_found_says_so_and_leaves_no_file(tmp_path: Path) -> None:
    """On a full disk a server goes on, warns that `stop` will not find it, and leaves no empty file behind."""
    script = (
        "import pathlib, sys; from pyagent.cli.running_servers import announced\n"
        "with announced(pathlib.Path(sys.argv[1]), '127.0.0.1', 8321): print('serves')"
    )
    said = on_full_disk(sys.executable, "-c", script, str(tmp_path), env=fresh_environment(tmp_path))
    assert said.stdout == "serves\n"
    assert "`pyagent stop` and commands without --url will not find this server" in said.stderr
    assert list((tmp_path / "servers").iterdir()) == []
    assert running_servers(tmp_path) == []


def test_join_at_what_can_be_no_host_is_one_clear_line(tmp_path: Path) -> None:
    """A name that no name service can be asked for is refused as it is typed, without a traceback."""
    done = pyagent("cluster", "join", "K7Q-F92-4XNM", "--at", "a..b", env=fresh_environment(tmp_path))
    assert done.returncode != 0
    assert done.stderr == "error: 'a..b' is no door of a node; expected HOST or HOST:PORT\n"


def test_data_folder_that_cannot_be_looked_into_is_one_clear_line(tmp_path: Path) -> None:
    """A path that is too long for the system is named, by its end, and not followed by a traceback."""
    env = fresh_environment(tmp_path) | {"PYAGENT_PATHS__DATA": "/" + 5000 * "x" + "/end"}
    for command in (["cluster", "init"], ["cluster", "status"]):
        done = pyagent(*command, env=env)
        assert re.fullmatch(
            r"error: \.\.\.x+/end/\S+ cannot be read: File name too long; .* set paths.data\n", done.stderr
        )


def test_output_without_room_or_closed_ends_no_node_and_shows_no_traceback(tmp_path: Path) -> None:
    """A node whose output goes to a full disk serves; a command that can say nothing says so, or needs not."""
    env = fresh_environment(tmp_path) | {"PYAGENT_CLUSTER__MULTICAST": "false", "PYAGENT_CLUSTER__PORT": "0"}
    ClusterFile(cluster_folder(tmp_path / "data")).init("home")

    def begun(output: str, *command: str) -> subprocess.Popen[str]:
        shell = ["sh", "-c", f'exec "$@" {output}', "sh", *COMMAND, *command]
        return subprocess.Popen(shell, env=env, stderr=subprocess.PIPE, text=True, cwd=tmp_path)

    full, closed = begun(">/dev/full", "version"), begun(">&-", "version")
    node = begun(">/dev/full", "node", "--chain", "", "--port", "0")
    try:
        told = "error: what is written has no room: No space left on device; make room on its disk\n"
        assert (full.communicate(timeout=LIMIT_SECONDS)[1], full.returncode) == (told, 1)
        assert (closed.communicate(timeout=LIMIT_SECONDS)[1], closed.returncode) == ("", 0)
        end = time.monotonic() + LIMIT_SECONDS
        while not running_servers(tmp_path / "data"):
            assert node.poll() is None
            assert time.monotonic() < end
            time.sleep(0.05)
        node.terminate()
        assert "Traceback" not in node.communicate(timeout=LIMIT_SECONDS)[1]
    finally:
        for process in (full, closed, node):
            process.kill()
            process.communicate()


def test_cluster_command_asks_the_node_that_runs_beside_a_server(tmp_path: Path) -> None:
    """Of a `pyagent serve` and a `pyagent node` of one user, on whatever ports, `cluster` asks the node."""
    env = fresh_environment(tmp_path)
    ClusterFile(cluster_folder(tmp_path / "data")).init("home")
    script = (
        "import pathlib, sys; from pyagent.cli.running_servers import announced\n"
        "with announced(pathlib.Path(sys.argv[1]), '127.0.0.1', *map(int, sys.argv[2:])): print(flush=True); input()"
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "env": env, "text": True}
    running = [
        subprocess.Popen([sys.executable, "-c", script, str(tmp_path / "data"), port, door], **pipes)  # type: ignore[call-overload]
        for port, door in (("1", "0"), ("2", "8322"))
    ]
    try:
        for process in running:
            process.stdout.readline()
        told = pyagent("cluster", "status", env=env).stderr
    finally:
        for process in running:
            process.communicate("\n")
    assert told.startswith("error: no server answers at http://127.0.0.1:2: "), told
