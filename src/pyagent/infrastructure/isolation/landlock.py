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
        "pidfd_send_signal": 424, "pidfd_getfd": 438, "userfaultfd": 323, "perf_event_open": 298,
        "rt_sigqueueinfo": 129, "rt_tgsigqueueinfo": 297, "setpriority": 141, "ioprio_set": 251,
        # memory that no bound counts, and what all of a user's processes share
        "memfd_create": 319, "memfd_secret": 447, "shmget": 29, "shmat": 30, "shmctl": 31, "semget": 64, "semop": 65,
        "semctl": 66, "semtimedop": 220, "msgget": 68, "msgsnd": 69, "msgrcv": 70, "msgctl": 71, "mq_open": 240,
        "mq_unlink": 241, "open_by_handle_at": 304, "inotify_init": 253, "inotify_init1": 294, "fanotify_init": 300,
        # what Landlock lets be changed of any file
        "chmod": 90, "fchmodat": 268, "fchmodat2": 452, "chown": 92, "lchown": 94, "fchownat": 260, "utime": 132,
        "utimes": 235, "futimesat": 261, "utimensat": 280, "setxattr": 188, "lsetxattr": 189, "setxattrat": 463,
        "removexattr": 197, "lremovexattr": 198, "removexattrat": 466, "file_setattr": 469,
    },
    "aarch64": {
        "ptrace": 117, "execve": 221, "execveat": 281, "kill": 129, "tkill": 130, "mount": 40, "unshare": 97,
        "setns": 268, "bpf": 280, "keyctl": 219, "add_key": 217, "request_key": 218, "process_vm_readv": 270,
        "process_vm_writev": 271, "io_uring_setup": 425, "pidfd_open": 434, "pidfd_send_signal": 424,
        "pidfd_getfd": 438, "userfaultfd": 282, "perf_event_open": 241,
        "rt_sigqueueinfo": 138, "rt_tgsigqueueinfo": 240, "setpriority": 140, "ioprio_set": 30,
        "memfd_create": 279, "memfd_secret": 447, "shmget": 194, "shmat": 196, "shmctl": 195, "semget": 190,
        "semop": 193, "semctl": 191, "semtimedop": 192, "msgget": 186, "msgsnd": 189, "msgrcv": 188, "msgctl": 187,
        "mq_open": 180, "mq_unlink": 181, "open_by_handle_at": 265, "inotify_init1": 26, "fanotify_init": 262,
        "fchmodat": 53, "fchmodat2": 452, "fchownat": 54, "utimensat": 88, "setxattr": 5, "lsetxattr": 6,
        "setxattrat": 463, "removexattr": 14, "lremovexattr": 15, "removexattrat": 466, "file_setattr": 469,
    },
}  # fmt: skip
_CHANGES_OF_OPEN_FILES = {  # forbidden where nothing is written
    "x86_64": {"truncate": 76, "fchmod": 91, "fchown": 93, "fsetxattr": 190, "fremovexattr": 199},
    "aarch64": {"truncate": 45, "fchmod": 52, "fchown": 55, "fsetxattr": 7, "fremovexattr": 16},
}
_OF_A_PROCESS = {  # the first argument is whose; forbidden for another's
    "x86_64": (302, 203, 144, 142, 314, 234),
    "aarch64": (261, 122, 119, 118, 274, 131),
}
"""prlimit64, sched_setaffinity, sched_setscheduler, sched_setparam, sched_setattr, tgkill."""
_SENDING = {"x86_64": ((44, 3), (46, 2), (307, 3)), "aarch64": ((206, 3), (211, 2), (269, 3))}
"""sendto, sendmsg and sendmmsg, each with the place of its flags."""
_SOCKET = {"x86_64": 41, "aarch64": 198}
_SOCKETPAIR = {"x86_64": 53, "aarch64": 199}
_CLONE = {"x86_64": 56, "aarch64": 220}
_CLONE3 = 435
_CLONE_THREAD = 0x10000
_EPERM, _ENOSYS = 1, 38
_REFUSE, _ALLOW = 0x00050000 | _EPERM, 0x7FFF0000
_CAPABILITY_VERSION, _CAP_DAC_OVERRIDE = 0x20080522, 1 << 1
_AF_INET, _AF_INET6 = 2, 10
_STREAM, _DATAGRAM, _ANY_PROTOCOL, _TCP, _UDP = 1, 2, 0, 6, 17
_SOCKET_TYPE, _ALL, _FAST_OPEN = 0xF, 0xFFFFFFFF, 0x20000000


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


def forbid_calls(*, has_network: bool, has_writing: bool) -> None:
    """Forbid programs, other processes, and sockets: all, or with `has_network` all but TCP and UDP. Raises `OSError`.

    Must come last: what it forbids, setting up may need. A `socketpair` of streams stays, which event loops need; one
    of datagrams could be connected to any socket that has a path. Without `has_writing` open files stay as they are.
    """
    machine = platform.machine()
    missing = 0x00050000 | _ENOSYS
    program = [
        (0x20, 0, 0, 4),  # the architecture
        (0x15, 1, 0, _AUDIT[machine]),
        (0x06, 0, 0, _REFUSE),
        (0x20, 0, 0, 0),  # the call's number
        (0x35, 0, 1, 0x40000000),  # x32's
        (0x06, 0, 0, _REFUSE),
        (0x15, 0, 1, _CLONE3),  # its flags lie in memory: libc takes `clone` where it is missing
        (0x06, 0, 0, missing),
    ]
    forbidden = {**_CALLS[machine], **({} if has_writing else _CHANGES_OF_OPEN_FILES[machine])}
    for number in forbidden.values():
        program += [(0x15, 0, 1, number), (0x06, 0, 0, _REFUSE)]
    program += _only(_CLONE[machine], (0, _CLONE_THREAD, [_CLONE_THREAD]))  # threads alone
    for number in _OF_A_PROCESS[machine]:
        program += _only(number, (0, _ALL, [0, os.getpid()]))
    for number, place in _SENDING[machine]:
        program += _only(number, (place, _FAST_OPEN, [0]))  # connects without Landlock's being asked
    program += _only(_SOCKETPAIR[machine], (1, _SOCKET_TYPE, [_STREAM]))
    program += _only(
        _SOCKET[machine],
        (0, _ALL, [_AF_INET, _AF_INET6] if has_network else []),
        (1, _SOCKET_TYPE, [_STREAM, _DATAGRAM]),
        (2, _ALL, [_ANY_PROTOCOL, _TCP, _UDP]),  # Landlock knows no port of MPTCP
    )
    program.append((0x06, 0, 0, _ALLOW))
    _drop_capabilities()
    _install(program)


def _only(number: int, *conditions: tuple[int, int, Sequence[int]]) -> list[tuple[int, int, int, int]]:
    """Return what refuses a call but where the arguments at some places, masked, are each one of the values given."""
    rest: list[tuple[int, int, int, int]] = []
    for place, mask, values in conditions:
        rest += [(0x20, 0, 0, 16 + 8 * place), (0x54, 0, 0, mask)]
        rest += [(0x15, len(values) - index, 0, value) for index, value in enumerate(values)]
        rest.append((0x06, 0, 0, _REFUSE))
    rest.append((0x06, 0, 0, _ALLOW))
    return [(0x15, 0, len(rest), number), *rest]


def _drop_capabilities() -> None:
    """Give up what root may, but reading and writing files of others, which Landlock bounds."""
    libc, header = _libc(), struct.pack("=Ii", _CAPABILITY_VERSION, 0)
    held = ctypes.create_string_buffer(24)
    _checked(libc.capget(header, held), "capget")
    effective, permitted, *_ = struct.unpack("=6I", held.raw)
    kept = struct.pack("=6I", effective & _CAP_DAC_OVERRIDE, permitted & _CAP_DAC_OVERRIDE, 0, 0, 0, 0)
    _checked(libc.capset(header, kept), "capset")


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
