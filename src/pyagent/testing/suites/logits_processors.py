"""What every logits processor must do, over a vocabulary of single bytes.

    class TestAim(LogitsProcessorConformance):
        args = ({"tokens": 8}, {"tokens": 100})

        def make(self):
            return AimFactory()

Both forms are tested by the same rules: a row's logits after the processor follow from its arguments and its tokens.
"""

from __future__ import annotations

import math
import random
from array import array
from collections.abc import Mapping, Sequence
from typing import ClassVar, cast

import pytest

from pyagent.core.errors import RequestError
from pyagent.core.logits_processors import (
    AddedRow,
    BatchLogitsProcessorFactory,
    BatchUpdate,
    BroughtLogitsProcessor,
    LogitsProcessorFactory,
    Vocabulary,
)
from pyagent.core.messages import JsonObject
from pyagent.testing.suites.checks import check_host_takes
from pyagent.testing.suites.vocabulary import ByteVocabulary

Factory = LogitsProcessorFactory | BatchLogitsProcessorFactory
Row = tuple[JsonObject, list[int], list[int]]
"""A request's arguments, the tokens of its prompt, and those of its answer so far."""


class LogitsProcessorConformance:
    """Derive from it, and define `make`; `args` are arguments that requests may give."""

    args: ClassVar[Sequence[JsonObject]] = ({},)

    def make(self) -> Factory:
        """Return the factory."""
        raise NotImplementedError

    def vocabulary(self) -> Vocabulary:
        """Return the tokens of the test's model: all bytes, and an end."""
        return ByteVocabulary()

    def test_host_takes_the_processor(self) -> None:
        """It has a name, a schema of its arguments, `is_argmax_invariant`, and `make` or `make_batch`."""
        check_host_takes("logits_processors", [self.make()])
        assert self.args, "`args` is empty: nothing would be tested"
        for args in self.args:
            self._brought().check_args(args, "logits_processors")

    def test_wrong_arguments_are_refused(self) -> None:
        """Arguments of another type do not follow the schema, so that requests with them are refused."""
        properties = cast("Mapping[str, JsonObject]", self.make().arguments.get("properties", {}))
        for name, schema in properties.items():
            if "type" not in schema:
                continue
            wrong = {**self.args[0], name: {"of": "another type"} if schema["type"] != "object" else 7}
            with pytest.raises(RequestError):
                self._brought().check_args(wrong, "logits_processors")

    def test_same_tokens_give_the_same_logits(self) -> None:
        """What is done follows from the arguments and the tokens: made anew and asked again, it is the same."""
        for row in self._rows():
            assert self._alone(row) == self._alone(row), f"asked again with {row[0]}, it does something else"

    def test_rows_do_not_mix(self) -> None:
        """In a batch of others, and moved from row to row, a request's logits are those it has alone."""
        rows = self._rows()
        alone = [self._alone(row) for row in rows]
        assert self._together(rows) == alone, "beside others, a request's logits are others"
        assert self._together(rows, is_moved=True) == alone[1:], "moved to another row, a request's logits are others"

    def test_something_can_be_sampled(self) -> None:
        """After it some token is still possible, and no logit is NaN or infinitely high."""
        for row in self._rows():
            logits = self._alone(row)
            assert not any(math.isnan(one) or one == math.inf for one in logits), "a logit is NaN, or infinite"
            assert any(one > -math.inf for one in logits), "it excludes every token"

    def test_argmax_stays_where_it_says_so(self) -> None:
        """One that says `is_argmax_invariant` leaves the likeliest token the likeliest: greedy requests go without."""
        if not self.make().is_argmax_invariant:
            pytest.skip("it does not say so")
        before = self._logits()
        best = before.index(max(before))
        for row in self._rows():
            after = self._alone(row)
            assert after[best] == max(after), f"with {row[0]} another token is the likeliest"

    def test_tokens_are_left_as_they_are(self) -> None:
        """It changes logits, and neither the tokens nor the arguments it is given."""
        for args, prompt, output in self._rows():
            given = (dict(args), list(prompt), list(output))
            self._alone(given)
            assert given == (args, prompt, output), "it changes what it is given"

    # -- both forms ------------------------------------------------------------------------------------------------

    def _brought(self) -> BroughtLogitsProcessor:
        return BroughtLogitsProcessor.of(self.make(), "under test")

    def _rows(self) -> list[Row]:
        chance = random.Random(3)  # noqa: S311 - no secret
        lengths = [(0, 0), (5, 0), (5, 3), (40, 24), (3, 200)]
        return [
            (args, chance.choices(range(256), k=num_prompt), chance.choices(range(256), k=num_output))
            for args in self.args
            for num_prompt, num_output in lengths
        ]

    def _logits(self) -> list[float]:
        chance = random.Random(5)  # noqa: S311 - no secret
        return list(array("f", [chance.gauss(0, 4) for _ in range(self.vocabulary().size)]))

    def _alone(self, row: Row) -> list[float]:
        return self._together([row])[0]

    def _together(self, rows: Sequence[Row], *, is_moved: bool = False) -> list[list[float]]:
        """Return each row's logits; `is_moved` has the first leave, and the last take its place."""
        factory = self.make()
        if hasattr(factory, "make_batch"):
            return self._batched(cast("BatchLogitsProcessorFactory", factory), rows, is_moved=is_moved)
        made = [self._one_by_one(cast("LogitsProcessorFactory", factory), row) for row in rows]
        return made[1:] if is_moved else made

    def _one_by_one(self, factory: LogitsProcessorFactory, row: Row) -> list[float]:
        args, prompt, output = row
        process = factory.make(args, self.vocabulary())
        logits = array("f", self._logits())
        if process is None:
            return list(logits)
        returned = process(prompt, output, memoryview(logits))
        return list(logits if returned is None else memoryview(cast("bytes", returned)).cast("B").cast("f"))

    def _batched(
        self, factory: BatchLogitsProcessorFactory, rows: Sequence[Row], *, is_moved: bool
    ) -> list[list[float]]:
        processor = factory.make_batch(self.vocabulary())
        size = self.vocabulary().size

        def applied(num_rows: int) -> list[list[float]]:
            flat = array("f", self._logits() * num_rows)
            processor.apply(memoryview(flat).cast("B").cast("f", [num_rows, size]))
            return [list(flat[row * size : (row + 1) * size]) for row in range(num_rows)]

        added = [AddedRow(place, *row) for place, row in enumerate(rows)]
        processor.update_state(BatchUpdate(len(rows), [], added, []))
        if not is_moved:
            return applied(len(rows))
        processor.update_state(BatchUpdate(len(rows) - 1, [0], [], [(len(rows) - 1, 0)]))
        last, *others = applied(len(rows) - 1)
        return [*others, last]
