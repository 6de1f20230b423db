"""An engine's life: its states, which may follow which, how many requests it has, and how many owners.

Says whether a request may begin; knows nothing of models, memory or processes. Safe from any thread.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Generator
from enum import Enum
from typing import Self

from pyagent.core.errors import CapacityError, PyAgentError, RequestError

logger = logging.getLogger(__name__)

_RETRY_SECONDS = 1.0


class State(Enum):
    """Where an engine is in its life."""

    STARTING = "starting"
    """Its process comes up; requests wait."""
    READY = "ready"
    DRAINING = "draining"
    """Takes no requests; what runs may finish."""
    ASLEEP = "asleep"
    """Its KV memory is given back. The next request wakes it."""
    DEEP_ASLEEP = "deep asleep"
    """Its models are unloaded too."""
    STOPPED = "stopped"


_NEXT: dict[State, frozenset[State]] = {
    State.STARTING: frozenset({State.READY, State.DRAINING, State.STOPPED}),
    State.READY: frozenset({State.STARTING, State.DRAINING, State.ASLEEP, State.DEEP_ASLEEP, State.STOPPED}),
    State.DRAINING: frozenset({State.READY, State.ASLEEP, State.DEEP_ASLEEP, State.STOPPED}),
    State.ASLEEP: frozenset({State.READY, State.DRAINING, State.STOPPED}),
    State.DEEP_ASLEEP: frozenset({State.READY, State.DRAINING, State.STOPPED}),
    State.STOPPED: frozenset(),
}
_SLEEPING = {1: State.ASLEEP, 2: State.DEEP_ASLEEP}
GRACE_SECONDS = 30.0
"""How long running requests may take to finish before an engine sleeps, unless the caller says otherwise."""


class Shared:
    """An engine with several owners: each closes it once, and the last to do so ends it."""

    _num_owners = 1

    @property
    def is_closed(self) -> bool:
        """Whether its last owner closed it."""
        return self._num_owners <= 0

    def share(self) -> Self:
        """Return the engine with one owner more."""
        self._num_owners += 1
        return self

    def give_up(self) -> bool:
        """Give up one owner's share; return True when it was the last."""
        self._num_owners -= 1
        return self.is_closed


class Arrivals:
    """The requests that have begun and are in no model's queue yet: they wait for a load, or for KV from elsewhere."""

    def __init__(self) -> None:
        self.num_requests = 0
        self.num_prompt_tokens = 0
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def counting(self, num_prompt_tokens: int) -> Generator[None]:
        """Count a request with so many tokens as long as the block runs."""
        self._add(1, num_prompt_tokens)
        try:
            yield
        finally:
            self._add(-1, -num_prompt_tokens)

    def _add(self, num_requests: int, num_prompt_tokens: int) -> None:
        with self._lock:
            self.num_requests += num_requests
            self.num_prompt_tokens += num_prompt_tokens


class LifeCycle:
    """An engine's state, and the requests it has."""

    def __init__(self, state: State = State.READY) -> None:
        self._state = state
        self._num_running = 0
        self._last_left = time.monotonic()
        self._changed = threading.Condition()

    @property
    def state(self) -> State:
        """The state now."""
        return self._state

    @property
    def num_running(self) -> int:
        """Requests that have begun and not ended."""
        return self._num_running

    @property
    def idle_seconds(self) -> float:
        """For how long there has been no request."""
        with self._changed:
            return 0.0 if self._num_running else time.monotonic() - self._last_left

    def become(self, state: State) -> None:
        """Go to another state, or stay. Raises `RequestError`, and changes nothing, when it may not follow."""
        with self._changed:
            if state is not self._state and state not in _NEXT[self._state]:
                raise RequestError(f"the engine is {self._state.value}; it cannot become {state.value}")
            self._state = state
            self._changed.notify_all()

    def replace(self, old: State, new: State) -> None:
        """Go from one state to another, if the engine is in the first."""
        with self._changed:
            if self._state is old:
                self.become(new)

    def enter(self) -> None:
        """Count a request that begins; it wakes a sleeping engine. Raises `CapacityError` when none may begin now."""
        with self._changed:
            if self._state is State.STOPPED:
                raise CapacityError("the engine is stopped; make a new one")
            if self._state is State.DRAINING:
                text = f"the engine is draining; {self._num_running} requests finish, new ones are not taken"
                raise CapacityError(text, retry_after_seconds=_RETRY_SECONDS)
            if self._state in _SLEEPING.values():
                self._state = State.READY
            self._num_running += 1

    def leave(self) -> None:
        """Count a request that ended."""
        with self._changed:
            self._num_running -= 1
            self._last_left = time.monotonic()
            self._changed.notify_all()

    @contextlib.contextmanager
    def entered(self) -> Generator[None]:
        """Count a request while the block runs; raises as `enter` does."""
        self.enter()
        try:
            yield
        finally:
            self.leave()

    def drain(self, grace_seconds: float = GRACE_SECONDS) -> int:
        """Take no more requests; block until none is left, or so long. Returns how many are."""
        self.become(State.DRAINING)
        with self._changed:
            self._changed.wait_for(lambda: self._num_running == 0 or self._state is not State.DRAINING, grace_seconds)
            return self._num_running

    def sleep_when_idle(self, idle_seconds: float, level: int, give_back: Callable[[int], None]) -> None:
        """Sleep each time there was no request for so long; returns when the engine has stopped.

        Nothing is drained for it: `give_back` must leave what is in use alone, and a request that comes meanwhile wins.
        """
        while self._state is not State.STOPPED:
            left = idle_seconds - self.idle_seconds
            if left <= 0 and self._state is State.READY:
                try:
                    give_back(level)
                except PyAgentError as error:  # its process died at this moment, say
                    logger.warning("an idle engine could not give memory back: %s", error)
                with self._changed:
                    if self._state is State.READY and self._num_running == 0:
                        self.become(_SLEEPING[level])
            with self._changed:
                self._changed.wait(left if left > 0 else idle_seconds)

    def sleep(self, level: int, give_back: Callable[[int], None], grace_seconds: float = GRACE_SECONDS) -> None:
        """Drain, call `give_back` with the level to free memory, and sleep. Does nothing when it sleeps so deep.

        Raises `RequestError` for a level there is not; `CapacityError`, and is ready again, when requests still run.
        """
        if level not in _SLEEPING:
            raise RequestError(f"an engine sleeps at level 1 or 2, got {level}", param="level")
        if self._state is State.DEEP_ASLEEP or self._state is _SLEEPING[level]:
            return
        num_left = self.drain(grace_seconds)
        if num_left:
            self.replace(State.DRAINING, State.READY)
            raise CapacityError(f"{num_left} requests still run; the engine stays awake", retry_after_seconds=10.0)
        try:
            give_back(level)
        except BaseException:
            self.replace(State.DRAINING, State.READY)
            raise
        self.replace(State.DRAINING, _SLEEPING[level])
