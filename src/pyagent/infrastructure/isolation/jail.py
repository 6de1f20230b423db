"""What an isolated plugin's process forbids itself: by the kernel where it can, and by Python's audit hooks, by name.

The audit hook says what was not declared; native code gets around it, and past it the kernel refuses. Where the kernel
cannot (`kinds`), the hook is all there is.
"""

from __future__ import annotations

import os
import resource
import site
import socket
import sys
import sysconfig
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn, cast

import pyagent
from pyagent.infrastructure.isolation import landlock
from pyagent.infrastructure.isolation.capabilities import Capabilities

_PROCESSES = ("subprocess.Popen", "os.exec", "os.posix_spawn", "os.fork", "os.forkpty", "os.system", "pty.spawn")
_CHANGES = ("os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.link", "os.symlink", "os.truncate", "os.chmod")
_MOST_FILE_BYTES = 1 << 30
_MOST_FILES = 256
_IP = (socket.AF_INET, socket.AF_INET6)


def kinds() -> tuple[str, ...]:
    """Return what of this machine enforces: `landlock`, `seccomp`, and always Python's `audit` hooks."""
    has = {"landlock": landlock.landlock_abi() > 0, "seccomp": landlock.can_filter_calls(), "audit": True}
    return tuple(name for name, is_there in has.items() if is_there)


def enter(plugin: str, allowed: Capabilities, source: str, memory_bytes: int) -> None:
    """Forbid this process all but what is allowed, and its own code, until its end.

    `source` is the plugin's module. Raises `OSError` where the kernel refuses.
    """
    for limit, value in (
        (resource.RLIMIT_AS, memory_bytes),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, _MOST_FILE_BYTES),
        (resource.RLIMIT_NOFILE, _MOST_FILES),
    ):
        resource.setrlimit(limit, (value, value))
    read = [*code_paths(source), *allowed.read, *allowed.write]
    write = [*allowed.write, os.devnull]
    if "landlock" in kinds():
        landlock.forbid_files(read, [path for path in sys.path if path], write, allowed.ports())
    if "seccomp" in kinds():
        landlock.forbid_calls(has_network=bool(allowed.network), has_writing=bool(allowed.write))
    sys.addaudithook(Guard(plugin, allowed, read, write).look)


def code_paths(source: str) -> list[str]:
    """Return where the code is that a plugin may import: Python's, installed packages, PyAgent and its own.

    Other folders on `sys.path`, such as that of the program, may hold anything: of these the names are seen, no file.
    """
    installed = [path for path in sys.path if Path(path).name in {"site-packages", "dist-packages"}]
    places = {*installed, *sysconfig.get_paths().values(), *site.getsitepackages(), sys.prefix, sys.base_prefix}
    own = [source if Path(source).name != "__init__.py" else Path(source).parent, Path(pyagent.__file__).parent]
    system = ("/usr/lib", "/usr/lib64", "/usr/share/zoneinfo", "/lib", "/lib64", "/etc/ld.so.cache", "/etc/localtime")
    devices = ("/dev/urandom", "/dev/random", os.devnull, "/etc/hosts", "/etc/resolv.conf", "/etc/nsswitch.conf")
    return [str(Path(place).resolve()) for place in (*places, *own, *system, *devices)]


class Guard:
    """An audit hook that refuses what was not declared, with its name."""

    def __init__(self, plugin: str, allowed: Capabilities, read: list[str], write: list[str]) -> None:
        self._plugin = plugin
        self._may_read, self._may_write = _below(read), _below(write)
        self._network = Network(allowed.network)

    def look(self, event: str, args: tuple[object, ...]) -> None:
        """Raise `PermissionError` for what was not declared."""
        if event == "open":
            self._look_at_file(*args[:3])
        elif event in _CHANGES:
            for path in args:
                if isinstance(path, str | bytes) and not self._may_write(path):
                    self._refuse(f"to write {os.fsdecode(path)!r:.200}")
        elif event in _PROCESSES:
            self._refuse("to start processes, which no isolated plugin may")
        elif event.startswith("socket.") and (what := self._network.refusal(event, args)):
            self._refuse(what)

    def _look_at_file(self, path: object, mode: object, flags: object) -> None:
        if isinstance(path, int):
            return  # a file that is open already
        is_writing = _writes(mode, flags)
        if not (self._may_write if is_writing else self._may_read)(path):
            name = os.fsdecode(cast("str", path))
            self._refuse(f"to {'write' if is_writing else 'read'} {name!r:.200}")

    def _refuse(self, what: str) -> NoReturn:
        raise PermissionError(f"the plugin {self._plugin} did not declare {what}")


class Network:
    """Which addresses were declared: by their names, and those that these names were found to have."""

    def __init__(self, declared: Sequence[str]) -> None:
        self._places = {(host, int(port)) for host, _, port in (one.rpartition(":") for one in declared)}
        self._ports_of_names = {port for host, port in self._places if not _is_number(host)}

    def refusal(self, event: str, args: tuple[object, ...]) -> str | None:
        """Return what is not allowed, in words; None for what is."""
        if event == "socket.__new__":
            return None if self._places or args[1] not in _IP else "any network"
        if event == "socket.getaddrinfo":
            return None if any(args[0] == host for host, _ in self._places) else f"to connect to {args[0]!r:.200}"
        if event in {"socket.connect", "socket.bind", "socket.sendto"} and not self._may(args[1]):
            return f"to connect to {args[1]!r:.200}"
        return None

    def _may(self, address: object) -> bool:
        """Whether an address was declared. A number may be one that a declared name has: its port tells."""
        if not isinstance(address, tuple) or len(cast("tuple[object, ...]", address)) < 2:
            return False
        host, port = cast("tuple[object, ...]", address)[:2]
        return (host, port) in self._places or (_is_number(str(host)) and port in self._ports_of_names)


def _is_number(host: str) -> bool:
    return ":" in host or host.replace(".", "").isdecimal()


def _below(roots: list[str]) -> Callable[[object], bool]:
    real = tuple(dict.fromkeys(os.path.realpath(root) for root in roots))

    def is_below(path: object) -> bool:
        there = os.path.realpath(os.fsdecode(cast("str", path)))
        return any(there == root or there.startswith(root.rstrip("/") + "/") for root in real)

    return is_below


def _writes(mode: object, flags: object) -> bool:
    if isinstance(mode, str):
        return any(letter in mode for letter in "wax+")
    return isinstance(flags, int) and bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC))
