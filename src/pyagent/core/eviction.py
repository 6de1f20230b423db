"""What an eviction policy is: the order in which cached KV blocks that no request holds are given up.

The built-in ones are Rust and named by strings; a plugin may bring one written in Python, which costs the interpreter's
lock for each call. Pins and the fleet's hints come before any policy: it only orders what may go.

A policy must not call the block pool that asks it. One that raises, or evicts what is not released, is put out of use:
the log says why, and blocks go by last use from then on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class EvictionPolicy(Protocol):
    """Orders blocks, each a small number while it is cached. `key` names a block's content across evictions.

    A block is inserted held. It is held when a prompt hits it.
    """

    def insert(self, block: int, key: int, priority: int) -> None:
        """A block's content was computed. Of a higher priority, it is worth keeping longer."""
        ...

    def hit(self, block: int) -> None:
        """A prompt found the block."""
        ...

    def release(self, block: int) -> None:
        """Note that no request holds the block any more: it may be evicted."""
        ...

    def hold(self, block: int) -> None:
        """Somebody holds the block again: it may not be given up."""
        ...

    def evict(self) -> int | None:
        """Return the block to give up next, of those released; it is forgotten with this call."""
        ...

    def forget(self, block: int) -> None:
        """A block's content is gone for another reason."""
        ...


EvictionPolicyFactory = Callable[[int], EvictionPolicy | str]
"""Makes a policy for a pool of so many blocks, or names a built-in one."""
