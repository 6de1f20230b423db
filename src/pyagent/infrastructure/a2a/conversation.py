"""One task of an agent elsewhere, by the protocol's package: sent once, followed until it needs nothing more.

Both are calls of tools, so that guardrails see what leaves, and the journal has what came: a run that is resumed sends
nothing twice, and looks at the task that it began. All that the agent says is bounded. Cancelled here, it is cancelled
there; a run that is only left (its server ends) leaves it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, cast

import httpx
import msgspec
from a2a.client import Client, ClientConfig, ClientFactory
from a2a.client.card_resolver import parse_agent_card
from a2a.client.errors import A2AClientError
from a2a.types import (
    CancelTaskRequest,
    GetTaskRequest,
    Message,
    Part,
    Role,
    SendMessageRequest,
    StreamResponse,
    SubscribeToTaskRequest,
    TaskState,
)
from a2a.utils.errors import A2AError, TaskNotFoundError
from google.protobuf.json_format import MessageToDict, ParseError

from pyagent.core.errors import AgentAwayError, AgentError, PyAgentError
from pyagent.core.fleet.events import TextDelta
from pyagent.core.fleet.tool_run import idempotency_key
from pyagent.core.fleet.tools import FleetTool
from pyagent.core.one_line import printable
from pyagent.core.secrets import strike_text

if TYPE_CHECKING:
    from pyagent.core.fleet.context import Context
    from pyagent.http_pool import HttpPool

State = Literal["open", "completed", "failed", "canceled", "rejected", "input-required", "auth-required", "gone"]
MAX_CHARACTERS = 1_000_000
MAX_ANSWER_BYTES = 16 << 20
_MAX_PIECES = 10_000
_MAX_TOLD_CHARACTERS = 2_000
_MAX_PROGRESS = 500
_MAX_FAILURES = 5
_CANCEL_SECONDS = 1.0
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.1, 2.0
_ENDS: dict[int, State] = {
    TaskState.TASK_STATE_COMPLETED: "completed",
    TaskState.TASK_STATE_FAILED: "failed",
    TaskState.TASK_STATE_CANCELED: "canceled",
    TaskState.TASK_STATE_REJECTED: "rejected",
    TaskState.TASK_STATE_INPUT_REQUIRED: "input-required",
    TaskState.TASK_STATE_AUTH_REQUIRED: "auth-required",
}
_AWAY_STATUSES = (401, 403, 404, 429, 503)


class Outgoing(msgspec.Struct, frozen=True):
    """What is sent: a new task, or an answer to what one asks."""

    text: str
    task: str = ""
    context: str = ""


class Followed(msgspec.Struct, frozen=True):
    """The task that is followed."""

    task: str
    context: str


class Reply(msgspec.Struct, frozen=True):
    """How a task stands, by the protocol's words, and what it says; `open` is under way, `gone` not known there."""

    state: State
    text: str = ""
    task: str = ""
    context: str = ""


@dataclass(slots=True)
class _Heard:
    """What came of a task so far."""

    task: str = ""
    context: str = ""
    state: State = "open"
    said: str = ""
    artifacts: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    num_characters: int = 0
    num_pieces: int = 0

    def reply(self) -> Reply:
        """Return it; of a task that is completed its artifacts, else what its last status says."""
        whole = "\n\n".join("".join(pieces) for pieces in self.artifacts.values())
        text = (whole or self.said) if self.state == "completed" else self.said[:_MAX_TOLD_CHARACTERS]
        return Reply(self.state, text, self.task, self.context)


class Conversation:
    """A task at one agent. Close it."""

    def __init__(self, context: Context, agent: str, skill: str, card: dict[str, Any], pool: HttpPool) -> None:
        self._context = context
        self._agent = agent
        self._skill = skill
        self._pool = pool
        self._heard = _Heard()
        self._stream: AsyncIterator[StreamResponse] | None = None
        self._num_told = 0
        http = pool.client()
        http.headers["accept-encoding"] = "identity"
        http.event_hooks = {**http.event_hooks, "response": [_bound]}
        try:
            read = parse_agent_card(card)
            self._streams = read.capabilities.streaming
            self._client: Client = ClientFactory(ClientConfig(httpx_client=http)).create(read)
        except (ParseError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise AgentAwayError(f"the card of {agent} cannot be used: {str(error)[:200]}", agent=agent) from error
        self._send_tool = FleetTool(f"a2a_{agent}_send", f"Sends a message to {agent}.", Outgoing, self.send)
        self._follow_tool = FleetTool(
            f"a2a_{agent}_follow", f"Follows a task of {agent}.", Followed, self.follow, effect="none"
        )

    async def exchange(self, text: str, task: str, context: str) -> Reply:
        """Send a message; return how the task stands when it has ended or asks."""
        sent = await self._context.run_tool(self._send_tool, Outgoing(text, task, context))
        if not isinstance(sent, Reply):  # a person said that it was sent before the run was resumed
            raise AgentError(f"what {self._agent} answered was lost when the run was interrupted", agent=self._agent)
        if sent.state != "open":
            return sent
        return cast("Reply", await self._context.run_tool(self._follow_tool, Followed(sent.task, sent.context)))

    async def close(self) -> None:
        """Stop listening."""
        await self._close_stream()

    async def send(self, message: Outgoing) -> Reply:
        """Send it; return when the task has an id, or all of the answer where there is no task."""
        self._heard = _Heard(message.task, message.context)
        request = SendMessageRequest(
            message=Message(
                role=Role.ROLE_USER,
                parts=[Part(text=message.text)],
                message_id=idempotency_key(),
                task_id=message.task,
                context_id=message.context,
            )
        )
        if self._skill:
            request.message.metadata.update({"agent": self._skill})
        request.configuration.return_immediately = not self._streams
        request.configuration.accepted_output_modes.extend(["text/plain", "application/json"])
        try:
            self._stream = self._client.send_message(request)
            async for event in self._stream:
                self._take(event)
                if self._heard.state != "open" or self._heard.task:
                    break
        except (A2AError, ParseError, httpx.HTTPError, ValueError, RecursionError) as error:
            raise self._fault(error) from error
        if self._heard.state == "open" and not self._heard.task:
            raise AgentError(f"{self._agent} ended its answer without a task or a message", agent=self._agent)
        return self._heard.reply()

    async def follow(self, followed: Followed) -> Reply:
        """Return how the task stands when it needs nothing more, or something of us."""
        self._heard.task, self._heard.context = followed.task, followed.context
        try:
            return await self._followed()
        except asyncio.CancelledError:
            if not self._context.run.is_over:
                await self._cancel(followed.task)
            raise

    async def _followed(self) -> Reply:
        num_failures, pause = 0, _FIRST_PAUSE_SECONDS
        while True:
            try:
                if await self._listened():
                    return self._heard.reply()
                self._take_task(await self._client.get_task(GetTaskRequest(id=self._heard.task)))
                num_failures = 0
                if self._heard.state != "open":
                    return self._heard.reply()
                if self._streams:
                    self._stream = self._client.subscribe(SubscribeToTaskRequest(id=self._heard.task))
            except TaskNotFoundError:
                return Reply("gone", "", self._heard.task, self._heard.context)
            except (A2AError, ParseError, httpx.HTTPError, ValueError, RecursionError) as error:
                await self._close_stream()
                num_failures += 1
                if num_failures >= _MAX_FAILURES:
                    raise self._fault(error, has_begun=True) from error
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)

    async def _listened(self) -> bool:
        """Read the stream that is open, if one is; return whether the task has ended or asks."""
        if self._stream is None:
            return False
        try:
            async for event in self._stream:
                self._take(event)
                if self._heard.state != "open":
                    return True
        finally:
            await self._close_stream()
        return False

    async def _close_stream(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None and hasattr(stream, "aclose"):
            with suppress(A2AError, httpx.HTTPError, RuntimeError):
                async with aclosing(cast("Any", stream)):
                    pass

    async def _cancel(self, task: str) -> None:
        """Have the task cancelled there, as far as it listens."""
        with suppress(A2AError, httpx.HTTPError, TimeoutError, ValueError):
            async with asyncio.timeout(_CANCEL_SECONDS):
                await self._client.cancel_task(CancelTaskRequest(id=task))

    # -- what comes ---------------------------------------------------------------------------------------------------

    def _take(self, event: StreamResponse) -> None:
        heard = self._heard
        if event.HasField("message"):
            heard.state, heard.said = "completed", self._text(event.message.parts)
            heard.context = event.message.context_id
        elif event.HasField("task"):
            self._take_task(event.task)
        elif event.HasField("status_update"):
            heard.task, heard.context = event.status_update.task_id, event.status_update.context_id
            self._take_status(event.status_update.status)
        elif event.HasField("artifact_update"):
            update = event.artifact_update
            heard.task = heard.task or update.task_id
            self._take_artifact(update.artifact, is_more=update.append)

    def _take_task(self, task: Any) -> None:  # a message of the protocol
        heard = self._heard
        heard.task, heard.context = task.id or heard.task, task.context_id or heard.context
        heard.artifacts, heard.num_characters, heard.num_pieces = {}, 0, 0
        for artifact in task.artifacts:
            self._take_artifact(artifact, is_more=False, is_told=True)
        self._take_status(task.status)

    def _take_status(self, status: Any) -> None:  # a message of the protocol
        heard, said = self._heard, self._text(status.message.parts)
        heard.state = _ENDS.get(status.state, "open")
        if heard.state != "open":
            heard.said = said
        elif said and self._num_told < _MAX_PROGRESS:
            self._num_told += 1
            self._context.progress(self._safe(said))

    def _take_artifact(self, artifact: Any, *, is_more: bool, is_told: bool = False) -> None:
        heard, text = self._heard, self._text(artifact.parts, "")  # pieces that were appended are parts
        heard.num_characters += len(text)
        heard.num_pieces += 1
        if heard.num_characters > MAX_CHARACTERS or heard.num_pieces > _MAX_PIECES:
            most = f"{MAX_CHARACTERS:,} characters, or {_MAX_PIECES:,} pieces"
            raise AgentError(f"{self._agent} gave more than {most}", agent=self._agent)
        pieces = heard.artifacts.setdefault(artifact.artifact_id, [])
        if not is_more:
            pieces.clear()
        pieces.append(text)
        if text and not is_told:
            run, step = self._context.run, self._context.step
            run.emit(TextDelta(run=run.id, step=step, agent=self._agent, text=text))

    def _text(self, parts: Any, between: str = "\n") -> str:  # of messages of the protocol
        """Return the parts as text, without what the agent was sent to be let in, should it say that."""
        said = between.join(_text_of(part) for part in parts)
        return self._pool.without_secrets(said.encode(errors="replace")).decode()

    def _fault(self, error: Exception, *, has_begun: bool = False) -> PyAgentError:
        """Return what went wrong: `AgentAwayError` where the task was not taken, so that another may have it."""
        cause = error.__cause__ if isinstance(error, A2AClientError) else error
        if isinstance(cause, httpx.HTTPStatusError):
            status, what = cause.response.status_code, f"answers {cause.response.status_code}"
            is_away = status in _AWAY_STATUSES
        elif isinstance(cause, httpx.HTTPError):
            what, is_away = f"does not answer ({type(cause).__name__})", isinstance(cause, httpx.ConnectError)
        else:
            what, is_away = f"fails: {self._safe(str(error))}", False
        kind = AgentAwayError if is_away and not has_begun else AgentError
        return kind(f"{self._agent} {what}", agent=self._agent)

    def _safe(self, text: str) -> str:
        """Return what the agent says as a bounded line without secrets."""
        plain = self._pool.without_secrets(text[: 2 * _MAX_TOLD_CHARACTERS].encode(errors="replace")).decode()
        return strike_text(printable(" ".join(plain.split())))[:_MAX_TOLD_CHARACTERS]


def _text_of(part: Any) -> str:  # a part of a message of the protocol
    """Return a part as text: data as JSON, a file by its name alone."""
    if part.HasField("text"):
        return str(part.text)
    if part.HasField("data"):
        return json.dumps(MessageToDict(part.data), ensure_ascii=False)
    return f"[a file, {part.filename[:200] or part.media_type[:200] or 'without a name'}, which is not taken]"


async def _bound(response: httpx.Response) -> None:
    """Bound an answer, and refuse one that is packed: a megabyte may unpack to a gigabyte."""
    if response.headers.get("content-encoding", "identity").lower() != "identity":
        raise httpx.StreamError("it packs its answers, which it was asked not to")
    if isinstance(response.stream, httpx.AsyncByteStream):
        response.stream = _Bounded(response.stream)


class _Bounded(httpx.AsyncByteStream):
    """An answer's bytes; more than the bound is an error."""

    def __init__(self, inner: httpx.AsyncByteStream) -> None:
        self._inner = inner

    async def __aiter__(self) -> AsyncIterator[bytes]:
        num_bytes = 0
        async for piece in self._inner:
            num_bytes += len(piece)
            if num_bytes > MAX_ANSWER_BYTES:
                raise httpx.RemoteProtocolError(f"an answer of more than {MAX_ANSWER_BYTES >> 20} MiB")
            yield piece

    async def aclose(self) -> None:
        """Close it."""
        await self._inner.aclose()
