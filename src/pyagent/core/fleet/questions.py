"""What a context does alike beside its run and elsewhere: ask the model for something in a form, and time phases.

An answer that does not fit is asked for again with the reason. Each context says only how one answer is got, and whom
it tells of a phase.
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar, overload

from pyagent.core.errors import AgentError
from pyagent.core.fleet.confidence import DoubtAct
from pyagent.core.fleet.containment import contained
from pyagent.core.fleet.limits import check_number
from pyagent.core.fleet.model_call import Completion
from pyagent.core.messages import JsonObject, Message, ResponseFormat, SamplingParams
from pyagent.core.resilience.deadline import Deadline
from pyagent.core.response_format import GrammarFormat
from pyagent.core.structured_output.wanted import Schema, Wanted

T = TypeVar("T")
R = TypeVar("R")
Prompt = str | Sequence[Message]

_MOST_AT_ONCE = 10_000
DEFAULT_SAMPLING = SamplingParams(temperature=0.0, max_tokens=512)
"""Greedy and bounded: an agent that wants variety says so."""


@dataclass(frozen=True, slots=True)
class LastPrompt:
    """The last thing the model was asked, so that `retry` can ask again."""

    messages: list[Message]
    answer: str
    wanted: Wanted
    sampling: SamplingParams


class Questions(ABC):
    """The part of an agent's context that is the same wherever the agent runs."""

    __slots__ = ()
    agent: str
    deadline: Deadline
    last_prompt: LastPrompt | None

    @property
    @abstractmethod
    def tenant(self) -> str:
        """Whose run it is."""

    @property
    @abstractmethod
    def reconsiders(self) -> bool:
        """Whether doubtful answers are asked again."""

    @abstractmethod
    async def doubts(self, agreement: float) -> DoubtAct | None:
        """Say how far several answers agree; return what is to be done about it."""

    @abstractmethod
    async def answer(
        self, messages: list[Message], response_format: ResponseFormat | None, sampling: SamplingParams
    ) -> Completion:
        """Return the model's whole answer to a conversation."""

    @abstractmethod
    def phase_ended(self, name: str, seconds: float, error: str | None) -> None:
        """Show that a part of the work is over."""

    @contextmanager
    def phase(self, name: str) -> Generator[None]:
        """A named part of the work: its time, and how it ended, are shown and journalled."""
        started, fault = time.perf_counter(), "cancelled"
        try:
            yield
            fault = None
        except Exception as error:
            fault = str(error) or type(error).__name__
            raise
        finally:
            self.phase_ended(name, time.perf_counter() - started, fault)

    @overload
    async def generate(
        self, prompt: Prompt, *, schema: type[T], system: str | None = None, sampling: SamplingParams | None = None
    ) -> T: ...

    @overload
    async def generate(
        self, prompt: Prompt, *, schema: JsonObject, system: str | None = None, sampling: SamplingParams | None = None
    ) -> object: ...

    @overload
    async def generate(
        self,
        prompt: Prompt,
        *,
        choice: Sequence[str] | None = None,
        regex: str | None = None,
        grammar: str | GrammarFormat | None = None,
        system: str | None = None,
        sampling: SamplingParams | None = None,
    ) -> str: ...

    async def generate(  # noqa: PLR0913 - ways to say what is wanted
        self,
        prompt: Prompt,
        *,
        schema: Schema | None = None,
        choice: Sequence[str] | None = None,
        regex: str | None = None,
        grammar: str | GrammarFormat | None = None,
        system: str | None = None,
        sampling: SamplingParams | None = None,
    ) -> object:
        """Return the model's answer: a text, held to a choice, a regex or a grammar, or an instance of `schema`.

        A schema is a Pydantic model, a msgspec struct, or JSON schema, whose values come as plain dicts and lists.
        An answer that does not fit is asked for once more with the reason; then it is an `AgentError`. A text that was
        cut at `max_tokens` is shown as such, and `complete` says it to the agent.
        """
        wanted = Wanted(schema, choice, regex, grammar)
        return await self._ask(as_messages(prompt, system), wanted, sampling or DEFAULT_SAMPLING)

    async def retry(self, hint: str) -> Any:
        """Ask the last question again, with its answer and what is wrong with it."""
        last = self.last_prompt
        if last is None:
            raise AgentError(f"{self.agent} retries before it asked anything", agent=self.agent)
        messages = [*last.messages, Message("assistant", last.answer), Message("user", hint)]
        return await self._ask(messages, last.wanted, last.sampling)

    async def _ask(self, messages: list[Message], wanted: Wanted, sampling: SamplingParams) -> object:
        fault = ""
        for _ in range(2):
            completion = await self.answer(messages, wanted.response_format, sampling)
            answer = completion.text
            self.last_prompt = LastPrompt(messages, answer, wanted, sampling)
            try:
                return await wanted.read_aside(answer, self.deadline, self.tenant, stop=sampling.stop)
            except ValueError as error:
                limit = f"; it was cut after {sampling.max_tokens} tokens, be shorter" if completion.is_cut else ""
                fault = f"{error}{limit}"
            hint = f"That does not fit: {fault}. Answer again, exactly in the form asked for."
            messages = [*messages, Message("assistant", answer), Message("user", hint)]
        raise AgentError(f"the model's answer to {self.agent} does not fit, asked twice: {fault}", agent=self.agent)


async def side_by_side(
    agent: str, function: Callable[[T], Awaitable[R]], items: Iterable[T], max_concurrency: int
) -> list[R]:
    """Return `function` of each item, in the items' order. The first failure cancels the rest."""
    check_number("max_concurrency", max_concurrency, 1, 2**31, is_whole=True)
    pending = enumerate(items)
    results: dict[int, R] = {}

    async def work() -> None:
        for index, item in pending:
            with contained(f"a part of {agent}", lambda text: AgentError(text, agent=agent)):
                results[index] = await function(item)

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(min(max_concurrency, _MOST_AT_ONCE)):
                group.create_task(work())
    except BaseExceptionGroup as group:
        raise group.exceptions[0] from group
    return [results[index] for index in sorted(results)]


def as_messages(prompt: Prompt, system: str | None) -> list[Message]:
    """Return a conversation from a prompt."""
    messages = [Message("user", prompt)] if isinstance(prompt, str) else list(prompt)
    return messages if system is None else [Message("system", system), *messages]
