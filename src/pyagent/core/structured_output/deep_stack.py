"""Threads with a stack that compiling a grammar does not come to the end of.

llguidance follows the rules of a grammar and the references of a schema by calls: a chain of 1,200 `$ref` ended the
process on a stack of 8 MB. Stack that is not reached takes no memory.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")

_STACK_BYTES = 256 << 20
_starting = threading.Lock()


def start_deep(work: Callable[[], None], name: str) -> None:
    """Run this in a thread of its own, of whose end nothing waits."""
    with _starting:  # the size is the process's
        before = threading.stack_size(_STACK_BYTES)
        try:
            threading.Thread(target=work, name=name, daemon=True).start()
        finally:
            threading.stack_size(before)


def run_deep(work: Callable[[], T]) -> T:
    """Return what this returns, or raise what it raises, in such a thread."""
    result = Future[T]()

    def run() -> None:
        try:
            result.set_result(work())
        except BaseException as error:  # noqa: BLE001 - raised where it is waited for
            result.set_exception(error)

    start_deep(run, "pyagent-deep")
    return result.result()
