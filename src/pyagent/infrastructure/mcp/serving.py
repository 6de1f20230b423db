"""PyAgent as an MCP server: a call is a run, whose progress is told, and whose questions go to the client's person.

A question goes by elicitation: as a request of the server in protocols before 2026, and since then as a result that
asks for input, after which the client calls again; the run waits meanwhile, for ten minutes. A client that knows
neither has the run end with the question told. Cancelling a call ends its run.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import anyio
import msgspec
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError
from mcp_types import (
    INVALID_PARAMS,
    CallToolRequestParams,
    CallToolResult,
    ElicitRequest,
    ElicitRequestFormParams,
    ElicitResult,
    InputRequiredResult,
    ListToolsResult,
    PaginatedRequestParams,
    TextContent,
)

from pyagent import __version__
from pyagent.core.errors import RequestError
from pyagent.core.fleet.agent import text_of
from pyagent.core.fleet.events import AgentStarted, Event, Progress, Question, QuestionAsked, RunFinished
from pyagent.infrastructure.called_runs import CalledRun, Caller, told_error
from pyagent.infrastructure.mcp.offers import Offer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mcp.server.context import ServerRequestContext

    from pyagent.core.fleet.orchestrator import Fleet

MAX_RESULT_CHARACTERS = 1_000_000
WAIT_SECONDS = 600.0
"""How long a run waits for a client that was asked to call again."""
_MAX_WAITING = 100
_PROGRESS_SECONDS = 0.1
_MAX_PROGRESS_CHARACTERS = 500
_ANSWER = "answer"
_INSTRUCTIONS = "Agents of PyAgent: give each a task in words, with all it needs to know. A call may take minutes."


@dataclass(slots=True)
class _Waiting:
    """A run that waits for its client to call again with the answer to a question."""

    run: CalledRun
    call: tuple[str, str]
    question: Question
    expires: asyncio.TimerHandle


@dataclass(slots=True)
class AgentServer:
    """The server's handlers. `caller_of` says whose a request is."""

    fleet: Fleet
    offers: Mapping[str, Offer]
    caller_of: Callable[[ServerRequestContext[Any]], Caller]
    _waiting: dict[str, _Waiting] = field(default_factory=dict[str, _Waiting])
    _ending: set[asyncio.Task[None]] = field(default_factory=set[asyncio.Task[None]])

    def server(self) -> Server[Any]:
        """Return the package's server with these handlers."""
        return Server(
            "pyagent",
            version=__version__,
            instructions=_INSTRUCTIONS,
            on_list_tools=self._list,
            on_call_tool=self._call,
        )

    async def close(self) -> None:
        """End the runs that wait for a client."""
        for token in list(self._waiting):
            self._give_up(token)
        await asyncio.gather(*self._ending, return_exceptions=True)

    async def _list(self, _: ServerRequestContext[Any], __: PaginatedRequestParams | None) -> ListToolsResult:
        return ListToolsResult(tools=[offer.tool for offer in self.offers.values()])

    async def _call(
        self, context: ServerRequestContext[Any], params: CallToolRequestParams
    ) -> CallToolResult | InputRequiredResult:
        offer = self.offers.get(params.name)
        if offer is None:
            raise MCPError(INVALID_PARAMS, f"there is no tool {params.name!r:.80}; tools/list has all")
        caller = self.caller_of(context)
        try:
            if params.request_state is not None:
                run = self._taken_up(params, caller)
            else:
                task = await offer.task(params.arguments or {})
                run = CalledRun(self.fleet, offer.agent, task, caller, can_ask=_can_ask(context))
                run.begin()
            return await self._followed(context, params, run)
        except Exception as error:
            if isinstance(error, MCPError):
                raise
            return _result(told_error(error, params.name, caller), is_error=True)

    async def _followed(
        self, context: ServerRequestContext[Any], params: CallToolRequestParams, run: CalledRun
    ) -> CallToolResult | InputRequiredResult:
        """Return the run's result, or what it asks; the run ends with the call unless it waits for an answer."""
        is_waiting = False
        progress = _Progress(context)
        try:
            while (event := await run.next()) is not None:
                if isinstance(event, RunFinished):
                    return _result(text_of(event.output), structured=event.output)
                if isinstance(event, QuestionAsked) and run.can_ask:
                    if context.session.can_send_request:
                        run.answer(event.question, await _elicited(context, event.question))
                    elif len(self._waiting) < _MAX_WAITING:
                        is_waiting = True
                        return self._asked(params, run, event.question)
                    else:
                        raise RequestError(f"too many runs wait for answers; this one asks: {event.question.text}")
                await progress.tell(event)
            raise RequestError("the run ended without a result")
        finally:
            if not is_waiting:
                with anyio.CancelScope(shield=True):
                    await run.close()

    # -- questions by a result that asks for input ---------------------------------------------------------------------

    def _asked(self, params: CallToolRequestParams, run: CalledRun, question: Question) -> InputRequiredResult:
        token = secrets.token_urlsafe(32)
        expires = asyncio.get_running_loop().call_later(WAIT_SECONDS, self._give_up, token)
        self._waiting[token] = _Waiting(run, _key(params), question, expires)
        request = ElicitRequest(params=ElicitRequestFormParams.model_validate(_form(question)))
        return InputRequiredResult(input_requests={question.id: request}, request_state=token)

    def _taken_up(self, params: CallToolRequestParams, caller: Caller) -> CalledRun:
        """Return the run that waits for this call, with its answer given. Raises `MCPError` for any other call."""
        waiting = self._waiting.get(params.request_state or "")
        if waiting is None or waiting.run.caller != caller or waiting.call != _key(params):
            raise MCPError(INVALID_PARAMS, "no call waits for this answer; it may have waited too long: call again")
        given = (params.input_responses or {}).get(waiting.question.id)
        answer = _answer_in(given) if isinstance(given, ElicitResult) else None
        waiting.run.answer(waiting.question, answer)
        waiting.expires.cancel()
        del self._waiting[params.request_state or ""]
        return waiting.run

    def _give_up(self, token: str) -> None:
        waiting = self._waiting.pop(token)
        waiting.expires.cancel()
        ending = asyncio.create_task(waiting.run.close())
        self._ending.add(ending)
        ending.add_done_callback(self._ending.discard)


def _key(params: CallToolRequestParams) -> tuple[str, str]:
    return params.name, msgspec.json.encode(params.arguments or {}, order="sorted").decode()


def _can_ask(context: ServerRequestContext[Any]) -> bool:
    """Whether the client's person can be asked, by a form."""
    capabilities = context.session.client_capabilities
    elicitation = None if capabilities is None else capabilities.elicitation
    return elicitation is not None and (elicitation.form is not None or elicitation.url is None)


async def _elicited(context: ServerRequestContext[Any], question: Question) -> str | None:
    """Return what the person answers, None where nothing."""
    form = _form(question)
    result = await context.session.elicit_form(
        str(form["message"]), form["requestedSchema"], related_request_id=context.request_id
    )
    return _answer_in(result)


def _answer_in(result: ElicitResult) -> str | None:
    content = result.content if result.action == "accept" else None
    answer = (content or {}).get(_ANSWER)
    return None if answer is None else str(answer)


def _form(question: Question) -> dict[str, Any]:
    choice: dict[str, object] = {"type": "string", "title": "Answer"}
    if question.options:
        choice["enum"] = list(question.options)
    schema = {"type": "object", "properties": {_ANSWER: choice}, "required": [_ANSWER]}
    return {"message": question.text, "requestedSchema": schema}


@dataclass(slots=True)
class _Progress:
    """Tells a client that asked for it what its run does, a few times a second at most."""

    context: ServerRequestContext[Any]
    _count: int = 0
    _at: float = 0.0

    async def tell(self, event: Event) -> None:
        if isinstance(event, AgentStarted):
            text = f"{event.agent} begins"
        elif isinstance(event, Progress):
            text = f"{event.agent}: {event.text}"
        else:
            return
        now = time.monotonic()
        if now - self._at < _PROGRESS_SECONDS:
            return
        self._count, self._at = self._count + 1, now
        with suppress(MCPError):
            await self.context.session.report_progress(self._count, message=text[:_MAX_PROGRESS_CHARACTERS])


def _result(text: str, *, structured: object = None, is_error: bool = False) -> CallToolResult:
    num_left = len(text) - MAX_RESULT_CHARACTERS
    text = text if num_left <= 0 else f"{text[:MAX_RESULT_CHARACTERS]}\n[cut: {num_left:,} characters more]"
    content = None if num_left > 0 else _as_table(structured)
    return CallToolResult(content=[TextContent(text=text)], structured_content=content, is_error=is_error)


def _as_table(output: object) -> dict[str, object] | None:
    """Return an output as the protocol's structured content; None for what is no table."""
    values: object = None
    if isinstance(output, msgspec.Struct | dict):
        with suppress(TypeError, ValueError):
            values = msgspec.to_builtins(output, enc_hook=str, str_keys=True)
    return cast("dict[str, object]", values) if isinstance(values, dict) else None
