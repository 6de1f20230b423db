"""Whether a run still gets anywhere: it does not where its calls only repeat, or its scores stay as they are.

A call repeats another when the same agent at the same place was told the same since its last answer, and answered the
same. Rounds, handoffs and spawned agents are no places of their own, items side by side are. Anything new in the run
(an answer, a tool's result, a note, a person's answer, a best score) begins the count anew, so that a run stalls only
as a whole. What is kept is bounded: hashes, and a window of scores for each who reports.
"""

from __future__ import annotations

import re
from collections import OrderedDict, deque
from dataclasses import dataclass, field
from hashlib import blake2b

import msgspec

from pyagent.core.fleet.events import Event, ModelCalled, NoteTaken, QuestionAnswered, ScoreReported, ToolCalled
from pyagent.core.fleet.stability import trend
from pyagent.core.messages import Message

MAX_HASHES = 4_096
MAX_SERIES = 1_024
_STEP = re.compile(r"[^\[#~/]*")
_ITEM = re.compile(r"\[\d+\]")


class StallPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """After how many repeated answers, and scores without a better one, a run has stalled. None is never."""

    max_repeats: int | None = 30
    max_flat_scores: int | None = 30


@dataclass(slots=True)
class Scores:
    """The last scores of one who reports, and how many came since the best."""

    last: deque[float]
    best: float = float("-inf")
    num_since_best: int = 0

    def add(self, score: float) -> bool:
        """Take in a score; return whether it is the best."""
        is_best = score > self.best
        self.best, self.num_since_best = max(score, self.best), 0 if is_best else self.num_since_best + 1
        self.last.append(score)
        return is_best

    @property
    def is_flat(self) -> bool:
        """Whether a whole window has no best score, and its line does not rise either."""
        if self.last.maxlen is None or self.num_since_best < self.last.maxlen:
            return False
        line = trend(self.last)
        return line is None or not line.is_rising


@dataclass(slots=True)
class Stalls:
    """Watches what happens in one run. Scores say more than words: where they are flat no new answer helps."""

    policy: StallPolicy
    num_repeats: int = 0
    _circle: str = ""
    _flat: str = ""
    _seen: OrderedDict[bytes, None] = field(default_factory=OrderedDict[bytes, None])
    _scores: OrderedDict[tuple[str, str, str], Scores] = field(
        default_factory=OrderedDict[tuple[str, str, str], Scores]
    )

    @property
    def reason(self) -> str:
        """Why the run has stalled; empty while it has not."""
        return self._flat or self._circle

    def add(self, event: Event) -> None:
        """Take in what happened. What is new ends a stall that nothing was done about yet."""
        match event:
            case ScoreReported():
                self._add_score(event)
            case QuestionAnswered():
                self._went_on()
            case ModelCalled() if event.error is None:
                said = [(message.role, message.content, message.name) for message in _since_answer(event)]
                calls = [(call.function.name, call.function.arguments) for call in event.tool_calls]
                place = _place(event.step, event.call)
                self._add("model", event.agent, place, said, event.answer, calls, repeats=event.agent)
            case ToolCalled():
                self._add("tool", event.tool, event.arguments, event.output, event.error)
            case NoteTaken():
                self._add("note", event.text)
            case _:
                pass

    def _add(self, *what: object, repeats: str = "") -> None:
        """Count a call that `repeats` by its agent; what is seen the first time is new."""
        try:
            told = msgspec.msgpack.encode(what, enc_hook=repr)
        except (TypeError, ValueError, RecursionError):  # circles, half surrogates: a tool may give anything
            told = repr(what).encode(errors="replace")
        key = blake2b(told, digest_size=16).digest()
        is_new = key not in self._seen
        self._seen[key] = None
        self._seen.move_to_end(key)
        if len(self._seen) > MAX_HASHES:
            self._seen.popitem(last=False)
        if is_new:
            self._went_on()
        elif repeats:
            self.num_repeats += 1
            most = self.policy.max_repeats
            if most is not None and self.num_repeats >= most:
                self._circle = (
                    f"the last {self.num_repeats} answers of models, now of {repeats}, repeat earlier ones to the same "
                    "questions, and nothing else was new; fleet.stalls.repeats is the limit"
                )

    def _add_score(self, event: ScoreReported) -> None:
        window = self.policy.max_flat_scores
        if window is None:
            return
        place = (event.agent, _place(event.step, ""), event.series)
        scores = self._scores.setdefault(place, Scores(deque(maxlen=window)))
        self._scores.move_to_end(place)
        if len(self._scores) > MAX_SERIES:
            self._scores.popitem(last=False)
        is_beginning = bool(event.series) and not scores.last
        if scores.add(event.score) and not is_beginning:  # one search after another is no improvement
            self._improved()
        elif scores.is_flat:
            self._flat = (
                f"none of the last {window} scores of {event.agent} is above {scores.best:g}, and they do not rise; "
                "fleet.stalls.scores is the limit"
            )

    def _went_on(self) -> None:
        self.num_repeats, self._circle = 0, ""

    def _improved(self) -> None:
        """Begin all counts anew: while one agent improves, the run does."""
        self._went_on()
        self._flat = ""
        for scores in self._scores.values():
            scores.num_since_best = 0


def _since_answer(event: ModelCalled) -> list[Message]:
    """Return what the model was told after its last answer."""
    places = [place for place, message in enumerate(event.messages) if message.role == "assistant"]
    return event.messages[places[-1] + 1 if places else 0 :]


def _place(step: str, call: str) -> str:
    """Return the top step and the items that a call is in, without rounds, tries and numbers of calls."""
    found = _STEP.match(step)
    return (found[0] if found else "") + "".join(_ITEM.findall(step) + _ITEM.findall(call))
