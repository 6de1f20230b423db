"""The KV of one model while it moves: sequences of the block pool that no request has.

KV that is read is held by a sequence on its cached prefix; KV that comes in by one whose pages are filled before
anybody can find them. Both give way: where a request lacks a page, all of them end (`give_up`), and readers and
writers learn of it by `KvLostError`. One lock keeps pages from being written after they were given up.
"""

from __future__ import annotations

import itertools
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TypeVar

from pyagent.core.runners.batch import BLOCK_TOKENS, PrefixKey
from pyagent.core.runners.kv_connector import KvLayers, KvLayout, KvLostError, KvPages, MovableKv

_T = TypeVar("_T")
_FIRST_ID = 1 << 62
"""Of sequences that are no request's; requests count from 1."""
_NO_PAGE = 0xFFFF_FFFF
_FOLLOWING = 0
"""Stands for whatever token follows a prefix: the pool leaves a prompt's last one to be computed."""


class _Moving(ABC):
    """A sequence of the pool that no request has, from `open` to `close`. Closed before it is opened, it never is."""

    def __init__(self, transfers: KvTransfers, tokens: Sequence[int], key: PrefixKey) -> None:
        self._transfers = transfers
        self._tokens = list(tokens)
        self._key = key
        self._id = transfers.new_id()

    def open(self) -> bool:
        """Begin; False without memory. Raises `KvLostError`. May wait for a step of the engine."""
        return self._transfers.open(self._id, self._begin)

    @abstractmethod
    def _begin(self, runner: MovableKv) -> bool:
        """Take the sequence's pages; False without memory."""

    def close(self) -> None:
        """Let it go. Safe to call twice, and in any thread."""
        self._transfers.end(self._id)


class OutgoingKv(_Moving):
    """What is cached of a prompt's whole blocks, kept in memory while it is read."""

    num_tokens = 0
    _pages: Sequence[int] = ()

    @property
    def num_pages(self) -> int:
        """Pages it has: of layers that see a window, those in sight of the next token."""
        return len(self._pages)

    def _begin(self, runner: MovableKv) -> bool:
        key = self._key
        self.num_tokens = runner.pool.add(
            self._id,
            [*self._tokens, _FOLLOWING],
            adapter_id=key.adapter_id,
            media_hash=key.media_hash,
            tenant=key.tenant,
            count=False,
        )
        self._pages = runner.pool.pages_in_use(self._id)
        return True

    def read(self, wanted: Sequence[int], first_layer: int, num_layers: int) -> bytes:
        """Return layers of some pages, by number. Raises `KvLostError`."""
        pages = [self._pages[number] for number in wanted]
        data = self._transfers.with_open(self._id, lambda runner: runner.read_layers(pages, first_layer, num_layers))
        self._transfers.num_bytes_read += len(data)
        return data


class IncomingKv(_Moving):
    """KV on its way into memory. Closed before it is finished, it leaves nothing behind."""

    pages = KvPages(0, 0, ())
    _filled: Sequence[int] = ()
    _num_cached = 0

    def _begin(self, runner: MovableKv) -> bool:
        restored = runner.restore(self._id, self._tokens, self._key)
        if restored is None:
            return False
        self._num_cached, slots = restored
        self._filled = [page for page in slots if page != _NO_PAGE]
        wanted = [number for number, page in enumerate(slots) if page != _NO_PAGE]
        self.pages = KvPages(len(self._tokens), len(slots), wanted)
        return True

    def write(self, part: KvLayers, num_pages: int) -> None:
        """Fill layers of so many wanted pages. Raises `ValueError` for bytes that do not fit, and `KvLostError`."""
        first, num, data, page = part
        filled = self._filled[page : page + num_pages]
        self._transfers.with_open(self._id, lambda runner: runner.write_layers(filled, first, num, data))

    def finish(self) -> None:
        """Let the KV be found: all layers are there. Raises `KvLostError`."""
        rest = self._tokens[self._num_cached :]
        self._transfers.with_open(self._id, lambda runner: runner.pool.commit(self._id, rest))


class KvTransfers:
    """What moves of one model's KV. Any thread may call."""

    def __init__(self, runner: MovableKv, layout: KvLayout, token_seconds: Callable[[], float | None]) -> None:
        self.layout = layout
        self._token_seconds = token_seconds
        self._runner: MovableKv | None = runner
        self._lock = threading.Lock()
        self._ids = itertools.count(_FIRST_ID)
        self._open: set[int] = set()
        self._unopened: set[int] = set()
        self.num_bytes_read = 0

    def new_id(self) -> int:
        """Return the id of a sequence that is to be opened. Never waits."""
        sequence_id = next(self._ids)
        self._unopened.add(sequence_id)
        return sequence_id

    @property
    def token_seconds(self) -> float | None:
        """Seconds that computing a prompt's token takes, as measured."""
        return self._token_seconds()

    def num_cached(self, tokens: Sequence[int], key: PrefixKey) -> int:
        """Return how many of a prompt's tokens are cached now, in whole blocks."""
        with self._lock:
            if self._runner is None:
                return 0
            found, _ = self._runner.pool.lookup(
                [*tokens, _FOLLOWING], adapter_id=key.adapter_id, media_hash=key.media_hash, tenant=key.tenant
            )
            return min(found, len(tokens)) // BLOCK_TOKENS * BLOCK_TOKENS

    def hold(self, tokens: Sequence[int], key: PrefixKey) -> OutgoingKv:
        """Return what keeps a prompt's cached blocks in memory, once it is opened."""
        return OutgoingKv(self, tokens, key)

    def receive(self, tokens: Sequence[int], key: PrefixKey) -> IncomingKv:
        """Return what has room for a prompt's whole blocks that come from elsewhere, once it is opened."""
        return IncomingKv(self, tokens, key)

    def open(self, sequence_id: int, begin: Callable[[MovableKv], bool]) -> bool:
        """Begin to move a sequence. Raises `KvLostError` for one that was closed before."""
        with self._lock:
            if sequence_id not in self._unopened:
                raise KvLostError("it was closed before")
            self._unopened.discard(sequence_id)
            if not begin(self._running()):
                return False
            self._open.add(sequence_id)
            return True

    def with_open(self, sequence_id: int, work: Callable[[MovableKv], _T]) -> _T:
        """Do something with a sequence's pages, which stay its own meanwhile. Raises `KvLostError` after its end."""
        with self._lock:
            if sequence_id not in self._open:
                raise KvLostError("the engine needed the memory")
            return work(self._running())

    def give_up(self) -> bool:
        """End all that moves, because its memory is needed; return whether anything did."""
        with self._lock:
            had_any = bool(self._open)
            self._end_all()
            return had_any

    def close(self) -> None:
        """End all that moves, and let the runner go. Safe to call twice."""
        with self._lock:
            self._end_all()
            self._runner = None

    def _end_all(self) -> None:
        for sequence_id in self._open:
            self._running().release(sequence_id)
        self._open.clear()

    def end(self, sequence_id: int) -> None:
        """Let a sequence go, opened or not."""
        with self._lock:
            self._unopened.discard(sequence_id)
            if sequence_id in self._open:
                self._open.discard(sequence_id)
                self._running().release(sequence_id)

    def _running(self) -> MovableKv:
        if self._runner is None:
            raise KvLostError("the model is unloaded")
        return self._runner
