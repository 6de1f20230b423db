"""OpenAI's embeddings: requests in, vectors out as numbers or base64."""

from __future__ import annotations

from typing import Literal

import msgspec

from pyagent.core.errors import RequestError
from pyagent.core.messages import EmbedResult, JsonObject
from pyagent.infrastructure.server.validation import decode, model_asked
from pyagent.infrastructure.server.vectors import packed, shortened


class EmbeddingsBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The body of POST /v1/embeddings."""

    input: str | list[object]
    model: str | None = None
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = None
    user: str | None = None
    private: bool | None = None  # not OpenAI's
    truncate: bool = False  # not OpenAI's
    task: str | None = None  # not OpenAI's; Jina's

    @property
    def texts(self) -> list[str]:
        """The texts to embed; raises `RequestError` for token ids."""
        inputs = [self.input] if isinstance(self.input, str) else self.input
        texts = [text for text in inputs if isinstance(text, str)]
        if len(texts) < len(inputs):
            raise RequestError("input takes texts; token ids are not supported", param="input")
        return texts

    @property
    def model_asked(self) -> str:
        """The model, none when it is whatever there is."""
        return model_asked(self.model)


def read_embeddings(body: bytes) -> EmbeddingsBody:
    """Understand the body of POST /v1/embeddings."""
    return decode(body, EmbeddingsBody, {})


def embeddings_body(parsed: EmbeddingsBody, found: EmbedResult) -> JsonObject:
    """Return the answer."""
    vectors = shortened(found.vectors, parsed.dimensions)
    shown = [packed(vector) for vector in vectors] if parsed.encoding_format == "base64" else vectors
    listed = [{"object": "embedding", "index": index, "embedding": vector} for index, vector in enumerate(shown)]
    usage = {"prompt_tokens": found.usage.prompt_tokens, "total_tokens": found.usage.prompt_tokens}
    return {"object": "list", "data": listed, "model": found.model or parsed.model or "default", "usage": usage}
