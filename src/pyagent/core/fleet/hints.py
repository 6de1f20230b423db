"""What a run knows of its prompts' future, told to the backend: who waits for a tool, who is back, who is done.

An agent that has asked the model has a computed prompt there. While it is away its prompt is retained, for as long as
such tools and agents took lately; when it is back it is about to ask again; when it is done all but its system text
may go first. Spawned agents' system texts are retained for their siblings until the run ends. Knows no backend, only a
place to tell.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import takewhile

from pyagent.core.messages import Hint, Message
from pyagent.core.moving_average import moving_average

_NEWEST_WEIGHT = 0.3
_MAX_NAMES = 10_000
_SOON_SECONDS = 5.0
"""How long the prompt of an agent that is back is retained: it is about to ask again."""


@dataclass(slots=True)
class Durations:
    """How long tools and agents took lately: an average in which each new time has three tenths."""

    name_to_seconds: dict[str, float] = field(default_factory=dict[str, float])

    def expected(self, name: str) -> float | None:
        """Return the time it will take, as far as is known."""
        return self.name_to_seconds.get(name)

    def note(self, name: str, seconds: float) -> None:
        """Record how long it took."""
        before = self.name_to_seconds.get(name)
        if before is None and len(self.name_to_seconds) >= _MAX_NAMES:
            return
        self.name_to_seconds[name] = moving_average(before, seconds, _NEWEST_WEIGHT)


@dataclass(slots=True)
class RunHints:
    """The hints of one run. `tell` takes them; it must return at once and not raise."""

    run: str
    tell: Callable[[Hint], None]
    durations: Durations
    tenant: str = ""
    _leads: dict[str, list[Message]] = field(default_factory=dict[str, list[Message]])
    _shared: set[tuple[str, ...]] = field(default_factory=set[tuple[str, ...]])
    _num_away: Counter[str] = field(default_factory=Counter[str])

    def answered(self, session: str, messages: Sequence[Message], *, is_spawned: bool) -> None:
        """The model answered an agent: its prompt is computed, and for a spawned one its siblings' beginning too."""
        lead = list(takewhile(lambda message: message.role in {"system", "developer"}, messages))
        self._leads[session] = lead
        texts = tuple(message.text for message in lead)
        if is_spawned and lead and texts not in self._shared:
            self._shared.add(texts)
            self.tell(Hint(kind="retain", tenant=self.tenant, run=self.run, messages=lead))

    @contextmanager
    def away(self, session: str, what: str) -> Generator[None]:
        """An agent waits for something else than the model: `what` names it (`tool search`)."""
        started = time.monotonic()
        self._num_away[session] += 1
        if session in self._leads and self._num_away[session] == 1:
            expected = self.durations.expected(what)
            self.tell(Hint(kind="retain", tenant=self.tenant, session=session, expected_seconds=expected))
        try:
            yield
        finally:
            self.durations.note(what, time.monotonic() - started)
            self._num_away[session] -= 1
            if session in self._leads and self._num_away[session] == 0:
                self.tell(Hint(kind="retain", tenant=self.tenant, session=session, expected_seconds=_SOON_SECONDS))

    def done(self, session: str) -> None:
        """An agent gave its result: it will not ask again."""
        if session in self._leads:
            lead = self._leads.pop(session)
            self.tell(Hint(kind="demote", tenant=self.tenant, session=session, messages=lead))

    def end(self) -> None:
        """The run is over."""
        self.tell(Hint(kind="release", tenant=self.tenant, run=self.run))
