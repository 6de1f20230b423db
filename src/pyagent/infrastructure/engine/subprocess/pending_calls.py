"""Commands that were sent to an engine's process and have no result yet: the next process is sent them again."""

from __future__ import annotations

import itertools
from concurrent.futures import Future

import msgspec

from pyagent.core.errors import BackendError, PyAgentError
from pyagent.infrastructure.engine.subprocess.protocol import Call, Command, Raised, Returned, encode_for_caller


class PendingCall:
    """A command on its way: its frame, and the future of its result's bytes, or of its error."""

    def __init__(self, call_id: int, command: Command) -> None:
        """Raises `RequestError` for a command that cannot be sent."""
        self.id = call_id
        self.frame = encode_for_caller(Call(call_id, command))
        self.future: Future[msgspec.Raw] = Future()
        self.future.set_running_or_notify_cancel()  # a caller that is cancelled leaves; the result is then dropped


class PendingCalls:
    """The commands of one supervisor; only `make` may be called from any thread."""

    def __init__(self) -> None:
        self._ids = itertools.count(1)
        self._id_to_call: dict[int, PendingCall] = {}

    def make(self, command: Command) -> PendingCall:
        """Return a command that is to be sent. Raises `RequestError` for one that cannot be."""
        return PendingCall(next(self._ids), command)

    def add(self, call: PendingCall) -> None:
        """Take a command that waits for its result from now on."""
        self._id_to_call[call.id] = call

    def frames(self) -> list[bytes]:
        """Return the commands that have no result yet, as a new process is sent them."""
        return [call.frame for call in self._id_to_call.values()]

    def end(self, message: Returned | Raised) -> None:
        """Take a command's result."""
        call = self._id_to_call.pop(message.id, None)
        if call is None:
            return
        if isinstance(message, Returned):
            call.future.set_result(message.result)
        else:
            call.future.set_exception(message.fault.error("native"))

    def fail_all(self, reason: str) -> None:
        """End all commands by an error that says why."""
        calls, self._id_to_call = self._id_to_call, {}
        for call in calls.values():
            call.future.set_exception(stopped(reason))


def stopped(reason: str) -> PyAgentError:
    """Return the error of what an engine's process no longer does."""
    return BackendError(f"native: {reason}", backend="native", retryable=False)
