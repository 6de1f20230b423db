"""A request's logits processors, and how each changes the rows of a step.

What a plugin's code raises, writes or returns wrongly becomes the reason why the rows concerned cannot go on. A
function of a request sees that request's row; a batch processor those of all requests that name it: when it fails, all
of them end, and the next request gets a new one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, cast

from pyagent.core.logits_processors import (
    AddedRow,
    BatchLogitsProcessor,
    BatchLogitsProcessorFactory,
    BatchUpdate,
    BroughtLogitsProcessor,
    LogitsProcessorFactory,
    RequestLogitsProcessor,
    Vocabulary,
)
from pyagent.infrastructure.engine.logits.batch_rows import change_rows
from pyagent.infrastructure.engine.logits.bounded_thread import LeftBehind
from pyagent.infrastructure.engine.logits.scratch import Scratch
from pyagent.infrastructure.engine.logits.token_view import TokenView

if TYPE_CHECKING:
    from pyagent._rust import LogitsRows
    from pyagent.core.messages import JsonObject
    from pyagent.infrastructure.engine.request import Request

logger = logging.getLogger("pyagent.plugins")
_MAX_TOLD = 200


def _unchanged(prompt: Sequence[int], output: Sequence[int], logits: memoryview[float]) -> None:
    """Change nothing: what a factory means that makes nothing for some arguments."""


@dataclass(slots=True, eq=False)
class RowProcessor:
    """One processor of one answer: a function of its own, or its part in a batch processor.

    The plugin gets copies of `args`: what it does to them is seen by no other answer or request.
    """

    brought: BroughtLogitsProcessor
    args: JsonObject
    vocabulary: Vocabulary
    batch: BatchProcessor | None = None
    function: RequestLogitsProcessor | None = None

    @property
    def changes_nothing(self) -> bool:
        """Whether the factory made nothing for these arguments."""
        return self.function is _unchanged

    def make(self) -> None:
        """Make what it needs, unless it is there. Raises what the plugin does, `TypeError` for what is no function."""
        if self.batch is not None:
            self.batch.ready()
        elif self.function is None:
            made: object = cast("LogitsProcessorFactory", self.brought.factory).make(
                deepcopy(self.args), self.vocabulary
            )
            if made is not None and not callable(made):
                raise TypeError(f"`make` returned {made!r:.80}, expected a function or None")
            self.function = _unchanged if made is None else made

    def for_another(self) -> RowProcessor:
        """Return the same for another answer to the request: its function is made when its first row is there."""
        return self if self.changes_nothing else replace(self, function=None)


@dataclass(frozen=True, slots=True)
class Row:
    """A request's row in a step: its segment, and the processor that is at it."""

    segment: int
    request: Request
    processor: RowProcessor


Faults = dict[int, str]


def process_row(row: Row, logits: LogitsRows, scratch: Scratch, faults: Faults) -> None:
    """Have a request's own function change its row; a fault is noted by the row's segment."""
    processor, request, segment = row.processor, row.request, row.segment
    brought = processor.brought
    prompt = TokenView(request.tokens, 0, request.num_prompt_tokens)
    output = TokenView(request.tokens, request.num_prompt_tokens)

    def call(view: memoryview[float]) -> object:
        processor.make()
        return cast("RequestLogitsProcessor", processor.function)(prompt, output, view)

    try:
        wrong = _changed(call, [segment], (logits.vocab_size,), logits, scratch)
    except LeftBehind:
        raise
    except BaseException as error:  # a plugin's failure must not end the step, SystemExit neither
        logger.warning(brought.fault("failed"), exc_info=error)
        faults[segment] = brought.fault(f"raised {type(error).__name__}: {str(error)[:_MAX_TOLD]}")
        return
    faults.update({segment: brought.fault(what) for segment, what in wrong.items()})


def _changed(
    call: Callable[[memoryview[float]], object],
    segments: Sequence[int],
    shape: tuple[int, ...],
    logits: LogitsRows,
    scratch: Scratch,
) -> Faults:
    """Have rows changed; return what is wrong with them afterwards."""
    with scratch.lend(shape) as view:
        logits.read(segments, view)
        returned = call(view)
        if returned is None or returned is view:
            return logits.write(segments, view)
        given = memoryview(returned)  # type: ignore[arg-type]
        if given.format != "f" or given.nbytes != view.nbytes or not given.c_contiguous:
            what = f"returned {given.nbytes // given.itemsize} values of format {given.format!r}"
            wanted = f"{view.nbytes // view.itemsize} floats of 32 bits ('f'), or None"
            return dict.fromkeys(segments, f"{what}, expected {wanted}")
        return logits.write(segments, given)


@dataclass(slots=True)
class _Live:
    """A batch processor at work, and the ids of the requests whose its rows are: a request that ended is not held."""

    processor: BatchLogitsProcessor
    rows: list[int]


class BatchProcessor:
    """The batch processor of a model, made anew after it failed."""

    def __init__(self, brought: BroughtLogitsProcessor, vocabulary: Vocabulary) -> None:
        self.brought = brought
        self._vocabulary = vocabulary
        self._live: _Live | None = None
        self._scratch = Scratch()

    def ready(self) -> _Live:
        """Make it, unless it is there. Any thread."""
        if self._live is None:
            factory = cast("BatchLogitsProcessorFactory", self.brought.factory)
            made = _Live(factory.make_batch(self._vocabulary), [])
            self._live = self._live or made
        return self._live

    def drop(self) -> None:
        """Forget it, and what it knows of its rows."""
        self._live = None
        self._scratch = Scratch()

    def process(self, rows: Sequence[Row], logits: LogitsRows, faults: Faults) -> None:
        """Have the rows of a step changed."""
        live: _Live | None = None
        try:
            live = self.ready()
            wrong = self._process(live, rows, logits)
        except LeftBehind:
            raise
        except BaseException as error:  # a plugin's failure must not end the step, SystemExit neither
            logger.warning(self.brought.fault("failed"), exc_info=error)
            # Its text may tell of another request.
            wrong = {row.segment: f"raised {type(error).__name__}" for row in rows}
            if self._live is live:
                self.drop()
        faults.update({segment: self.brought.fault(what) for segment, what in wrong.items()})

    def _process(self, live: _Live, rows: Sequence[Row], logits: LogitsRows) -> Faults:
        id_to_row = {row.request.id: row for row in rows}
        changes = change_rows(live.rows, list(id_to_row))
        live.rows = changes.rows
        added = [_added(place, id_to_row[request_id]) for place, request_id in changes.added]
        update = BatchUpdate(len(live.rows), changes.removed, added, changes.moved)
        live.processor.update_state(None if changes.is_none else update)
        segments = [id_to_row[request_id].segment for request_id in live.rows]
        return _changed(live.processor.apply, segments, (len(segments), logits.vocab_size), logits, self._scratch)


def _added(place: int, row: Row) -> AddedRow:
    log, num_prompt = row.request.tokens, row.request.num_prompt_tokens
    return AddedRow(place, deepcopy(row.processor.args), TokenView(log, 0, num_prompt), TokenView(log, num_prompt))
