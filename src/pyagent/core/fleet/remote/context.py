"""The agent's end: a context that asks the run, which is elsewhere, for everything that it cannot do itself.

It has what `Context` has, and reads and checks answers where the agent is, as their types are there.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, cast

import msgspec

from pyagent.core.errors import AgentError
from pyagent.core.fleet.agent import Agent, Task, unknown_name
from pyagent.core.fleet.budget import Budget
from pyagent.core.fleet.file_access import grant
from pyagent.core.fleet.memory import Memory
from pyagent.core.fleet.notes import Notes, NoteSpec
from pyagent.core.fleet.questions import DEFAULT_SAMPLING, LastPrompt, Prompt, Questions, as_messages, side_by_side
from pyagent.core.fleet.remote.messages import AgentCall, AgentView
from pyagent.core.fleet.scopes import Scopes
from pyagent.core.fleet.stability import checked_score
from pyagent.core.fleet.tool_calls import MAX_ROUNDS
from pyagent.core.fleet.tools import FleetTool
from pyagent.core.resilience.deadline import Deadline
from pyagent.core.structured_output.wanted import Schema, Wanted, json_schema_of
from pyagent.core.trace_context import continue_trace

if TYPE_CHECKING:
    from pyagent.core.fleet.chain_view import ChainView
    from pyagent.core.fleet.confidence import DoubtAct
    from pyagent.core.fleet.context import Context
    from pyagent.core.fleet.events import QuestionKind
    from pyagent.core.fleet.model_call import Completion
    from pyagent.core.messages import FinishReason, JsonObject, Message, ResponseFormat, SamplingParams
    from pyagent.core.webhooks.actions import WebhookAction, WebhookReport

T = TypeVar("T")
R = TypeVar("R")
_PAUSE_SECONDS = 0.05
Ask = Callable[[AgentCall], Awaitable[object]]
"""Carries a call to the run and returns what came of it, or raises it."""


async def run_remote(agent: Agent, task: Task, view: AgentView, ask: Ask) -> object:
    """Return what an agent returns for a task of a run that is elsewhere; what it said until then has arrived."""
    grant(view.file_access)
    continue_trace(view.trace)
    context = RemoteContext(view, ask, task=task.title)
    try:
        return await agent.run(cast("Context", context), task)
    except asyncio.CancelledError:
        context.drop()
        raise
    finally:
        context.is_over = True
        await context.settle()


@dataclass(slots=True)
class RemoteStream:
    """A model's answer in pieces, each asked for when it is wanted; afterwards it says how it ended."""

    next: Callable[[int], Awaitable[object]]
    stop: Callable[[], Awaitable[object]]
    finish_reason: FinishReason | None = None
    doubt: str = ""
    _num_read: int = 0
    _is_over: bool = False

    def __aiter__(self) -> AsyncIterator[str]:
        return self

    async def __anext__(self) -> str:
        if self._is_over:
            raise StopAsyncIteration
        got = await self.next(self._num_read)
        if isinstance(got, tuple | list):
            self._num_read += 1
            return cast("Sequence[str]", got)[0]
        self._is_over, end = True, cast("Mapping[str, Any]", got)
        self.finish_reason, self.doubt = end["finish_reason"], end["doubt"]
        raise StopAsyncIteration

    async def aclose(self) -> None:
        """Break the answer off."""
        if not self._is_over:
            self._is_over = True
            await self.stop()

    @property
    def is_cut(self) -> bool:
        """Whether it ended at `max_tokens` or at the model's context length, not by itself."""
        return self.finish_reason == "length"


@dataclass(slots=True)
class RemoteContext(Questions):
    """One agent's view of a run that is elsewhere."""

    view: AgentView
    carry: Ask
    agent: str = field(init=False)
    step: str = field(init=False)
    deadline: Deadline = field(init=False)
    budget: Budget = field(init=False)
    last_prompt: LastPrompt | None = None
    is_over: bool = False
    task: str = ""
    scopes: Scopes = field(default_factory=Scopes)
    _num_calls: int = 0
    _told: set[asyncio.Future[object]] = field(default_factory=set[asyncio.Future[object]])

    def __post_init__(self) -> None:
        self.agent, self.step = self.view.agent, self.view.step
        self.deadline = Deadline.after(self.view.seconds)
        self.budget = Budget(self.step, self.view.left_tokens)

    # -- the model ----------------------------------------------------------------------------------------------------

    async def answer(
        self, messages: list[Message], response_format: ResponseFormat | None, sampling: SamplingParams
    ) -> Completion:
        """Return the model's whole answer to a conversation."""
        return cast("Completion", await self._call("answer", messages, response_format, sampling))

    async def likelihood(self, prompt: str) -> float:
        """Return the log probability that the model gives the tokens of a plain text after the first."""
        return cast("float", await self._call("likelihood", prompt))

    async def embed(self, texts: Sequence[str]) -> list[list[float]]:
        """Return a vector for each text."""
        return cast("list[list[float]]", await self._ask_run("embed", list(texts)))

    @property
    def reconsiders(self) -> bool:
        """Whether doubtful answers are asked again."""
        return self.view.reconsiders

    async def doubts(self, agreement: float) -> DoubtAct | None:
        """Say how far several answers agree; return what is to be done about it."""
        return cast("DoubtAct | None", await self._call("doubts", agreement))

    async def learned_strategy(self, options: Sequence[str], *, situation: str = "") -> str | None:
        """Return which of several ways to go about a task earned most before; None where nothing is learned."""
        return cast("str | None", await self._ask_run("learned_strategy", tuple(options), situation))

    async def complete(  # noqa: PLR0913 - ways to say what is wanted
        self,
        prompt: Prompt,
        *,
        system: str | None = None,
        sampling: SamplingParams | None = None,
        tools: Sequence[str] = (),
        max_rounds: int = MAX_ROUNDS,
        schema: Schema | None = None,
        must_call: bool = False,
    ) -> Completion:
        """Return the model's answer with how it ended; it may call the `tools` named, which the run does."""
        messages, sampling = as_messages(prompt, system), sampling or DEFAULT_SAMPLING
        plain = None if schema is None else json_schema_of(schema).schema
        args = messages, sampling, tuple(tools), max_rounds, plain, must_call
        completion = cast("Completion", await self._call("complete", *args))
        if schema is None or isinstance(schema, dict) or completion.is_handed_over:
            return completion
        return msgspec.structs.replace(completion, output=Wanted(schema).read(completion.text))

    def stream(
        self, prompt: Prompt, *, system: str | None = None, sampling: SamplingParams | None = None
    ) -> RemoteStream:
        """Return the model's answer piece by piece; the pieces are also shown to those who watch the run."""
        messages, sampling = as_messages(prompt, system), sampling or DEFAULT_SAMPLING
        opened: list[object] = []
        number = self.scopes.next_call()

        async def piece(index: int) -> object:
            if not opened:
                opened.append(await self._ask_run("stream", messages, sampling, number=number))
            return await self._ask_run("piece", opened[0], index)

        async def stop() -> object:
            return await self._ask_run("close_stream", opened[0]) if opened else None

        return RemoteStream(piece, stop)

    # -- tools and other agents ---------------------------------------------------------------------------------------

    @property
    def tools(self) -> tuple[str, ...]:
        """Names of the tools there are."""
        return tuple(tool.name for tool in self.view.tools)

    def tool(self, name: str) -> FleetTool:
        """Return the tool of that name, which the run calls; raises `RequestError` naming the nearest one there is."""
        for tool in self.view.tools:
            if tool.name == name:
                return FleetTool(name, tool.description, tool.parameters, partial(self.call_tool, name))
        raise unknown_name("tool", name, self.tools)

    async def call_tool(self, name: str, arguments: JsonObject | msgspec.Struct) -> object:
        """Return what a tool returns for these arguments; raises `RequestError` when they do not fit it."""
        plain = cast("JsonObject", msgspec.to_builtins(arguments))
        return await self._call("call_tool", name, plain)

    async def spawn(
        self, agent: str, task: Task | str, *, max_tokens: int | None = None, timeout_seconds: float | None = None
    ) -> object:
        """Another agent's result. It works within what is left here, or within less when that is given."""
        return await self._call("spawn", agent, task, max_tokens, timeout_seconds)

    async def map(
        self, function: Callable[[T], Awaitable[R]], items: Iterable[T], *, max_concurrency: int | None = None
    ) -> list[R]:
        """`function` of each item, side by side, in the items' order. The first failure cancels the rest."""
        parts = self.scopes.parts(function)
        return await side_by_side(self.agent, parts, enumerate(items), max_concurrency or self.view.max_concurrency)

    @property
    def memory(self) -> Memory:
        """The notes that the run's agents share, and those that are kept across runs."""
        return Memory(self._take_note, self._read_notes)

    def _take_note(self, spec: NoteSpec) -> None:
        self._tell("note", spec, number=self.scopes.next_call())

    async def _read_notes(self, tokens: int, about: str | None) -> Notes:
        return cast("Notes", await self._call("notes", tokens, about))

    async def chain(self) -> ChainView:
        """Return how the links of the run's chain stand; raises `RequestError` where that is not this run's to see."""
        return cast("ChainView", await self._ask_run("chain"))

    async def webhooks(self, action: WebhookAction) -> WebhookReport:
        """Do something with the webhooks of the run's tenant; raises `RequestError` where there are none."""
        return cast("WebhookReport", await self._call("webhooks", action))

    # -- people -------------------------------------------------------------------------------------------------------

    async def ask(self, text: str, *, options: Sequence[str] = (), kind: QuestionKind = "question") -> str:
        """Return what a person answers: one of the `options` if there are any."""
        return cast("str", await self._call("ask", text, tuple(options), kind))

    # -- saying what it does ------------------------------------------------------------------------------------------

    def progress(self, text: str) -> None:
        """Show a line of what is going on."""
        self._tell("progress", text)

    def keep(self, partial: object) -> None:
        """Keep what the agent has so far."""
        self._tell("keep", partial)

    def report(self, score: float, *, series: str = "") -> None:
        """Say how good what the agent has is."""
        self._tell("report", checked_score(score), series)

    def phase_ended(self, name: str, seconds: float, error: str | None) -> None:
        """Show that a part of the work is over."""
        self._tell("phase_ended", name, error, unlike=(seconds,))

    async def check_open(self) -> None:
        """Raise `AgentError` when the agent goes on after its end."""
        if self.is_over:
            await asyncio.sleep(_PAUSE_SECONDS)  # it may ask again and again, and the process is not its alone
            raise AgentError(f"{self.agent} goes on after its end", agent=self.agent)

    @property
    def session(self) -> str:
        """The name of its conversation with the model."""
        return self.view.session

    @property
    def depth(self) -> int:
        """How many agents this one was spawned through."""
        return self.view.depth

    @property
    def tenant(self) -> str:
        """Whose run it is."""
        return self.view.tenant

    # -- the way to the run -------------------------------------------------------------------------------------------

    async def _call(self, name: str, *args: object) -> object:
        """Ask the run for what has a number among the agent's calls."""
        return await self._ask_run(name, *args, number=self.scopes.next_call())

    async def _ask_run(self, name: str, *args: object, number: str = "") -> object:
        await self.check_open()
        return await self.carry(self._numbered(name, args, number=number))

    def _tell(self, name: str, *args: object, unlike: tuple[object, ...] = (), number: str = "") -> None:
        """Send without waiting; `settle` waits until all of it has arrived."""
        told = asyncio.ensure_future(self.carry(self._numbered(name, args, unlike, number)))
        self._told.add(told)

    def _numbered(
        self, name: str, args: tuple[object, ...], unlike: tuple[object, ...] = (), number: str = ""
    ) -> AgentCall:
        self._num_calls += 1
        return AgentCall(self.view.attempt, self._num_calls - 1, name, args, unlike, number)

    def drop(self) -> None:
        """Give up what was told and has not arrived: no one waits for it any more."""
        for told in self._told:
            told.cancel()

    async def settle(self) -> None:
        """Wait until what was told has arrived."""
        await asyncio.gather(*self._told, return_exceptions=True)
