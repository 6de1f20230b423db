"""What crosses between an engine's client and the engine's process: msgpack frames of typed structs, no code.

Errors cross as their name, text and facts, and are the same errors on the other side.
"""

from __future__ import annotations

import inspect
from typing import cast

import msgspec

from pyagent.core import errors
from pyagent.core.errors import BackendError, PyAgentError, RequestError
from pyagent.core.messages import ChatDelta, ChatRequest, Hint
from pyagent.core.prompt_cache import CacheQuery
from pyagent.infrastructure.engine.request import PastTurn, TokenLog


class Fault(msgspec.Struct, frozen=True):
    """An error on its way: the name of its class in `core.errors`, its text, its attributes."""

    kind: str
    text: str
    facts: dict[str, object] = {}

    @classmethod
    def of(cls, error: BaseException) -> Fault:
        """The fault that stands for an error; one that is none of PyAgent's own is said to be a bug."""
        if isinstance(error, PyAgentError) and type(error).__name__ in _ERRORS:
            return cls(type(error).__name__, str(error), dict(vars(error)))
        facts: dict[str, object] = {"backend": "native", "retryable": False}
        return cls("BackendError", f"the engine failed: {type(error).__name__}: {error}", facts)

    def error(self) -> PyAgentError:
        """The error it stands for."""
        kind = _ERRORS.get(self.kind, BackendError)
        taken = inspect.signature(kind.__init__).parameters
        facts = {key: value for key, value in self.facts.items() if key in taken}
        return kind(self.text, **cast("dict[str, str]", facts))


_ERRORS: dict[str, type[PyAgentError]] = {
    name: kind for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, PyAgentError)
}


class Start(msgspec.Struct, frozen=True):
    """The first words, over standard input: where the socket is, and the settings as JSON."""

    endpoint: str
    settings: bytes


class Ask(msgspec.Struct, frozen=True, tag=True):
    """A request, what an earlier process already drew for it, and what one computed of its conversation."""

    id: int
    request: ChatRequest
    log: TokenLog | None = None
    past: PastTurn | None = None


class Abort(msgspec.Struct, frozen=True, tag=True):
    """Nobody waits for this request any more."""

    id: int


class Load(msgspec.Struct, frozen=True, tag=True):
    """Load a model ahead of its first request."""

    model: str


class Look(msgspec.Struct, frozen=True, tag=True):
    """Say what the engine is doing."""


class GiveBack(msgspec.Struct, frozen=True, tag=True):
    """Free the KV memory of models nobody uses (level 1), or the models (2)."""

    level: int


class Told(msgspec.Struct, frozen=True, tag=True):
    """What the fleet knows of a prompt's future."""

    hint: Hint


class QueryCache(msgspec.Struct, frozen=True, tag=True):
    """A question about the prompt caches."""

    question: CacheQuery


Todo = Load | Look | GiveBack | Told | QueryCache


class Call(msgspec.Struct, frozen=True, tag=True):
    """Something to do that is no request."""

    id: int
    what: Todo


class Ping(msgspec.Struct, frozen=True, tag=True):
    """Show that you are alive."""


class Stop(msgspec.Struct, frozen=True, tag=True):
    """End: abort what runs."""


ToEngine = Ask | Abort | Call | Ping | Stop


class Alive(msgspec.Struct, frozen=True, tag=True):
    """Ready for requests; said once at the start and in answer to `Ping`.

    `turn_seconds` is how long the engine has been at its present step; 0 while it waits for requests.
    """

    turn_seconds: float = 0.0


class Outputs(msgspec.Struct, frozen=True, tag=True):
    """A piece of an answer, and the tokens drawn for it; with the first one the prompt's."""

    id: int
    delta: ChatDelta
    tokens: tuple[int, ...] = ()
    prompt: bytes = b""


class Done(msgspec.Struct, frozen=True, tag=True):
    """The answer is complete."""

    id: int


class Failed(msgspec.Struct, frozen=True, tag=True):
    """The request failed."""

    id: int
    fault: Fault


class Dropped(msgspec.Struct, frozen=True, tag=True):
    """The request was aborted; there will be no more news of it."""

    id: int


class Returned(msgspec.Struct, frozen=True, tag=True):
    """The call is done, with this result."""

    id: int
    result: msgspec.Raw


class Raised(msgspec.Struct, frozen=True, tag=True):
    """The call failed."""

    id: int
    fault: Fault


FromEngine = Alive | Outputs | Done | Failed | Dropped | Returned | Raised

encode = msgspec.msgpack.Encoder().encode
decode_to_engine = msgspec.msgpack.Decoder(ToEngine).decode
decode_from_engine = msgspec.msgpack.Decoder(FromEngine).decode


def encode_ask(ask: Ask) -> bytes:
    """A request as a frame. Raises `RequestError` for text that cannot be sent."""
    try:
        return encode(ask)
    except (UnicodeEncodeError, OverflowError, TypeError) as error:
        raise RequestError(f"the request cannot be sent to the engine: {error}", param="messages") from error
