"""Machines on one network: network namespaces joined by a bridge, which end with the process that made them.

Each namespace is held by a process that reads a pipe: however the tests end, the pipe closes, the holder ends, and the
kernel takes the namespace down. Nothing has a name that could be left behind.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import subprocess
import sys
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

_SOURCES = str(Path(__file__).parents[2] / "src")
_CLONE_NEWNET = 0x40000000


@contextlib.contextmanager
def entered(pid: int) -> Generator[None]:
    """Be in the network namespace of a process, with this thread: sockets and devices opened inside belong there."""
    libc = ctypes.CDLL(None, use_errno=True)
    home = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    theirs = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY)
    try:
        if libc.setns(theirs, _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "setns")
        yield
    finally:
        libc.setns(home, _CLONE_NEWNET)
        os.close(theirs)
        os.close(home)


@cache
def why_not() -> str:
    """Why namespaces cannot be had here; empty when they can."""
    if missing := [name for name in ("unshare", "nsenter", "ip") if shutil.which(name) is None]:
        return f"{', '.join(missing)} is not installed"
    probe = ["unshare", "--net", "ip", "link", "add", "probe", "type", "bridge"]
    tried = subprocess.run(probe, check=False, capture_output=True)
    return "" if tried.returncode == 0 else f"no network namespaces: {tried.stderr.decode().strip()}"


@dataclass
class Machine:
    """One namespace, and the processes that run in it."""

    holder: subprocess.Popen[bytes]
    address: str = ""

    @property
    def pid(self) -> int:
        return self.holder.pid

    def run(self, *command: str) -> str:
        """Run a command to its end, and return its output."""
        entered = ["nsenter", "--net", f"--target={self.pid}", *command]
        return subprocess.run(entered, check=True, capture_output=True, text=True).stdout

    def popen(self, *command: str, env: dict[str, str] | None = None) -> subprocess.Popen[str]:
        """Start a program, such as a node, with pipes to its input and output."""
        entered = ["nsenter", "--net", f"--target={self.pid}", *command]
        paths = os.pathsep.join([_SOURCES, str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
        environment = {**(os.environ if env is None else env), "PYTHONPATH": paths, "PYTHONUNBUFFERED": "1"}
        return subprocess.Popen(
            entered, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=sys.stderr, text=True, env=environment
        )


@dataclass
class Network:
    """A bridge in a namespace of its own."""

    bridge: Machine
    machines: list[Machine] = field(default_factory=list[Machine])

    def plug_in(self, machine: Machine, interface: str = "eth0", *, ipv4: bool = True, subnet: int = 0) -> None:
        """Give a machine an interface on the bridge, with an IPv4 address, and IPv6's link-local one."""
        number = self.machines.index(machine) + 1
        port = f"{interface}-{number}"
        self.bridge.run("ip", "link", "add", port, "type", "veth", "peer", "name", interface, "netns", str(machine.pid))
        self.bridge.run("ip", "link", "set", port, "master", "bridge", "up")
        if ipv4:
            machine.address = f"10.77.{subnet}.{number}"
            machine.run("ip", "address", "add", f"{machine.address}/24", "dev", interface)
        machine.run("ip", "link", "set", interface, "up")


def _hold() -> Machine:
    holder = subprocess.Popen(["unshare", "--net", "cat"], stdin=subprocess.PIPE)
    # Until `unshare` has left this namespace, commands would run in it.
    while os.readlink(f"/proc/{holder.pid}/ns/net") == os.readlink("/proc/self/ns/net"):
        if holder.poll() is not None:
            raise RuntimeError("no network namespaces here")
    machine = Machine(holder)
    machine.run("ip", "link", "set", "lo", "up")
    return machine


@contextlib.contextmanager
def network(num_machines: int, *, ipv4: bool = True, plugged: int | None = None) -> Generator[Network]:
    """Return a network of so many machines; the first `plugged` of them have their interface already."""
    held: list[Machine] = []
    try:
        held.append(_hold())
        joined = Network(held[0])
        joined.bridge.run("ip", "link", "add", "bridge", "type", "bridge")
        joined.bridge.run("ip", "link", "set", "bridge", "type", "bridge", "mcast_snooping", "0")
        joined.bridge.run("ip", "link", "set", "bridge", "up")
        for _ in range(num_machines):
            held.append(_hold())
            joined.machines.append(held[-1])
        for machine in joined.machines[:plugged]:
            joined.plug_in(machine, ipv4=ipv4)
        yield joined
    finally:
        for machine in held:
            if machine.holder.stdin is not None:
                machine.holder.stdin.close()
            machine.holder.kill()
            machine.holder.wait()


@dataclass
class SlowSwitch:
    """The switch between machines (`support.slow_switch`)."""

    process: subprocess.Popen[str]

    def change(self, delay: float = 0.0, loss: float = 0.0, parts: Sequence[Sequence[int]] = ()) -> None:
        """Delay and lose frames from now on; machines of different parts, by their place, do not reach each other."""
        assert self.process.stdin
        told = "|".join(",".join(map(str, part)) for part in parts) or "-"
        self.process.stdin.write(f"{delay} {loss} {told}\n")
        self.process.stdin.flush()


@contextlib.contextmanager
def slow_switch(net: Network, delay: float = 0.0, loss: float = 0.0) -> Generator[SlowSwitch]:
    """Connect machines that have no interface yet by a switch in user space, which delays and loses frames."""
    pids = [str(machine.pid) for machine in net.machines]
    command = [sys.executable, "-m", "support.slow_switch", str(delay), str(loss), *pids]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
    assert process.stdin
    assert process.stdout
    try:
        assert process.stdout.readline() == "ready\n"
        for number, machine in enumerate(net.machines, 1):
            machine.address = f"10.78.0.{number}"
            machine.run("ip", "address", "add", f"{machine.address}/24", "dev", "eth0")
            machine.run("ip", "link", "set", "eth0", "up")
        yield SlowSwitch(process)
    finally:
        process.stdin.close()
        process.wait(30)
        process.stdout.close()
