"""`pyagent.Chain` and `pyagent.Engine` for programs without an event loop: the same words, each waits for its result.

Logic is theirs alone: here calls are handed to an event loop in a thread. Safe from any thread.
"""

from __future__ import annotations

import threading
from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING, TypeVar, cast, overload

from pyagent.core.loop_thread import LoopThread
from pyagent.core.structured_output.wanted import Wanted

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from pyagent.chains import Asked, Chain, Engine
    from pyagent.core.backends import Answer
    from pyagent.core.messages import ChatDelta, JsonObject, SamplingParams
    from pyagent.core.response_format import GrammarFormat
    from pyagent.core.structured_output.wanted import Schema

__all__ = ["SyncChain", "SyncEngine"]

T = TypeVar("T")


class SyncChain:
    """A chain whose methods wait: `with pyagent.Chain(["lmstudio", "native"]) as chain: answer = chain.chat("Hi")`."""

    def __init__(self, chain: Chain) -> None:
        self._chain = chain
        self._loop = LoopThread("pyagent-sync")
        self._closing = threading.Lock()

    def chat(self, asked: Asked, sampling: SamplingParams | None = None) -> Answer:
        """Return a whole answer."""
        return self._loop.run(self._chain.chat(asked, sampling))

    def chat_all(self, asked: Sequence[Asked], sampling: SamplingParams | None = None) -> list[Answer]:
        """Return the answers to several requests that run at the same time, in their order.

        Raises the first error, and aborts the others.
        """
        return self._loop.run(self._chain.chat_all(asked, sampling))

    def stream(self, asked: Asked, sampling: SamplingParams | None = None) -> Generator[ChatDelta, None, None]:
        """Yield an answer's deltas as they come; closing the generator aborts the request."""
        return self._loop.iterate(cast("AsyncGenerator[ChatDelta, None]", self._chain.stream(asked, sampling)))

    def stream_answers(self, asked: Asked, sampling: SamplingParams | None = None) -> Generator[Answer, None, None]:
        """Yield the answer so far with each delta."""
        return self._loop.iterate(self._chain.stream_answers(asked, sampling))

    @overload
    def generate(self, asked: Asked, *, schema: type[T], sampling: SamplingParams | None = None) -> T: ...

    @overload
    def generate(self, asked: Asked, *, schema: JsonObject, sampling: SamplingParams | None = None) -> object: ...

    @overload
    def generate(
        self,
        asked: Asked,
        *,
        choice: Sequence[str] | None = None,
        regex: str | None = None,
        grammar: str | GrammarFormat | None = None,
        sampling: SamplingParams | None = None,
    ) -> str: ...

    def generate(  # noqa: PLR0913 - ways to say what is wanted
        self,
        asked: Asked,
        *,
        schema: Schema | None = None,
        choice: Sequence[str] | None = None,
        regex: str | None = None,
        grammar: str | GrammarFormat | None = None,
        sampling: SamplingParams | None = None,
    ) -> object:
        """Return an answer as what was asked for, as `Chain.generate` does."""
        return self._loop.run(self._chain.answer_as(Wanted(schema, choice, regex, grammar), asked, sampling))

    def embed(self, texts: Sequence[str], model: str = "") -> list[list[float]]:
        """Return a vector for each text."""
        return self._loop.run(self._chain.embed(texts, model))

    def close(self) -> None:
        """Close the chain and end its event loop; what other threads wait for fails. Safe to call twice."""
        with self._closing:
            if self._loop.is_open:
                try:
                    self._loop.run(self._chain.close())
                finally:
                    self._loop.close()


class SyncEngine(SyncChain):
    """An engine whose methods wait: `with pyagent.Engine("smollm2:135m") as engine: answer = engine.chat("Hi")`."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self._engine = engine

    def load(self) -> None:
        """Load the model now. Raises `ModelError` saying what is wrong with its file."""
        self._loop.run(self._engine.load())
