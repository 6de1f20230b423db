"""Grammars that are being compiled: a few at a time, fewer of one tenant, each given up when it takes too long.

No thread can be ended from outside: one that was given up goes on, and counts against its tenant alone.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial

from pyagent.core.errors import CapacityError, RequestError
from pyagent.core.grammars import GrammarSource
from pyagent.core.structured_output.deep_stack import start_deep
from pyagent.core.structured_output.errors import CANNOT_ENFORCE
from pyagent.infrastructure.engine.grammar.grammar import Grammar

_MAX_COMPILING, _MAX_OF_A_TENANT, _MAX_STUCK = 3, 2, 2


class Compilation(Future[Grammar]):
    """What all requests of a tenant for the same grammar wait for."""

    def __init__(self, key: tuple[str, GrammarSource, str], work: Callable[[], Grammar]) -> None:
        """`key` says whose grammar it is, of what, and by which backend; `work` compiles it."""
        super().__init__()
        self.key = key
        self.work = work
        self.is_given_up = False

    @property
    def tenant(self) -> str:
        """Whose grammar it is."""
        return self.key[0]


class CompileQueue:
    """Compiles in threads of their own. Next comes a grammar of the tenant that has the fewest under way."""

    def __init__(
        self,
        limit_seconds: float,
        is_opening: Callable[[], bool],
        on_late: Callable[[Compilation, Grammar | None], None],
    ) -> None:
        """While `is_opening`, no grammar is given up; `on_late` is told how one ended that was."""
        self._limit_seconds = limit_seconds
        self._is_opening = is_opening
        self._on_late = on_late
        self._lock = threading.Lock()
        self._waiting: list[Compilation] = []
        self._running: list[Compilation] = []
        self._stuck: list[Compilation] = []

    def add(self, one: Compilation) -> None:
        """Compile this when its turn comes."""
        with self._lock:
            self._waiting.append(one)
        self._start_next()

    def check(self, tenant: str) -> None:
        """Raise `CapacityError` while grammars of this tenant's go on compiling that were given up."""
        with self._lock:
            num_stuck = sum(one.tenant == tenant for one in self._stuck)
        if num_stuck >= _MAX_STUCK:
            text = (
                "grammars asked for before still compile, though they were given up; no other is begun until they end"
            )
            raise CapacityError(text, retry_after_seconds=self._limit_seconds)

    def _start_next(self) -> None:
        while (one := self._next()) is not None:
            try:
                start_deep(partial(self._run, one), "pyagent-grammar")
            except RuntimeError as error:  # the system has no thread left
                self._settle(one, error)

    def _next(self) -> Compilation | None:
        with self._lock:
            counts = Counter(one.tenant for one in self._running)
            first = min(self._waiting, key=lambda one: counts[one.tenant], default=None)
            if first is None or counts.total() >= _MAX_COMPILING or counts[first.tenant] >= _MAX_OF_A_TENANT:
                return None
            self._waiting.remove(first)
            self._running.append(first)
            return first

    def _run(self, one: Compilation) -> None:
        try:
            self.check(one.tenant)
            clock = self._watch(one)
            try:
                compiled: Grammar | BaseException = one.work()
            finally:
                clock.cancel()
        except BaseException as error:  # noqa: BLE001 - the requests that wait must get it
            compiled = error
        self._settle(one, compiled)
        self._start_next()

    def _settle(self, one: Compilation, compiled: Grammar | BaseException) -> None:
        with self._lock:
            (self._stuck if one.is_given_up else self._running).remove(one)
        if one.is_given_up:
            self._on_late(one, None if isinstance(compiled, BaseException) else compiled)
        elif isinstance(compiled, BaseException):
            one.set_exception(compiled)
        else:
            one.set_result(compiled)

    def _watch(self, one: Compilation) -> threading.Timer:
        clock = threading.Timer(self._limit_seconds, self._give_up, (one,))
        clock.daemon = True
        clock.start()
        return clock

    def _give_up(self, one: Compilation) -> None:
        if self._is_opening():  # a backend may import torch first, which is no fault of the request
            self._watch(one)
            return
        with self._lock:
            if one not in self._running:
                return
            self._running.remove(one)
            self._stuck.append(one)
            one.is_given_up = True
        text = f"{CANNOT_ENFORCE}: it did not compile within {self._limit_seconds:g} s; simplify it"
        one.set_exception(RequestError(text, param="response_format"))
        self._start_next()
