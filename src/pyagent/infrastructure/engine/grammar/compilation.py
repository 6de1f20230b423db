"""A grammar that is being compiled, in one of a few slots: given back when it ends, or when it is given up."""

from __future__ import annotations

import threading
from concurrent.futures import Future

from pyagent.infrastructure.engine.grammar.grammar import Grammar


class Compilation(Future[Grammar]):
    """What requests for the same grammar wait for."""

    def __init__(self, slots: threading.BoundedSemaphore) -> None:
        super().__init__()
        self._slots = slots
        self._lock = threading.Lock()
        self._has_slot = False
        self._is_given_up = False

    @property
    def is_stuck(self) -> bool:
        """Whether it goes on, though it was given up."""
        return self._is_given_up and not self.done()

    def begin(self) -> None:
        """Wait for a slot."""
        self._slots.acquire()
        self._has_slot = True

    def leave(self) -> None:
        """Give the slot back."""
        with self._lock:
            if self._has_slot:
                self._has_slot = False
                self._slots.release()

    def give_up(self) -> None:
        """Leave the slot to others if this one has one, though its thread goes on."""
        with self._lock:
            self._is_given_up = self._is_given_up or self._has_slot
        self.leave()
