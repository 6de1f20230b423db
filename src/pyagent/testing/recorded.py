"""A backend that gives the recorded answers of a real one: asked once, kept in a file, given again to the same prompt.

What is asked decides (messages, tools, the format of the answer), not how it is sampled. A prompt that is asked several
times has several answers, in turn; after the last, the last again. Only whole answers are kept, after each one.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from difflib import get_close_matches
from pathlib import Path
from typing import cast

import msgspec

from pyagent.core.backends import Backend
from pyagent.core.capabilities import PLAIN, Capabilities
from pyagent.core.errors import BackendError, ConfigError
from pyagent.core.messages import ChatDelta, ChatRequest, EmbedRequest, EmbedResult, Health, JsonObject, ModelInfo

_ASKED = (
    "messages",
    "prompt",
    "prompt_token_ids",
    "tools",
    "tool_choice",
    "response_format",
    "n",
    "assistant_prefix",
    "answer_prefix",
)
_SHOWN = 120
_ALIKE = 0.4


class Recording(msgspec.Struct, omit_defaults=True):
    """What was asked, and the answers to it: of a model, or the vectors of texts."""

    asked: JsonObject
    answers: list[list[ChatDelta]] = []
    vectors: list[EmbedResult] = []

    @property
    def prompt(self) -> str:
        """The end of what was asked, as a person knows it."""
        return _prompt_of(self.asked)


class RecordedBackend:
    """A `Backend` over a file of recorded answers; `requests` holds what it was asked.

    With a `source`, which makes the real backend, a prompt that the file does not know is asked of that, and kept.
    Without one it is a `BackendError` that has the prompt. The real backend is made at the first such prompt and closed
    with this one, which can be asked on.
    """

    def __init__(
        self, path: str | Path, source: Callable[[], Backend] | None = None, *, name: str = "recorded"
    ) -> None:
        """Raises `ConfigError` for a file that is no recording, or is not there and there is no `source`."""
        self.name = name
        self.path = Path(path)
        self.requests: list[ChatRequest] = []
        self._source = source
        self._real: Backend | None = None
        self._num_asked: Counter[bytes] = Counter()
        self._recordings = {_key(one.asked): one for one in _read(self.path, may_be_missing=source is not None)}

    @property
    def capabilities(self) -> Capabilities:
        """Those of the real backend while it records; a recording needs none."""
        return PLAIN if self._real is None else self._real.capabilities

    async def models(self) -> list[ModelInfo]:
        """Return the models that answered."""
        recorded = self._recordings.values()
        names = {delta.model for one in recorded for answer in one.answers for delta in answer if delta.model}
        return [ModelInfo(id=name, backend=self.name) for name in sorted(names)]

    async def chat(self, request: ChatRequest) -> AsyncGenerator[ChatDelta, None]:
        """Give the recorded answer, or record one."""
        self.requests.append(request)
        asked = _asked(request)
        recording, number = self._next(asked)
        if number < len(recording.answers) or (recording.answers and self._source is None):
            for delta in recording.answers[min(number, len(recording.answers) - 1)]:
                yield msgspec.structs.replace(delta, backend=self.name)
            return
        answer: list[ChatDelta] = []
        async with aclosing(
            cast("AsyncGenerator[ChatDelta, None]", self._asked_for_real(recording).chat(request))
        ) as told:
            async for delta in told:
                answer.append(delta)
                yield msgspec.structs.replace(delta, backend=self.name)
        recording.answers.append([msgspec.structs.replace(delta, backend="") for delta in answer])
        self._keep(recording)

    async def embed(self, request: EmbedRequest) -> EmbedResult:
        """Return the recorded vectors, or record some."""
        recording, _ = self._next({"input": list(request.input)})
        if not recording.vectors:
            recording.vectors.append(await self._asked_for_real(recording).embed(request))
            self._keep(recording)
        return recording.vectors[0]

    async def health(self) -> Health:
        """Ready: it needs nothing."""
        return Health(is_ready=True, models=[model.id for model in await self.models()])

    async def close(self) -> None:
        """Close the real backend; another is made when one is needed again."""
        real, self._real = self._real, None
        if real is not None:
            await real.close()

    def _next(self, asked: JsonObject) -> tuple[Recording, int]:
        """Return the recording of what is asked, and how often it was asked before."""
        key = _key(asked)
        number = self._num_asked[key]
        self._num_asked[key] += 1
        return self._recordings.get(key) or Recording(asked), number

    def _asked_for_real(self, recording: Recording) -> Backend:
        if self._source is None:
            raise BackendError(self._unknown(recording.prompt), backend=self.name, retryable=False)
        if self._real is None:
            self._real = self._source()
        return self._real

    def _unknown(self, prompt: str) -> str:
        end, known = prompt[-_SHOWN:], [one.prompt[-_SHOWN:] for one in self._recordings.values()]
        like = get_close_matches(end, known, n=1, cutoff=_ALIKE)
        rest = f"the nearest that it has is {like[0]!r}" if like else f"it has {len(known)} others"
        return f"{self.path.name} has no answer to {end!r}; {rest}; give a `source` to record it"

    def _keep(self, recording: Recording) -> None:
        """Write the file anew, whole."""
        self._recordings[_key(recording.asked)] = recording
        beside = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        text = msgspec.json.format(msgspec.json.encode(list(self._recordings.values())), indent=1)
        beside.write_bytes(text + b"\n")
        beside.replace(self.path)


def _read(path: Path, *, may_be_missing: bool) -> list[Recording]:
    try:
        return msgspec.json.decode(path.read_bytes(), type=list[Recording])
    except FileNotFoundError as error:
        if may_be_missing:
            return []
        raise ConfigError(f"there is no recording {path}; give a `source` to make it", key="path") from error
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} is no recording: {error}; delete it and record it anew", key="path") from error


def _asked(request: ChatRequest) -> JsonObject:
    """Return what decides the answer, without what was not said."""
    plain = cast("JsonObject", msgspec.to_builtins({field: getattr(request, field) for field in _ASKED}))
    return {field: value for field, value in plain.items() if value and value != 1}


def _key(asked: JsonObject) -> bytes:
    return msgspec.json.encode(asked, order="deterministic")


def _prompt_of(asked: JsonObject) -> str:
    messages = cast("list[JsonObject]", asked.get("messages") or [])
    said = messages[-1].get("content", "") if messages else asked.get("prompt") or asked.get("input", "")
    return said if isinstance(said, str) else str(said)
