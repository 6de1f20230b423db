"""The masks of a step's rows: what grammars allow, what thinking leaves open, and the ends that come too early.

A mask has one bit a token, set where it may be sampled (`core/grammars.py`). All grammars of a step are asked in one
call for each backend, into memory that is kept from step to step.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from pyagent.core.grammars import mask_bytes

if TYPE_CHECKING:
    from pyagent.infrastructure.engine.grammar import Grammar
    from pyagent.infrastructure.engine.request import Request

_Asked = list[tuple["Grammar", int]]


class StepMasks:
    """Compute masks for one vocabulary. Only the engine's thread calls."""

    def __init__(self, vocab_size: int) -> None:
        self._row_bytes = mask_bytes(vocab_size)
        self.all = b"\xff" * self._row_bytes
        """A mask that allows every token."""
        self._none = bytes(self._row_bytes)
        self._memory = bytearray()

    def compute(self, requests: Sequence[Request]) -> tuple[dict[int, bytes], dict[int, BaseException]]:
        """Return masks by row, none where every token is allowed; and what the grammars of other rows failed with."""
        masked = [(row, request) for row, request in enumerate(requests) if request.is_masked]
        memory = self._room_for(len(masked))
        asked = [(grammar, place) for place, (_, one) in enumerate(masked) if (grammar := _asked_grammar(one))]
        failed = dict(fill(asked, memory))
        masks: dict[int, bytes] = {}
        faults: dict[int, BaseException] = {}
        for place, (row, request) in enumerate(masked):
            if place in failed:
                faults[row] = failed[place]
            else:
                view = memory[place * self._row_bytes : (place + 1) * self._row_bytes]
                self._finish(request, view)
                masks[row] = bytes(view)
        return masks, faults

    def _room_for(self, num_rows: int) -> memoryview:
        if len(self._memory) < num_rows * self._row_bytes:
            self._memory = bytearray(num_rows * self._row_bytes)
        return memoryview(self._memory)

    def _finish(self, request: Request, mask: memoryview) -> None:
        """Change what the request's grammar allows, if it was asked, to what may be sampled."""
        if request.forced_token is not None:
            mask[:] = self._none
            allow(mask, [request.forced_token])
            return
        if request.is_outside_grammar:
            begun = {token for token in request.opener_ids if allows(mask, token)} if request.opener_ids else ()
            mask[:] = self.all
            if request.grammar is not None:  # thinking: no end, and no beginning of a call that the grammar has not
                forbid(mask, request.end_ids | request.opener_ids.difference(begun))
        elif not request.num_output_tokens:
            allow(mask, request.reasoning_ids)
        if request.num_output_tokens < request.params.min_tokens and request.end_ids:
            before = bytes(mask)
            forbid(mask, request.end_ids)
            if bytes(mask) == self._none:  # where the form is at its end, nothing else may follow
                mask[:] = before


def allows(mask: memoryview, token: int) -> bool:
    """Whether a mask allows a token."""
    return bool(mask[token // 8] >> token % 8 & 1)


def allow(mask: memoryview, tokens: Iterable[int]) -> None:
    """Allow these tokens too."""
    for token in tokens:
        mask[token // 8] |= 1 << token % 8


def forbid(mask: memoryview, tokens: Iterable[int]) -> None:
    """Allow these tokens no more; a mask may be shorter than the vocabulary."""
    for token in tokens:
        if token < 8 * len(mask):
            mask[token // 8] &= ~(1 << token % 8) & 0xFF


def _asked_grammar(request: Request) -> Grammar | None:
    """The grammar whose mask is needed: while the model thinks, only to tell which calls it may begin."""
    if request.forced_token is not None:
        return None
    return None if request.is_outside_grammar and not request.opener_ids else request.grammar


def fill(asked: _Asked, memory: memoryview) -> Iterator[tuple[int, BaseException]]:
    """Have each backend write the masks of its grammars to their places; yield the places where that failed."""
    backends = {id(grammar.backend): grammar.backend for grammar, _ in asked}
    for backend in backends.values():
        rows = [(grammar.matcher, place) for grammar, place in asked if grammar.backend is backend]
        try:
            backend.fill_masks(rows, memory)
        except BaseException:  # noqa: BLE001 - each alone, to find the one that fails; a native panic is no `Exception`
            for row in rows:
                try:
                    backend.fill_masks([row], memory)
                except BaseException as error:  # noqa: BLE001
                    yield row[1], error
