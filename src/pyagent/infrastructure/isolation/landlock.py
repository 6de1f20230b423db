"""Linux's Landlock and seccomp, through libc: what a process forbids itself, for good and for all of its threads.

Landlock: kernel's Documentation/userspace-api/landlock.rst; seccomp: Documentation/userspace-api/seccomp_filter.rst.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
import sys
from collections.abc import Iterable, Sequence

_CREATE, _ADD, _RESTRICT = 444, 445, 446
_PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS = 22, 38
_RULE_PATH, _RULE_PORT = 1, 2
_EXECUTE, _WRITE, _READ_FILE, _READ_DIR, _TRUNCATE = 1 << 0, 1 << 1, 1 << 2, 1 << 3, 1 << 14
_READ = _READ_FILE | _READ_DIR
_OF_FILES = _EXECUTE | _WRITE | _READ_FILE | _TRUNCATE | 1 << 15
_ABI_TO_FS = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 4: (1 << 15) - 1, 5: (1 << 16) - 1}
_BIND_CONNECT = 3
_SCOPES = 3
"""Abstract unix sockets, and signals to processes outside."""

_AUDIT = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_CALLS = {  # forbidden outright; names as in the kernel's tables
    "x86_64": {
        "ptrace": 101, "execve": 59, "execveat": 322, "fork": 57, "vfork": 58, "kill": 62, "tkill": 200, "mount": 165,
        "unshare": 272, "setns": 308, "bpf": 321, "keyctl": 250, "add_key": 248, "request_key": 249,
        "process_vm_readv": 310, "process_vm_writev": 311, "io_uring_setup": 425, "pidfd_open": 434,
        "pidfd_send_signal": 424, "pidfd_getfd": 438, "userfaultfd": 323, "perf_event_open": 298, "shmget": 29,
    },
    "aarch64": {
        "ptrace": 117, "execve": 221, "execveat": 281, "kill": 129, "tkill": 130, "mount": 40, "unshare": 97,
        "setns": 268, "bpf": 280, "keyctl": 219, "add_key": 217, "request_key": 218, "process_vm_readv": 270,
        "process_vm_writev": 271, "io_uring_setup": 425, "pidfd_open": 434, "pidfd_send_signal": 424,
        "pidfd_getfd": 438, "userfaultfd": 282, "perf_event_open": 241, "shmget": 194,
    },
}  # fmt: skip
_SOCKET = {"x86_64": 41, "aarch64": 198}
_CLONE = {"x86_64": 56, "aarch64": 220}
_CLONE3 = 435
_CLONE_THREAD = 0x10000
_EPERM, _ENOSYS = 1, 38
_AF_INET, _AF_INET6 = 2, 10


def landlock_abi() -> int:
    """Return the kernel's version of Landlock; 0 where it has none."""
    if not sys.platform.startswith("linux"):
        return 0
    return max(0, _libc().syscall(_CREATE, None, 0, 1))


def can_filter_calls() -> bool:
    """Whether this machine's system calls can be filtered: Linux on x86-64 or AArch64."""
    return sys.platform.startswith("linux") and platform.machine() in _AUDIT


def forbid_files(read: Iterable[str], listed: Iterable[str], write: Iterable[str], ports: Sequence[int]) -> None:
    """Forbid all files but these, and below these; and all TCP but to these ports. Raises `OSError`.

    Of the folders `listed` the names may be read, and no file.
    """
    abi = landlock_abi()
    handled = _ABI_TO_FS[min(abi, 5)]
    attributes = struct.pack("=Q", handled)
    if abi >= 4:
        attributes += struct.pack("=Q", _BIND_CONNECT)
    if abi >= 6:
        attributes += struct.pack("=Q", _SCOPES)
    libc = _libc()
    ruleset = _checked(libc.syscall(_CREATE, attributes, len(attributes), 0), "landlock_create_ruleset")
    try:
        for paths, access in ((read, _READ), (listed, _READ_DIR), (write, handled & ~_EXECUTE)):
            for path in paths:
                _allow_path(ruleset, path, access & handled)
        for port in ports if abi >= 4 else ():
            rule = struct.pack("=QQ", 2, port)
            _checked(libc.syscall(_ADD, ruleset, _RULE_PORT, rule, 0), "landlock_add_rule")
        _keep_privileges()
        _checked(libc.syscall(_RESTRICT, ruleset, 0), "landlock_restrict_self")
    finally:
        os.close(ruleset)


def _allow_path(ruleset: int, path: str, access: int) -> None:
    try:
        opened = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return  # what is not there needs no rule
    try:
        if not os.path.isdir(path):
            access &= _OF_FILES
        rule = struct.pack("=Qi", access, opened)
        _checked(_libc().syscall(_ADD, ruleset, _RULE_PATH, rule, 0), "landlock_add_rule")
    finally:
        os.close(opened)


def forbid_calls(*, has_network: bool) -> None:
    """Forbid programs, other processes, and sockets: all, or with `has_network` all but those of IP. Raises `OSError`.

    Must come last: what it forbids, setting up may need. `socketpair` stays, which event loops need.
    """
    machine = platform.machine()
    refuse, allow, missing = 0x00050000 | _EPERM, 0x7FFF0000, 0x00050000 | _ENOSYS
    program = [
        (0x20, 0, 0, 4),  # the architecture
        (0x15, 1, 0, _AUDIT[machine]),
        (0x06, 0, 0, refuse),
        (0x20, 0, 0, 0),  # the call's number
        (0x35, 0, 1, 0x40000000),  # x32's
        (0x06, 0, 0, refuse),
        (0x15, 0, 1, _CLONE3),  # its flags lie in memory: libc takes `clone` where it is missing
        (0x06, 0, 0, missing),
    ]
    for number in _CALLS[machine].values():
        program += [(0x15, 0, 1, number), (0x06, 0, 0, refuse)]
    program += [
        (0x15, 0, 4, _CLONE[machine]),  # threads alone
        (0x20, 0, 0, 16),
        (0x45, 1, 0, _CLONE_THREAD),
        (0x06, 0, 0, refuse),
        (0x06, 0, 0, allow),
    ]
    families = [_AF_INET, _AF_INET6] if has_network else []
    program += [(0x15, 0, 2 + len(families), _SOCKET[machine]), (0x20, 0, 0, 16)]
    program += [(0x15, len(families) - place, 0, family) for place, family in enumerate(families)]
    program += [(0x06, 0, 0, refuse), (0x06, 0, 0, allow)]
    _install(program)


def _install(program: Sequence[tuple[int, int, int, int]]) -> None:
    code = b"".join(struct.pack("=HBBI", *instruction) for instruction in program)
    buffer = ctypes.create_string_buffer(code)
    filters = struct.pack("@HP", len(program), ctypes.addressof(buffer))
    _keep_privileges()
    _checked(_libc().prctl(_PR_SET_SECCOMP, 2, filters, 0, 0), "seccomp")


def _keep_privileges() -> None:
    _checked(_libc().prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")


def _checked(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)
