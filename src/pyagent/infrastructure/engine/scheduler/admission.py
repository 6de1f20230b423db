"""Admission control by KV memory: which waiting request may start, given what running ones hold and still need.

A request is admitted when its prompt and its expected output fit beside the expected growth of the running requests,
and a small reserve (the watermark) is left. The expected output is `max_tokens` or, when that is less, the p90 of the
last outputs of its request class: a caller that sets no limit would otherwise reserve a whole context. An estimate that
is too low costs a preemption, never a wrong text.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from pyagent.core.runners.batch import BLOCK_TOKENS

if TYPE_CHECKING:
    from pyagent.core.runners.runner import Runner
    from pyagent.infrastructure.engine.request import Request

_FIRST_GUESS = 256
"""Output tokens expected of a request before any of its class has finished."""
_MORE = 4
"""Further blocks expected of a request that has outgrown its estimate."""
_WATERMARK = 0.01
"""Fraction of the free memory that admission keeps free, at least one block."""


class OutputLengths:
    """Output lengths of the last requests of each class."""

    def __init__(self) -> None:
        self._lengths: dict[str, deque[int]] = {}
        self._guesses: dict[str, int] = {}

    def note(self, request: Request) -> None:
        """Record a request that finished by itself."""
        lengths = self._lengths.setdefault(request.request_class, deque(maxlen=64))
        lengths.append(request.num_output_tokens)
        self._guesses[request.request_class] = sorted(lengths)[len(lengths) * 9 // 10]

    def expected(self, request: Request) -> int:
        """Return the output tokens to expect of a request in all."""
        guess = self._guesses.get(request.request_class, _FIRST_GUESS)
        return min(request.max_tokens, max(guess, request.num_output_tokens + _MORE * BLOCK_TOKENS))


class KvAdmission:
    """Reserve KV memory for running requests, and count the pages they are still expected to need."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._growth = 0  # pages that running requests are expected to need yet
        self._block_pages: dict[int, int] = {}
        self.lengths = OutputLengths()

    @property
    def spare_pages(self) -> int:
        """Free pages that no running request is expected to need."""
        return self._runner.free_pages - self._growth

    def has_room(self, request: Request, num_cached: int = 0, num_taken: int = 0) -> bool:
        """Return whether a request fits that finds `num_cached` tokens cached, in `num_taken` pages counted as free."""
        free = self._runner.free_pages - num_taken
        watermark = max(1, int(free * _WATERMARK))
        needed = self._expected_pages(request) - self._num_pages(num_cached)
        return max(0, needed) + self._growth + watermark <= free

    def pages_short(self, request: Request) -> int:
        """Return the pages that a waiting request lacks to start when none of its prefix is cached."""
        watermark = max(1, int(self._runner.free_pages * _WATERMARK))
        return max(0, self._expected_pages(request) + watermark - self.spare_pages)

    def hold(self, request: Request) -> None:
        """Count what a request that starts is expected to need."""
        request.num_pages = self._num_pages(request.num_reserved)
        request.num_expected = max(request.num_pages, self._expected_pages(request))
        self._growth += request.num_expected - request.num_pages

    def reserve(self, request: Request, num_tokens: int) -> bool:
        """Reserve room for `num_tokens` of the log in all; False, and nothing changed, when memory is short."""
        if num_tokens <= request.num_reserved:
            return True
        if not self._runner.reserve(request.id, num_tokens):
            return False
        request.num_reserved = -(-num_tokens // BLOCK_TOKENS) * BLOCK_TOKENS
        before, request.num_pages = request.num_pages, self._num_pages(request.num_reserved)
        self._growth -= request.num_pages - before
        if request.num_pages > request.num_expected:
            more = self._num_pages(request.num_reserved + _MORE * BLOCK_TOKENS)
            self._growth += more - request.num_expected
            request.num_expected = more
        return True

    def reserve_most(self, request: Request, start: int, wanted: int) -> int:
        """Reserve room for up to `wanted` tokens from `start`, as many as memory allows; return how many."""
        if not self.reserve(request, start + wanted):
            free_blocks = self._runner.free_pages // self._runner.pages_per_block
            wanted = min(wanted, request.num_reserved + free_blocks * BLOCK_TOKENS - start)
            if wanted <= 0 or not self.reserve(request, start + wanted):
                return 0
        return wanted

    def drop(self, request: Request) -> None:
        """Stop counting a request. The caller releases its blocks once no step computes with them."""
        self._growth -= request.num_expected - request.num_pages
        request.num_expected = request.num_pages = request.num_reserved = 0

    def _expected_pages(self, request: Request) -> int:
        """Return the pages for the prompt and the expected output."""
        return self._num_pages(request.num_prompt_tokens + self.lengths.expected(request))

    def _num_pages(self, num_tokens: int) -> int:
        """Return the runner's page count, cached by number of blocks."""
        blocks = -(-num_tokens // BLOCK_TOKENS)
        pages = self._block_pages.get(blocks)
        if pages is None:
            pages = self._block_pages[blocks] = self._runner.num_pages(blocks * BLOCK_TOKENS)
        return pages
