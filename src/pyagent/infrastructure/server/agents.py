"""The fleet's agents as models: a request for `agent:math` is a task for the agent `math`.

The last user message is the task; what the agent says on its way comes as reasoning, its result as content. An agent
samples as it sees fit, so sampling fields are not passed on; tools and answer formats are refused.

The fleet is made with the first request: importing all agents takes longer than a server should take to answer.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping
from contextlib import aclosing
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

import msgspec

from pyagent.core.backends import AGENT_PREFIX
from pyagent.core.capabilities import PLAIN
from pyagent.core.errors import RequestError
from pyagent.core.fleet.file_access import FileAccess
from pyagent.core.messages import (
    ChatDelta,
    ChatRequest,
    EmbedRequest,
    EmbedResult,
    FailedAttempt,
    Health,
    ImagePart,
    JsonObject,
    Message,
    ModelInfo,
    PromptTokensDetails,
    Usage,
)
from pyagent.core.nearest import did_you_mean
from pyagent.core.settings.hooks import HookSettings
from pyagent.infrastructure.server.run_rate import RunRate

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from pyagent.core.fleet.agent import Agent, Task
    from pyagent.core.fleet.events import Event, Totals
    from pyagent.core.fleet.orchestrator import Fleet
    from pyagent.infrastructure.observability.alerts import Alerts
    from pyagent.infrastructure.server.hooks.runs import HookRuns
    from pyagent.infrastructure.server.runs.background import BackgroundRuns

logger = logging.getLogger(__name__)

_ALERT_SECONDS = 60.0
_LOOK_SECONDS = 0.5
NO_HOOKS: Mapping[str, HookSettings] = MappingProxyType({})
MAX_TASK_CHARS = 2_000_000
"""Of a task and what was said before it: agents' rules search it, and the journal has it with every event."""


class AgentBackend:
    """A `Backend` whose models are the fleet's agents."""

    def __init__(
        self, make_fleet: Callable[[], Fleet], files_root: Path | None = None, run_rate: str | None = None
    ) -> None:
        """`make_fleet` is called once; the fleet is closed with the backend. Agents read what is below `files_root`.

        Each tenant may begin runs by `run_rate`.
        """
        self.name = "agents"
        self.capabilities = PLAIN
        self._make_fleet = make_fleet
        self._fleet: Fleet | None = None
        self._background: BackgroundRuns | None = None
        self._alerts: Alerts | None = None
        self._watching: list[asyncio.Task[None]] = []
        self._hook_runs: HookRuns | None = None
        self._lock = threading.Lock()
        self.file_access = FileAccess.below(files_root)
        self._run_rate = RunRate.of(run_rate)

    def fleet(self) -> Fleet:
        """The fleet, made when it is not; from any thread."""
        with self._lock:
            if self._fleet is None:
                self._fleet = self._make_fleet()
            return self._fleet

    @property
    def current(self) -> Fleet | None:
        """The fleet, if it was made."""
        return self._fleet

    async def made(self) -> Fleet:
        """The fleet, made when it is not."""
        return self._fleet or await asyncio.to_thread(self.fleet)

    async def count_run(self, tenant: str) -> None:
        """Count a run that a tenant begins. Raises `CapacityError` for one too many (`server.run_rate`)."""
        self._run_rate.take((await self.made()).journal.rates, tenant)

    def metrics(self) -> Iterator[Metric]:
        """Return the metrics of the fleet's runs; none before it is made."""
        from pyagent.infrastructure.observability.run_metrics import collect_runs

        if self._fleet is not None:
            yield from collect_runs(self._fleet.stats, self._fleet.num_running)
            yield from self._alerts_of(self._fleet).collect()
            yield from self._webhook_metrics(self._fleet)

    def _webhook_metrics(self, fleet: Fleet) -> Iterator[Metric]:
        from pyagent.infrastructure.observability.webhook_metrics import collect_webhooks
        from pyagent.infrastructure.storage.journal import SqliteJournal

        if isinstance(fleet.journal, SqliteJournal):
            yield from collect_webhooks(fleet.journal.webhooks)

    def _alerts_of(self, fleet: Fleet) -> Alerts:
        from pyagent.infrastructure.observability.alerts import Alerts
        from pyagent.infrastructure.storage.journal import SqliteJournal

        if self._alerts is None:
            self._alerts = Alerts(fleet.journal if isinstance(fleet.journal, SqliteJournal) else None)
        return self._alerts

    def start_watching(self, hooks: Mapping[str, HookSettings] = NO_HOOKS) -> None:
        """Begin to `watch`, to deliver what webhooks are to tell, and to run what hooks took, until `close`."""
        self._watching += [asyncio.create_task(self.watch()), asyncio.create_task(self._deliver(hooks))]

    async def _deliver(self, hooks: Mapping[str, HookSettings]) -> None:
        while self._fleet is None:  # noqa: ASYNC110 - made in a thread, when it is first needed
            await asyncio.sleep(_LOOK_SECONDS)
        from pyagent.infrastructure.webhooks.deliveries import deliver_for

        if hooks:
            await self.hook_runs(hooks)
        await deliver_for(self._fleet.journal)

    async def watch(self, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        """Look each minute for what is odd in the numbers of runs, once there is a fleet, until cancelled."""
        while True:
            await sleep(_ALERT_SECONDS)
            if self._fleet is not None:
                try:
                    self._alerts_of(self._fleet).look()
                except Exception:
                    logger.exception("looking for alerts failed, and is tried again in a minute")

    async def background_runs(self) -> BackgroundRuns:
        """The runs that go on without their clients."""
        from pyagent.infrastructure.server.runs.background import BackgroundRuns

        fleet = await self.made()
        if self._background is None:
            self._background = BackgroundRuns(fleet)
        return self._background

    async def hook_runs(self, hooks: Mapping[str, HookSettings]) -> HookRuns:
        """The runs that incoming webhooks begin, at work. Raises `RequestError` where the journal is not on disk."""
        from pyagent.infrastructure.server.hooks.runs import HookRuns
        from pyagent.infrastructure.storage.journal import SqliteJournal

        runs = await self.background_runs()
        if self._hook_runs is None:
            if not isinstance(journal := runs.fleet.journal, SqliteJournal):
                raise RequestError("hooks need a journal on disk", param="hook", code="hook_not_found")
            self._hook_runs = HookRuns(runs, journal.webhooks.inbox, hooks, self.file_access)
            self._watching.append(asyncio.create_task(self._hook_runs.work()))
        return self._hook_runs

    async def leave(self, grace_seconds: float) -> None:
        """Let the runs that go on without their clients end in this time; what is left then is unfinished."""
        if self._background is not None:
            await self._background.leave(grace_seconds)

    async def models(self) -> list[ModelInfo]:
        """One model for each agent."""
        return [ModelInfo(id=AGENT_PREFIX + name, backend=self.name) for name in (await self.made()).agents]

    async def chat(self, request: ChatRequest) -> AsyncGenerator[ChatDelta, None]:
        """Run the agent; closing the iterator cancels its run."""
        from pyagent.core.fleet.events import ModelCalled

        name = request.model.removeprefix(AGENT_PREFIX)
        fleet = await self.made()
        task = _task(request, name, fleet)
        await self.count_run(request.origin.tenant)
        run = fleet.run(
            task,
            agent=name,
            timeout_seconds=request.timeout_seconds,
            is_private=request.private,
            client=request.origin.client,
            tenant=request.origin.tenant,
            file_access=self.file_access,
        )
        attempts: list[FailedAttempt] = []
        async with aclosing(run) as events:
            async for event in events:
                if isinstance(event, ModelCalled):
                    attempts += event.attempts
                delta = _delta(event)
                if delta:
                    yield msgspec.structs.replace(delta, model=request.model, backend=self.name, attempts=attempts)
                    attempts = []

    async def embed(self, request: EmbedRequest) -> EmbedResult:
        """Agents do not embed."""
        raise RequestError("agents do not embed; use an embedding model", param="model")

    async def health(self) -> Health:
        """As ready as what answers them."""
        return await (await self.made()).backend.health()

    async def close(self) -> None:
        """Close the fleet, if it was made; runs without clients that are under way are left unfinished."""
        for watching in self._watching:
            watching.cancel()
        await asyncio.gather(*self._watching, return_exceptions=True)
        if self._background is not None:
            await self._background.leave(0.0)
        if self._fleet is not None:
            await self._fleet.close()


def _task(request: ChatRequest, name: str, fleet: Fleet) -> Task:
    from pyagent.core.fleet.agent import Task

    if name not in fleet.agents:
        known = [AGENT_PREFIX + agent for agent in fleet.agents]
        hint = did_you_mean(request.model, known, f"there are {', '.join(known)}")
        raise RequestError(f"there is no agent {name!r}; {hint}", param="model", code="model_not_found")
    if request.tools or (request.response_format and request.response_format.type != "text"):
        param = "tools" if request.tools else "response_format"
        raise RequestError(f"{request.model} is an agent, which takes no {param}", param=param)
    if request.n > 1 or request.best_of is not None or request.beam is not None:
        raise RequestError(f"{request.model} is an agent, which gives one answer", param="n")
    num_chars = len(request.prompt or "") + sum(len(message.text) for message in request.messages)
    if num_chars > MAX_TASK_CHARS:
        text = f"{request.model} takes up to {MAX_TASK_CHARS} characters, with what was said before; got {num_chars}"
        raise RequestError(text, param="messages", code="context_length_exceeded")
    of_tokens = ("prompt_logprobs", "top_activations", "logit_lens")
    refused = [name for name in of_tokens if getattr(request.sampling, name) is not None]
    if request.sampling.echo or refused:
        param = "echo" if request.sampling.echo else refused[0]
        raise RequestError(f"{request.model} is an agent, which takes no {param}", param=param)
    asked = [place for place, message in enumerate(request.messages) if message.role == "user"]
    if not asked:
        return Task(text=request.prompt or "")
    last = request.messages[asked[-1]]
    history = tuple(request.messages[: asked[-1]])
    return Task(text=last.text, history=history, arguments=_images(last, request.model, fleet.agents[name]))


def _images(message: Message, model: str, agent: Agent) -> JsonObject:
    """Return the images of the message that asks, as arguments of an agent that takes some."""
    from pyagent.core.fleet.agent import arguments_type

    parts = message.content if isinstance(message.content, list) else []
    urls: list[object] = [part.image_url.url for part in parts if isinstance(part, ImagePart)]
    if not urls:
        return {}
    if "images" not in getattr(arguments_type(agent), "__struct_fields__", ()):
        raise RequestError(f"{model} takes no images", param="messages")
    return {"images": urls}


def _delta(event: Event) -> ChatDelta | None:
    from pyagent.core.fleet.agent import text_of
    from pyagent.core.fleet.events import Progress, RunFinished, TextDelta

    match event:
        case TextDelta():
            return ChatDelta(reasoning=event.text)
        case Progress():
            return ChatDelta(reasoning=f"{event.agent}: {event.text}\n")
        case RunFinished():
            return ChatDelta(content=text_of(event.output), finish_reason="stop", usage=_usage(event.totals))
        case _:
            return None


def _usage(totals: Totals) -> Usage:
    return Usage(
        prompt_tokens=totals.prompt_tokens,
        completion_tokens=totals.completion_tokens,
        total_tokens=totals.prompt_tokens + totals.completion_tokens,
        prompt_tokens_details=PromptTokensDetails(totals.cached_tokens),
    )
