"""Discovery on real networks: namespaces, a bridge, multicast; interfaces that come late, fail and come back."""

from __future__ import annotations

import json
import queue
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import cast

import pytest
from support.command_line import COMMAND, fresh_environment
from support.doors import Node, copy_cluster
from support.networks import Machine, network, why_not

pytestmark = [pytest.mark.cluster, pytest.mark.skipif(bool(why_not()), reason=why_not() or "there are")]

PORT = 8322
LIMIT_SECONDS = 240.0
"""How long a busy machine may take over what takes it a second when quiet."""


class Program:
    """A node in a namespace, and what it tells."""

    def __init__(self, machine: Machine, node: Node, *options: str) -> None:
        command = [sys.executable, "-m", "support.door_node", str(node.folder), str(PORT), *options]
        self.process = machine.popen(*command)
        self.node_id = node.keys.node_id
        self.told: list[dict[str, object]] = []
        self._lines: queue.Queue[dict[str, object] | None] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(json.loads(line))
        self._lines.put(None)

    def wait_for(self, event: str, **facts: object) -> dict[str, object]:
        """Wait until it tells of an event with these facts."""
        end = time.monotonic() + LIMIT_SECONDS

        def fits(line: dict[str, object]) -> bool:
            return line["event"] == event and all(line.get(key) == value for key, value in facts.items())

        for line in self.told:
            if fits(line):
                return line
        while True:
            try:
                line = self._lines.get(timeout=max(0.0, end - time.monotonic()))
            except queue.Empty:
                line = None
            assert line is not None, f"no {event} {facts} in {self.told}"
            self.told.append(line)
            if fits(line):
                return line

    def stop(self) -> None:
        """End it as a user's Ctrl+C does: with a goodbye."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        try:
            self.process.wait(LIMIT_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        self.process.stdout.close()


Start = Callable[..., Program]


@pytest.fixture
def start() -> Generator[Start]:
    """Starts a node in a namespace; all end with the test."""
    programs: list[Program] = []

    def begin(machine: Machine, node: Node, *options: str) -> Program:
        programs.append(Program(machine, node, *options))
        programs[-1].wait_for("started")
        return programs[-1]

    yield begin
    for program in programs:
        if program.process.poll() is None:
            program.process.kill()
        program.process.wait()
        for pipe in (program.process.stdin, program.process.stdout):
            assert pipe is not None
            pipe.close()


def nodes_of(folder: Path, count: int) -> list[Node]:
    """So many nodes of one cluster, whose doors are opened elsewhere."""
    nodes = [Node(folder / f"node{number}", f"node{number}") for number in range(count)]
    nodes[0].cluster.init("home")
    for node in nodes[1:]:
        copy_cluster(nodes[0], node)
    return nodes


def seconds_to(line: dict[str, object], *programs: Program) -> float:
    """The seconds from when all of these programs had started."""
    at = [program.wait_for("started")["at"] for program in programs]
    return cast("float", line["at"]) - max(cast("list[float]", at))


@pytest.mark.parametrize("ipv4", [True, False], ids=["IPv4", "IPv6 only"])
def test_nodes_find_each_other_by_multicast(tmp_path: Path, start: Start, ipv4: bool) -> None:
    """Three nodes meet without being told of each other, over IPv4 or IPv6 alone; one that leaves says goodbye."""
    nodes = nodes_of(tmp_path, 3)
    with network(3, ipv4=ipv4) as joined:
        programs = [start(machine, node) for machine, node in zip(joined.machines, nodes, strict=True)]
        for program in programs:
            for other in programs:
                if other is not program:
                    met = program.wait_for("met", node=other.node_id)
                    print(f"met by {met['source']} after {seconds_to(met, program, other):.3f} s")
                    assert met["source"] == "multicast"
                    # The node listens on every address: where it is reached is where it was seen, with the interface.
                    host = str(met["host"])
                    assert met["endpoints"] == [f"tcp://[{host}]:4000" if ":" in host else f"tcp://{host}:4000"]
                    assert "%" in host or ipv4
        programs[2].stop()
        for program in programs[:2]:
            program.wait_for("gone", node=programs[2].node_id)


@pytest.mark.parametrize("way", ["seed", "cache"])
def test_nodes_find_each_other_by_seed_or_cache(tmp_path: Path, start: Start, way: str) -> None:
    """Where multicast does not reach, a seed leads to a node, and so does having met it before."""
    nodes = nodes_of(tmp_path, 2)
    with network(2) as joined:
        start(joined.machines[0], nodes[0], "--no-multicast")
        seed = joined.machines[0].address
        program = start(joined.machines[1], nodes[1], "--no-multicast", seed)
        met = program.wait_for("met", node=nodes[0].keys.node_id, source="seed")
        if way == "cache":
            program.stop()
            program = start(joined.machines[1], nodes[1], "--no-multicast")
            met = program.wait_for("met", node=nodes[0].keys.node_id, source="cache")
        print(f"met by {met['source']} after {seconds_to(met, program):.3f} s")


def test_interface_that_comes_later_is_used(tmp_path: Path, start: Start) -> None:
    """A node that was started without a network finds the others when there is one, and they find it."""
    nodes = nodes_of(tmp_path, 2)
    with network(2, plugged=1) as joined:
        first = start(joined.machines[0], nodes[0])
        second = start(joined.machines[1], nodes[1])
        joined.plug_in(joined.machines[1])
        second.wait_for("met", node=first.node_id)
        first.wait_for("met", node=second.node_id)


def test_interface_that_fails_stops_no_other_and_is_used_again(tmp_path: Path, start: Start) -> None:
    """One interface that is down leaves the others alone; one that was down for a while is used when it is back."""
    nodes = nodes_of(tmp_path, 3)
    with network(3) as joined:
        machine = joined.machines[0]
        machine.run("ip", "link", "add", "broken", "type", "bridge")
        machine.run("ip", "address", "add", "10.99.0.1/24", "dev", "broken")
        first = start(machine, nodes[0])
        second = start(joined.machines[1], nodes[1])
        first.wait_for("met", node=second.node_id)
        for _ in range(2):
            machine.run("ip", "link", "set", "eth0", "down")
            machine.run("ip", "address", "flush", "dev", "eth0")
            time.sleep(1.5)  # long enough to be seen
            machine.run("ip", "address", "add", f"{machine.address}/24", "dev", "eth0")
            machine.run("ip", "link", "set", "eth0", "up")
        third = start(joined.machines[2], nodes[2])
        first.wait_for("met", node=third.node_id)
        third.wait_for("met", node=first.node_id)


@pytest.mark.parametrize("is_running", [False, True], ids=["the command answers", "a node answers"])
def test_machine_joins_by_code_and_multicast(tmp_path: Path, start: Start, is_running: bool) -> None:
    """`pyagent cluster join CODE` finds the node that invites on the network, without being told where it is."""
    with network(2) as joined:
        desk, laptop = (user_of(tmp_path / name) for name in ("desk", "laptop"))
        assert run_in(joined.machines[0], desk, "cluster", "init", "--name", "home").returncode == 0
        if is_running:
            start(joined.machines[0], Node(tmp_path / "desk" / "data" / "cluster", "desk"))
        inviting = joined.machines[0].popen(*COMMAND, "cluster", "invite", env=desk)
        assert inviting.stdout is not None
        shown = ""
        while not (code := re.search(r"cluster join (\S+)", shown)):
            line = inviting.stdout.readline()
            assert line, f"it ended without a code: {shown}"
            shown += line
        began = time.monotonic()
        done = run_in(joined.machines[1], laptop, "cluster", "join", code[1])
        print(f"joined after {time.monotonic() - began:.3f} s, the program's start included")
        assert (done.returncode, "joined the cluster 'home'" in done.stdout) == (0, True), done.stderr
        inviting.communicate(timeout=LIMIT_SECONDS)
        assert inviting.returncode == 0


def test_doctor_names_the_leg_that_fails(tmp_path: Path) -> None:
    """`pyagent doctor` says of each interface what works, and what is to be done about the one that is down."""
    with network(1) as joined:
        machine, desk = joined.machines[0], user_of(tmp_path / "desk")
        machine.run("ip", "link", "add", "broken", "type", "bridge")
        machine.run("ip", "address", "add", "10.99.0.1/24", "dev", "broken")
        run_in(machine, desk, "cluster", "init")
        findings = json.loads(run_in(machine, desk, "doctor", "--json").stdout)
        named = {one["name"]: one for one in findings if one["area"] == "cluster"}
        assert named["eth0 IPv4"]["is_well"]
        assert "multicast is sent and received" in named["eth0 IPv4"]["found"]
        assert not named["broken IPv4"]["is_well"]
        assert "cannot send multicast" in named["broken IPv4"]["found"]
        assert "cluster.seeds" in named["broken IPv4"]["advice"]
        assert named["this node"]["found"] == "does not run; `pyagent node` starts it"


def user_of(home: Path) -> dict[str, str]:
    home.mkdir()
    return fresh_environment(home) | {"PYAGENT_CLUSTER__NAME": home.name}


def run_in(machine: Machine, env: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    process = machine.popen(*COMMAND, *arguments, env=env)
    output, errors = process.communicate(timeout=LIMIT_SECONDS)
    return subprocess.CompletedProcess(arguments, process.returncode, output, errors)


def test_namespaces_are_gone_after_the_tests() -> None:
    """A network leaves no namespace behind."""
    before = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    with network(2) as joined:
        holders = [machine.pid for machine in joined.machines]
    assert not any(Path(f"/proc/{pid}").exists() for pid in holders)
    assert subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout == before
