"""The messages between an engine's client and the engine's process, on the wire of `infrastructure.wire`.

Over the process's standard input come its `Hello` and its `Start`; all else travels over the socket, where the process
says `Hello` first.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from pyagent import __version__
from pyagent.core.cluster.coordinator import CopyLoad
from pyagent.core.errors import RequestError, WireError
from pyagent.core.load_progress import LoadProgress
from pyagent.core.messages import (
    ChatDelta,
    ChatRequest,
    ClassifyRequest,
    EmbedRequest,
    Hint,
    RankRequest,
    TokenEmbedRequest,
)
from pyagent.core.prompt_cache import CacheQuery
from pyagent.core.withdrawal import Withdrawal
from pyagent.infrastructure.engine.request import PastTurn, TokenLog
from pyagent.infrastructure.wire.codec import Codec
from pyagent.infrastructure.wire.fault import Fault
from pyagent.infrastructure.wire.hello import Hello

HELLO = Hello("pyagent-engine", __version__)
"""Both ends are of one release; they differ when PyAgent is upgraded below a running server."""


class Start(msgspec.Struct, frozen=True):
    """The settings as JSON, the processors and GPUs to compute on, and where the socket is.

    Without `cores` it computes on all it may use; so with `gpus`. With `tells_load` it says how busy it is. `adapters`
    are those that an engine has now, where they are others than the settings'.
    """

    settings: bytes
    cores: tuple[int, ...] = ()
    gpus: tuple[str, ...] = ()
    tells_load: bool = False
    endpoint: str = ""
    adapters: Mapping[str, str] | None = None


class Submit(msgspec.Struct, frozen=True, tag=True):
    """A request, with the tokens an earlier process generated for it, and the turn one computed of its conversation."""

    id: int
    request: ChatRequest
    log: TokenLog | None = None
    past: PastTurn | None = None


class Abort(msgspec.Struct, frozen=True, tag=True):
    """Abort a request."""

    id: int


class LoadModel(msgspec.Struct, frozen=True, tag=True):
    """Load a model ahead of its first request; with `beside`, no other is unloaded for it."""

    model: str
    beside: bool = False


class UnloadModel(msgspec.Struct, frozen=True, tag=True):
    """Unload a model that no request uses."""

    model: str


class GetState(msgspec.Struct, frozen=True, tag=True):
    """Return an `EngineState`."""


class FreeMemory(msgspec.Struct, frozen=True, tag=True):
    """Free the KV memory of unused models (level 1), or the models (2)."""

    level: int


class TakeHint(msgspec.Struct, frozen=True, tag=True):
    """Pass a hint to the prefix cache."""

    hint: Hint


class QueryCache(msgspec.Struct, frozen=True, tag=True):
    """Return a `CacheQueryResult`."""

    query: CacheQuery


class Withdraw(msgspec.Struct, frozen=True, tag=True):
    """Give requests back that have not begun; return how many."""

    wanted: Withdrawal


class UseAttention(msgspec.Struct, frozen=True, tag=True):
    """Have the loaded models compute attention by another backend."""

    name: str


class NameAdapter(msgspec.Struct, frozen=True, tag=True):
    """Have a key name the adapter at a path, or none where that is empty."""

    key: str
    path: str


class RankTexts(msgspec.Struct, frozen=True, tag=True):
    """Return a `RankResult`."""

    request: RankRequest


class ClassifyTexts(msgspec.Struct, frozen=True, tag=True):
    """Return a `ClassifyResult`."""

    request: ClassifyRequest


class EmbedTexts(msgspec.Struct, frozen=True, tag=True):
    """Return an `EmbedResult`."""

    request: EmbedRequest


class EmbedTokens(msgspec.Struct, frozen=True, tag=True):
    """Return a `TokenEmbedResult`."""

    request: TokenEmbedRequest


Command = (
    EmbedTexts
    | EmbedTokens
    | RankTexts
    | ClassifyTexts
    | LoadModel
    | UnloadModel
    | GetState
    | FreeMemory
    | TakeHint
    | QueryCache
    | Withdraw
    | UseAttention
    | NameAdapter
)


class Call(msgspec.Struct, frozen=True, tag=True):
    """A command, answered by one `Returned` or `Raised`."""

    id: int
    command: Command


class Ping(msgspec.Struct, frozen=True, tag=True):
    """Ask for a `Pong`."""


class Stop(msgspec.Struct, frozen=True, tag=True):
    """Abort what runs, and end the process."""


ToEngine = Submit | Abort | Call | Ping | Stop


class Pong(msgspec.Struct, frozen=True, tag=True):
    """The process answers.

    `step_seconds` is how long the engine has been at its present step; 0 while it waits for requests.
    """

    step_seconds: float = 0.0


class Busyness(msgspec.Struct, frozen=True, tag=True):
    """How busy the process is."""

    load: CopyLoad


class Loading(msgspec.Struct, frozen=True, tag=True):
    """How far the process is with loading a model."""

    load: LoadProgress


class Outputs(msgspec.Struct, frozen=True, tag=True):
    """A delta of a request's answer, and the tokens generated for it; the first one has the prompt's too."""

    id: int
    delta: ChatDelta
    tokens: tuple[int, ...] = ()
    prompt: bytes = b""


class Done(msgspec.Struct, frozen=True, tag=True):
    """The request's answer is complete."""

    id: int


class Failed(msgspec.Struct, frozen=True, tag=True):
    """The request failed."""

    id: int
    fault: Fault


class Aborted(msgspec.Struct, frozen=True, tag=True):
    """The request was aborted; no outputs of it follow."""

    id: int


class Returned(msgspec.Struct, frozen=True, tag=True):
    """A call's result."""

    id: int
    result: msgspec.Raw


class Raised(msgspec.Struct, frozen=True, tag=True):
    """The call failed."""

    id: int
    fault: Fault


FromEngine = Hello | Pong | Busyness | Loading | Outputs | Done | Failed | Aborted | Returned | Raised

CLIENT, ENGINE = "the engine's client", "the engine's process"
hello_codec: Codec[Hello] = Codec(Hello, CLIENT)
start_codec: Codec[Start] = Codec(Start, CLIENT)
to_engine: Codec[ToEngine] = Codec(ToEngine, CLIENT)
from_engine: Codec[FromEngine] = Codec(FromEngine, ENGINE)


def encode_for_caller(message: Submit | Call) -> bytes:
    """Return a message's frame. Raises `RequestError` for what has no encoding, or is too long."""
    try:
        return to_engine.encode(message)
    except WireError as error:
        raise RequestError(f"the request cannot be sent to the engine: {error}", param="messages") from error
