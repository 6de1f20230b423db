"""What crosses between a link and its engine: msgpack of typed structs, errors as faults. Ray carries the bytes."""

from __future__ import annotations

import msgspec

from pyagent.plugin import ChatDelta, ChatRequest, Codec, EmbedRequest, EmbedResult, Fault, Health, Hint, ModelInfo


class Pieces(msgspec.Struct, frozen=True, tag="pieces"):
    """Deltas of an answer, in order."""

    deltas: list[ChatDelta]


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """What was asked for failed."""

    fault: Fault


class Models(msgspec.Struct, frozen=True, tag="models"):
    """The models of an engine."""

    models: list[ModelInfo]


class Vectors(msgspec.Struct, frozen=True, tag="vectors"):
    """The vectors of texts."""

    result: EmbedResult


class Healthy(msgspec.Struct, frozen=True, tag="health"):
    """Whether an engine can answer."""

    health: Health


FromEngine = Pieces | Failed | Models | Vectors | Healthy

_LINK, _ENGINE = "the link", "the engine on Ray"
requests = Codec(ChatRequest, _LINK)
embeddings = Codec(EmbedRequest, _LINK)
hints = Codec(Hint, _LINK)
answers: Codec[FromEngine] = Codec(FromEngine, _ENGINE)
