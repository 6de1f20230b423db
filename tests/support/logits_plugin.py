"""A plugin of logits processors for tests: the same walk in both forms, and one that fails in every way."""

from __future__ import annotations

import math
import os
import threading
from array import array
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from pyagent.plugin import AddedRow, BatchUpdate, Vocabulary, hookimpl

MINUS = -math.inf
WAKE = threading.Event()
"""Set by the test when a processor that `sleeps` may go on."""


class Step:
    """What tokens lead to: a hash that is carried on from step to step, as costly processors carry their state."""

    def __init__(self, row: AddedRow, size: int) -> None:
        self.row, self.size = row, size
        self.num_seen = 0
        self.value = sum(row.prompt_token_ids) + 7 * int(row.args.get("key", 0))

    def favourite(self) -> int:
        for token in self.row.output_token_ids[self.num_seen :]:
            self.value = (self.value * 31 + token + 1) % 1_000_003
            self.num_seen += 1
        return self.value % self.size


class Walk:
    """Favours a token that the tokens before decide, in a function of each request."""

    name = "walk"
    arguments: ClassVar[dict[str, Any]] = {"properties": {"key": {"type": "integer"}}, "additionalProperties": False}
    is_argmax_invariant = False

    def make(self, args: dict[str, Any], vocabulary: Vocabulary) -> Callable[..., None]:
        steps: list[Step] = []

        def walk(prompt: Sequence[int], output: Sequence[int], logits: memoryview) -> None:
            if not steps:
                steps.append(Step(AddedRow(0, args, prompt, output), vocabulary.size))
            # the views are new ones each time, over the same tokens
            logits[steps[0].favourite()] += 6.0

        return walk


class Crowd:
    """The same for all rows at once, by their places."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.steps: list[Step | None] = []

    def update_state(self, update: BatchUpdate | None) -> None:
        if update is None:
            return
        for row in update.removed:
            assert self.steps[row] is not None
            self.steps[row] = None
        for added in update.added:
            self.steps += [None] * (added.row + 1 - len(self.steps))
            assert self.steps[added.row] is None
            self.steps[added.row] = Step(added, self.size)
        for source, target in update.moved:
            assert self.steps[target] is None
            self.steps[target], self.steps[source] = self.steps[source], None
        del self.steps[update.batch_size :]

    def apply(self, logits: memoryview) -> None:
        assert logits.shape == (len(self.steps), self.size)
        for row, step in enumerate(self.steps):
            assert step is not None
            logits[row, step.favourite()] += 6.0


class CrowdFactory:
    name = "crowd"
    arguments: ClassVar[dict[str, Any]] = Walk.arguments
    is_argmax_invariant = False

    def make_batch(self, vocabulary: Vocabulary) -> Crowd:
        return Crowd(vocabulary.size)


class Only:
    """Makes all tokens but some unlikely, whatever they were: what was excluded as well."""

    name = "only"
    arguments: ClassVar[dict[str, Any]] = {
        "properties": {"tokens": {"type": "array", "items": {"type": "integer"}}},
        "required": ["tokens"],
    }
    is_argmax_invariant = False

    def make(self, args: dict[str, Any], vocabulary: Vocabulary) -> Callable[..., object]:
        if unknown := [token for token in args["tokens"] if not 0 <= token < vocabulary.size]:
            raise ValueError(f"there is no token {unknown[0]}")
        row = array("f", [0.0]) * vocabulary.size
        for token in args["tokens"]:
            row[token] = 50.0
        return lambda prompt, output, logits: row


class GreedyArms:
    """Takes a token out of its args with each call: a plugin that keeps what it was given."""

    name = "greedy-arms"
    arguments: ClassVar[dict[str, Any]] = Only.arguments
    is_argmax_invariant = False

    def make(self, args: dict[str, Any], vocabulary: Vocabulary) -> Callable[..., None]:
        token = args["tokens"].pop()

        def favour(prompt: Sequence[int], output: Sequence[int], logits: memoryview) -> None:
            logits[token] = 100.0

        return favour


class Soften:
    """Halves all logits, which changes no greedy answer."""

    name = "soften"
    arguments: ClassVar[dict[str, Any]] = {}
    is_argmax_invariant = True
    num_calls = 0

    def make(self, args: dict[str, Any], vocabulary: Vocabulary) -> Callable[..., None]:
        def soften(prompt: Sequence[int], output: Sequence[int], logits: memoryview) -> None:
            Soften.num_calls += 1
            logits[:] = array("f", [value / 2 for value in logits])

        return soften


kept: list[memoryview] = []


def misbehave(how: str, logits: memoryview) -> object:
    match how:
        case "raises":
            raise KeyError("secret of another")
        case "exits":
            raise SystemExit(3)
        case "dies":
            os._exit(3)
        case "spins":
            while True:
                pass
        case "sleeps":
            WAKE.wait(60)
        case "nan":
            logits.cast("B").cast("f")[5] = math.nan
        case "infinite":
            logits.cast("B").cast("f")[5] = math.inf
        case "none left":
            flat = logits.cast("B").cast("f")
            flat[:] = array("f", [MINUS]) * len(flat)
        case "short":
            return array("f", [0.0, 1.0])
        case "long":
            return array("f", [0.0]) * (1 + logits.nbytes // 4)
        case "doubles":
            return array("d", [0.0]) * (logits.nbytes // 8)
        case "text":
            return "nothing of the kind"
        case "keeps":
            kept.append(logits[:] if logits.ndim == 1 else logits)
    return None


HOWS: dict[str, Any] = {
    "properties": {"how": {"type": "string"}, "after": {"type": "integer"}},
    "additionalProperties": False,
}


class Bad:
    """Fails as it is told, in a function of one request."""

    name = "bad"
    arguments: ClassVar[dict[str, Any]] = HOWS
    is_argmax_invariant = False

    def make(self, args: dict[str, Any], vocabulary: Vocabulary) -> Callable[..., object] | None:
        match args.get("how"):
            case "fails to be made":
                raise RuntimeError("no table")
            case "refuses":
                raise ValueError("how cannot be so")
            case "hangs when made":
                threading.Event().wait(1.5)
            case "is no function":
                return 5  # type: ignore[return-value]
            case "is nothing":
                return None

        def bad(prompt: Sequence[int], output: Sequence[int], logits: memoryview) -> object:
            return misbehave(args.get("how", ""), logits) if len(output) >= args.get("after", 2) else None

        return bad


class BadBatch:
    """Fails as it is told for any of its rows."""

    name = "bad-batch"
    arguments: ClassVar[dict[str, Any]] = HOWS
    is_argmax_invariant = False

    def make_batch(self, vocabulary: Vocabulary) -> BadBatch:
        return BadBatch()

    def __init__(self) -> None:
        self.rows: list[AddedRow] = []

    def update_state(self, update: BatchUpdate | None) -> None:
        if update is not None and update.added:
            self.rows = list(update.added)

    def apply(self, logits: memoryview) -> object:
        for row in self.rows:
            if len(row.output_token_ids) >= row.args.get("after", 2):
                return misbehave(row.args.get("how", ""), logits)
        return None


@hookimpl
def pyagent_register_logits_processors() -> list[object]:
    return [Walk(), CrowdFactory(), Only(), GreedyArms(), Soften(), Bad(), BadBatch()]
