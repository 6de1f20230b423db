"""`pyagent.Chain`, `pyagent.Engine` and `pyagent.Fleet` for programs without an event loop: each call waits.

Logic is theirs alone: here calls are handed to an event loop in a thread. Safe from any thread.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar, cast, overload

from pyagent.core.loop_thread import LoopThread
from pyagent.core.structured_output.wanted import Wanted

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path

    from pyagent.chains import Asked, Chain, Engine
    from pyagent.core.backends import Answer
    from pyagent.core.fleet.agent import Task
    from pyagent.core.fleet.events import Event
    from pyagent.core.fleet.journal import RunSummary
    from pyagent.core.fleet.limits import RunBudget
    from pyagent.core.fleet.marks import Marked
    from pyagent.core.fleet.planner import Planning
    from pyagent.core.fleet.replay_check import ReplayReport
    from pyagent.core.fleet.run_view import RunView
    from pyagent.core.fleet.steps import Step
    from pyagent.core.load_progress import LoadProgress
    from pyagent.core.messages import ChatDelta, JsonObject, SamplingParams
    from pyagent.core.response_format import GrammarFormat
    from pyagent.core.search import SearchResult
    from pyagent.core.structured_output.wanted import Schema
    from pyagent.fleet import Fleet

__all__ = ["SyncChain", "SyncEngine", "SyncFleet"]

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

    def rerank(
        self, query: str, documents: Sequence[str], model: str = "", *, truncate: bool = True
    ) -> list[tuple[int, float]]:
        """Return the documents' numbers and relevances, the most relevant first, as `Chain.rerank` does."""
        return self._loop.run(self._chain.rerank(query, documents, model, truncate=truncate))

    def classify(self, texts: Sequence[str], model: str = "", *, truncate: bool = False) -> list[dict[str, float]]:
        """Return each text's labels with their probabilities, as `Chain.classify` does."""
        return self._loop.run(self._chain.classify(texts, model, truncate=truncate))

    def embed(
        self, texts: Sequence[str], model: str = "", *, truncate: bool = False, task: str = ""
    ) -> list[list[float]]:
        """Return a vector for each text, as `Chain.embed` does."""
        return self._loop.run(self._chain.embed(texts, model, truncate=truncate, task=task))

    def token_embed(
        self, texts: Sequence[str], model: str = "", *, is_query: bool = False, truncate: bool = False
    ) -> list[list[list[float]]]:
        """Return a vector for each token of each text, as `Chain.token_embed` does."""
        return self._loop.run(self._chain.token_embed(texts, model, is_query=is_query, truncate=truncate))

    def token_classify(
        self, texts: Sequence[str], model: str = "", *, truncate: bool = False
    ) -> list[list[dict[str, float]]]:
        """Return the labels of each token of each text, or of each step, as `Chain.token_classify` does."""
        return self._loop.run(self._chain.token_classify(texts, model, truncate=truncate))

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

    def load(self, watch: Callable[[LoadProgress], None] | None = None) -> None:
        """Load the model now, telling `watch` again and again how far it is, and once more when that is over.

        `watch` is called in another thread. Raises `ModelError` saying what is wrong with its file.
        """
        self._loop.run(self._engine.load(watch))

    def loading(self) -> list[LoadProgress]:
        """Return how far each model is that is on its way into memory now."""
        return self._loop.run(self._engine.loading())


class SyncFleet:
    """A fleet whose methods wait: `with pyagent.Fleet() as fleet: for event in fleet.run("..."): ...`.

    A run goes on in its own thread while its events are read, and ends when their generator is closed.
    """

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._loop = LoopThread("pyagent-sync")
        self._closing = threading.Lock()

    def run(  # noqa: PLR0913 - as of `Fleet.run`
        self,
        task: str | Task | Sequence[Step],
        *,
        files: Sequence[str] = (),
        agent: str | None = None,
        timeout_seconds: float | None = None,
        is_private: bool = False,
        waits_for_answers: bool | None = None,
        run_id: str | None = None,
        priority: int = 0,
        request_class: str = "",
        plan: bool | Planning | None = None,
        budget: RunBudget | None = None,
    ) -> Generator[Event, None, None]:
        """Yield what happens while a task, or a graph of steps, is run; raises what the run ends with."""
        run = self._fleet.run(
            task,
            files=files,
            agent=agent,
            timeout_seconds=timeout_seconds,
            is_private=is_private,
            waits_for_answers=waits_for_answers,
            run_id=run_id,
            priority=priority,
            request_class=request_class,
            plan=plan,
            budget=budget,
        )
        return self._loop.iterate(run)

    def resume(
        self, run: str, *, answers: Mapping[str, str] | None = None, waits_for_answers: bool | None = None
    ) -> Generator[Event, None, None]:
        """Go on with a run that has not finished; `answers` are by its questions' ids."""
        return self._loop.iterate(self._fleet.resume(run, answers=answers, waits_for_answers=waits_for_answers))

    def fork(
        self, run: str, step: str, task: Task | str | None = None, *, waits_for_answers: bool | None = None
    ) -> Generator[Event, None, None]:
        """Run a step of a run again, and what comes after it, with another task for it if one is given."""
        return self._loop.iterate(self._fleet.fork(run, step, task, waits_for_answers=waits_for_answers))

    def runs(self) -> list[RunSummary]:
        """Return the runs that the journal has, newest first."""
        return self._made(self._fleet.runs)

    def show(self, run: str) -> RunView:
        """Return a run at a glance. Raises `RequestError` for one that is unknown."""
        return self._made(lambda: self._fleet.show(run))

    def mark(self, run: str, mark: str | float) -> Marked:
        """Say how good a run was; see `Fleet.mark`."""
        return self._made(lambda: self._fleet.mark(run, mark))

    def result(self, run: str) -> object:
        """Return a finished run's result. Raises `RequestError` for a run that has none."""
        return self._made(lambda: self._fleet.result(run))

    def check_replay(self, run: str) -> ReplayReport:
        """Run the agents' code again on what the journal has of a run, and return the first difference."""
        return self._loop.run(self._fleet.check_replay(run))

    def search(self, query: str, *, files: Path | str | None = None, tenant: str = "", limit: int = 10) -> SearchResult:
        """Return the passages of past runs, or of files, that fit best."""
        return self._loop.run(self._fleet.search(query, files=files, tenant=tenant, limit=limit))

    def events(self, run: str, start: int = 0) -> Generator[Event, None, None]:
        """Yield a run's events from a number on until it ends, also of one that another process runs."""
        return self._loop.iterate(self._fleet.events(run, start))

    def cancel(self, run: str) -> None:
        """End a run. Raises `RequestError` for one that is unknown or over."""
        self._made(lambda: self._fleet.cancel(run))

    def answer(self, run: str, question: str, answer: str) -> None:
        """Answer a question of a run under way. Raises `RequestError` where none waits, or it takes other answers."""
        self._made(lambda: self._fleet.answer(run, question, answer))

    def close(self) -> None:
        """End the runs and close the fleet. Safe to call twice."""
        with self._closing:
            if self._loop.is_open:
                try:
                    self._loop.run(self._fleet.close())
                finally:
                    self._loop.close()

    def _made(self, make: Callable[[], T]) -> T:
        """Return what is made in the fleet's own thread."""

        async def made() -> T:
            return make()

        return self._loop.run(made())
