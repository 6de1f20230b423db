"""An error as it crosses: the name of its class in `core.errors`, its text, its facts; the same class on arrival.

A class from elsewhere crosses as its nearest ancestor in `core.errors`; a foreign error, which is a bug, as a
`BackendError`. A peer can name no other class and give no fact that a constructor does not take.
"""

from __future__ import annotations

import inspect
from functools import cache
from typing import get_type_hints

import msgspec

from pyagent.core import errors
from pyagent.core.errors import BackendError, PyAgentError

_NAME_TO_CLASS: dict[str, type[PyAgentError]] = {
    name: value for name, value in vars(errors).items() if isinstance(value, type) and issubclass(value, PyAgentError)
}


class Fault(msgspec.Struct, frozen=True):
    """An error on its way."""

    kind: str
    text: str
    facts: dict[str, object] = {}

    @classmethod
    def of(cls, error: BaseException, backend: str) -> Fault:
        """Return the fault of an error. It can always be encoded; `backend` names who failed where it is foreign."""
        kind = next((one.__name__ for one in type(error).__mro__ if _NAME_TO_CLASS.get(one.__name__) is one), None)
        facts = None if kind is None else _facts_of(error, kind)
        if kind is not None and facts is not None:
            return cls(kind, _encodable(str(error)), facts)
        text = _encodable(f"{backend} failed: {type(error).__name__}: {error}")
        return cls("BackendError", text, {"backend": backend, "retryable": False})

    def error(self, backend: str) -> PyAgentError:
        """Return the error; where the fault names no class of ours, or not its facts, a `BackendError` of `backend`."""
        if kind := _NAME_TO_CLASS.get(self.kind):
            try:
                facts = msgspec.convert(self.facts, _facts_type(self.kind))
                return kind(self.text, **msgspec.structs.asdict(facts))
            except msgspec.MsgspecError:
                pass
        return BackendError(self.text, backend=backend, retryable=False)


def _facts_of(error: BaseException, kind: str) -> dict[str, object] | None:
    """Return an error's facts; None where they are not what its class says, or have no encoding."""
    try:
        facts = msgspec.structs.asdict(msgspec.convert(error, _facts_type(kind), from_attributes=True))
        msgspec.msgpack.encode(facts)
    except (msgspec.MsgspecError, TypeError, ValueError, OverflowError):
        return None
    return facts


@cache
def _facts_type(name: str) -> type[msgspec.Struct]:
    """Return the keyword arguments that an error's constructor takes, as a struct."""
    constructor = _NAME_TO_CLASS[name].__init__
    hints = get_type_hints(constructor)
    fields: list[tuple[str, object] | tuple[str, object, object]] = [
        (one.name, hints[one.name]) if one.default is one.empty else (one.name, hints[one.name], one.default)
        for one in inspect.signature(constructor).parameters.values()
        if one.kind is one.KEYWORD_ONLY
    ]
    return msgspec.defstruct(f"{name}Facts", fields, frozen=True, kw_only=True)


def _encodable(text: str) -> str:
    """Return a text as UTF-8 has it, lone surrogates escaped."""
    return text.encode(errors="backslashreplace").decode()
