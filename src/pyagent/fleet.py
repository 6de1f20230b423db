"""A fleet made of what the settings and the installed plugins bring.

What is given by hand is used as it is; what is not comes from the settings.
"""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from pyagent.assembly import make_agents, make_chain, make_embedder, make_host, make_journal
from pyagent.core.chain.chain import Chain
from pyagent.core.errors import ConfigError, RequestError
from pyagent.core.fleet.agent import unknown_name
from pyagent.core.fleet.choosing import chosen
from pyagent.core.fleet.confidence import ConfidencePolicy
from pyagent.core.fleet.containment import close_all
from pyagent.core.fleet.doubt_words import LANGUAGES
from pyagent.core.fleet.event_reader import read_events
from pyagent.core.fleet.executor import IN_PROCESS
from pyagent.core.fleet.limits import AgentLimits, FleetLimits
from pyagent.core.fleet.reliability import LOOK_BACK_SECONDS, failing, failure_rates
from pyagent.core.fleet.renewal import RenewableFleet
from pyagent.core.fleet.run_result import result_from
from pyagent.core.fleet.run_view import RunView, view_of
from pyagent.core.fleet.stalls import StallPolicy
from pyagent.core.fleet.tool_providers import OPEN_SECONDS
from pyagent.core.fleet.turns import Rates
from pyagent.core.messages import SamplingParams
from pyagent.core.nearest import did_you_mean
from pyagent.core.rates import Rate, read_bucket_rate
from pyagent.core.trace_context import missing_packages

if TYPE_CHECKING:
    from pyagent.core.backends import Backend
    from pyagent.core.fleet.agent import Agent
    from pyagent.core.fleet.events import Event
    from pyagent.core.fleet.executor import Executor
    from pyagent.core.fleet.journal import Journal, RunSummary
    from pyagent.core.fleet.learner import Learner
    from pyagent.core.fleet.marks import Marked
    from pyagent.core.fleet.replay_check import ReplayReport
    from pyagent.core.fleet.rollups import Kind
    from pyagent.core.fleet.tool_providers import ToolProvider
    from pyagent.core.fleet.tools import FleetTool
    from pyagent.core.fleet.tracing import Tracer
    from pyagent.core.plugins import PluginHost
    from pyagent.core.search import SearchResult
    from pyagent.core.settings import Settings
    from pyagent.infrastructure.storage.journal import SqliteJournal
    from pyagent.infrastructure.storage.search.service import Search
    from pyagent.sync import SyncFleet

__all__ = ["Fleet"]

logger = logging.getLogger(__name__)


class _Given(NamedTuple):
    """What a program gave to its fleet; None is what the plugins bring."""

    agents: list[Agent | str]
    tools: list[FleetTool | str]
    tool_providers: list[ToolProvider] | None


class Fleet(RenewableFleet):
    """A fleet with everything in place: `async with pyagent.Fleet() as fleet: async for event in fleet.run("...")`.

    Without arguments it reads `pyagent.toml` and uses the installed plugins. A backend given is the caller's to close.
    `agents` and `tools` given are all there are; a name among them is that of an installed one, `*` is all of these.
    """

    def __init__(  # noqa: PLR0913 - each stands in for one thing the settings would bring
        self,
        settings: Settings | None = None,
        *,
        backend: Backend | None = None,
        agents: Iterable[Agent | str] | None = None,
        tools: Iterable[FleetTool | str] | None = None,
        tool_providers: Iterable[ToolProvider] | None = None,
        journal: Journal | None = None,
        host: PluginHost | None = None,
    ) -> None:
        if settings is None:
            from pyagent.core.config import load_settings

            settings = load_settings().settings
        host = make_host(settings) if host is None else host
        self._given = given = _Given(
            ["*"] if agents is None else list(agents),
            ["*"] if tools is None else list(tools),
            None if tool_providers is None else list(tool_providers),
        )
        self._brought = host.tool_providers() if self._opens_providers else {}
        self._is_backend_owned = backend is None
        journal = make_journal(settings) if journal is None else journal
        self._embedder = make_embedder(settings, host)
        self._search = _make_search(journal, self._embedder)
        super().__init__(
            make_chain(settings, host) if backend is None else backend,
            chosen(given.agents, make_agents(settings, host), "agent"),
            chosen(given.tools, _tools(settings, host, self._search), "tool"),
            tool_providers=self._providers(settings, host),
            journal=journal,
            limits=_limits(settings),
            tracer=_make_tracer(settings.server.otlp_endpoint),
            executor=_make_executor(settings, host),
            approved_tools=settings.tools.approved,
            guardrails=host.guardrails().values(),
        )
        self.settings = settings
        self.host = host
        self._recall()
        self.learner = _make_learner(settings, journal)
        if isinstance(self.backend, Chain) and self.learner is not None:
            self.backend.prefer = self.learner.first_link
        self._warn_of("fleet.rates.agents has a rate", settings.fleet.rates.agents)
        self._warn_of("learning.prompts has prompts", settings.learning.prompts)
        self._warn_of("learning.agents has a place", settings.learning.agents)
        self._sync: SyncFleet | None = None

    def _warn_of(self, what: str, named: Iterable[str]) -> None:
        """Warn of settings for agents that are not here."""
        for name in named:
            if name not in self.agents:
                hint = did_you_mean(name, self.agents, f"there are {', '.join(self.agents)}")
                logger.warning("%s for %r, which is no agent here; %s", what, name, hint)

    async def renew(self) -> None:
        """Have runs that begin from now on use what the plugins bring now; runs under way keep what they have."""
        given, host = self._given, self.host
        agents = chosen(given.agents, make_agents(self.settings, host), "agent")
        tools = chosen(given.tools, _tools(self.settings, host, self._search), "tool")
        brought = host.tool_providers() if self._opens_providers else {}
        is_same, self._brought = brought == self._brought, brought
        await self.replace(
            {agent.name: agent for agent in agents},
            {tool.name: tool for tool in tools},
            host.guardrails().values(),
            None if is_same else self._providers(self.settings, host),
        )

    @property
    def _opens_providers(self) -> bool:
        """Whether tools come from providers of plugins: tools given by hand are all there are."""
        return self._given.tool_providers is None and "*" in self._given.tools

    def _providers(self, settings: Settings, host: PluginHost) -> list[ToolProvider]:
        if self._opens_providers:
            return _providers(settings, self._brought, host)
        return self._given.tool_providers or []

    def __enter__(self) -> SyncFleet:
        """Return the fleet for a program without an event loop: its methods wait."""
        from pyagent.sync import SyncFleet

        self._sync = SyncFleet(self)
        return self._sync

    def __exit__(self, *_: object) -> None:
        if self._sync is not None:
            self._sync.close()

    def _recall(self) -> None:
        """Begin with what the journal knows of links and agents that failed lately."""
        from pyagent.infrastructure.storage.journal import SqliteJournal

        if not isinstance(self.journal, SqliteJournal):
            return
        now = time.time()
        try:
            agents = _recent_failures(self.journal, "agent", now)
            links = _recent_failures(self.journal, "link", now)
        except RequestError as error:  # the first run says so, too
            logger.debug("what failed lately is not known: %s", error)
            return
        self._scores.fail_until = {name: self._scores.clock() + seconds for name, seconds in agents.items()}
        if isinstance(self.backend, Chain):
            self.backend.recall(links)

    async def search(
        self, query: str, *, files: Path | str | None = None, tenant: str = "", limit: int = 10
    ) -> SearchResult:
        """Return the passages of a tenant's past runs, or of the files below a folder, that fit best.

        Raises `RequestError` for a query without words, and where the journal is in memory.
        """
        if self._search is None:
            raise RequestError("only a fleet whose journal is on disk can search", param="query")
        if files is not None:
            return await self._search.files(query, Path(files), limit=limit)
        return await self._search.runs(query, tenant=tenant, limit=limit)

    def runs(self) -> list[RunSummary]:
        """Return the runs that the journal has, newest first."""
        return self.journal.runs()

    def show(self, run: str) -> RunView:
        """Return a run at a glance: its state, steps, result or error, and the questions that it waits with.

        Raises `RequestError` for a run that is unknown.
        """
        view = view_of(self.journal, self._row(run))
        here = self.under_way(run) is not None
        return msgspec.structs.replace(view, questions=tuple(self.questions(run))) if here else view

    def mark(self, run: str, mark: str | float) -> Marked:
        """Say how good a run was: `good`, `bad` or a number from 0 to 1; `learning.policy` chooses agents by it.

        Raises `RequestError` for another mark, for a run that is unknown or under way, and for one that chose no agent.
        """
        from pyagent.core.fleet.marks import mark_run
        from pyagent.infrastructure.storage.journal import SqliteJournal

        if not isinstance(self.journal, SqliteJournal):
            raise RequestError("only a fleet whose journal is on disk keeps marks", param="run")
        return mark_run(self.journal, self.journal.outcomes, self._row(run).run, mark)

    def result(self, run: str) -> object:
        """Return a finished run's result, in the type that its agent promises.

        Raises `RequestError` for a run that is unknown or has none; `show` says how that one stands.
        """
        return result_from(self.journal, self._row(run), self.agents)

    async def events(self, run: str, start: int = 0) -> AsyncGenerator[Event, None]:
        """Yield a run's events from the number `start` on, and those that come, until it no longer runs.

        The run may be over, under way in this fleet, or in another process; the reader may leave at any time. Pieces
        of text come only while they are new. Raises `RequestError` for a run that is unknown.
        """
        reading = read_events(self.journal, self.under_way, self._row(run).run, start)
        async with aclosing(reading) as events:
            async for _, event in events:
                if event is not None:
                    yield event

    async def check_replay(self, run: str) -> ReplayReport:
        """Run the agents' code again on what the journal has of a run, and return the first difference.

        No model is asked and no tool called. Raises `RequestError` for a run that is neither done nor failed.
        """
        from pyagent.core.fleet.replay_check import check_replay

        return await check_replay(self, self._row(run).run)

    def _row(self, run: str) -> RunSummary:
        if (row := self.journal.summary(run)) is None:
            raise unknown_name("run", run, [row.run for row in self.journal.runs()])
        return row

    async def close(self) -> None:
        """End the runs, close the agents, and the chain when it was made here."""
        await super().close()
        if self._embedder is not None:
            await close_all({"the embedder": self._embedder.close})
        if self._is_backend_owned:
            await close_all({f"the backend {self.backend.name}": self.backend.close})


def _recent_failures(journal: SqliteJournal, kind: Kind, now: float) -> dict[str, float]:
    rows = journal.rollups([kind], since=now - LOOK_BACK_SECONDS, is_complete=False)
    return failing(failure_rates(rows, now))


def _tools(settings: Settings, host: PluginHost, search: Search | None) -> dict[str, FleetTool]:
    """Return the tools of plugins, and the built-in ones whose names are not taken by them."""
    from pyagent.infrastructure.tools.built_in import built_in_tools

    return {tool.name: tool for tool in built_in_tools(settings.tools, settings.paths.data, search)} | dict(
        host.tools()
    )


def _make_search(journal: Journal, embedder: Backend | None) -> Search | None:
    """Return the search over a journal on disk; others are not searched."""
    from pyagent.infrastructure.storage.journal import SqliteJournal
    from pyagent.infrastructure.storage.search.service import Search

    return Search(journal.search_folder, journal, embedder) if isinstance(journal, SqliteJournal) else None


def _make_learner(settings: Settings, journal: Journal) -> Learner | None:
    """Return what learns from outcomes; None where there is no policy and no prompt to test."""
    learning = settings.learning
    if learning.policy == "off" and not learning.prompts:
        return None
    from pyagent.core.fleet.learner import Learner, LearningRules
    from pyagent.infrastructure.storage.journal import SqliteJournal

    if not isinstance(journal, SqliteJournal):
        logger.warning("[learning] does nothing: the fleet's journal is not on disk")
        return None
    rules = LearningRules(
        policy=None if learning.policy == "off" else learning.policy,
        margin=learning.margin,
        agents=frozenset(learning.agents),
        is_together=learning.together,
        seed=learning.seed,
        attempts=learning.attempts,
        rewards=frozenset(learning.rewards),
        objectives=tuple(learning.objectives.values()),
        strategies=tuple(learning.strategies),
        has_backends=learning.backends,
        prompts=learning.prompts,
        prompts_by=learning.prompts_by,
    )
    return Learner(journal.outcomes, rules)


def _providers(settings: Settings, of_plugins: Mapping[str, ToolProvider], host: PluginHost) -> list[ToolProvider]:
    """Return the tool providers of plugins, the MCP servers of the settings, and what searches the web."""
    brought: list[ToolProvider] = [*of_plugins.values()]
    if settings.mcp_servers:
        from pyagent.infrastructure.mcp.provider import mcp_providers

        brought += mcp_providers(settings.mcp_servers, wait_seconds=OPEN_SECONDS - 1)
    return [*brought, _make_web(settings, host)] if settings.web.provider else brought


def _make_web(settings: Settings, host: PluginHost) -> ToolProvider:
    """Return what brings the tools for the web. Raises `ConfigError` for a search provider that no plugin brings."""
    from pyagent.infrastructure.web.tools import WebTools
    from pyagent.logic.reading.reader import PageReader

    name, factories = settings.web.provider, host.search_providers()
    if name not in factories:
        hint = did_you_mean(name, factories, f"there are {', '.join(sorted(factories)) or 'none'}")
        raise ConfigError(f"no plugin brings the search provider {name!r}; {hint}", key="web.provider")
    return WebTools(factories[name](settings), PageReader(), allows_private=settings.web.private)


def _limits(settings: Settings) -> FleetLimits:
    budget = settings.budget
    _check_activations(settings)
    return FleetLimits(
        run_tokens=budget.run.tokens,
        run_seconds=budget.run.seconds,
        run_usd=budget.run.usd,
        run_agents=budget.run.agents,
        agent=AgentLimits(tokens=budget.agent.tokens, seconds=budget.agent.seconds, usd=budget.agent.usd),
        fleet_tokens=budget.fleet.tokens,
        fleet_seconds=budget.fleet.seconds,
        fleet_usd=budget.fleet.usd,
        max_concurrency=settings.fleet.max_concurrency,
        max_runs=settings.fleet.max_runs,
        plan=settings.fleet.plan,
        route=settings.fleet.route,
        tool_guard=settings.fleet.tool_guard,
        waits_for_answers=settings.fleet.questions == "wait",
        confidence=_confidence(settings),
        stalls=StallPolicy(max_repeats=settings.fleet.stalls.repeats, max_flat_scores=settings.fleet.stalls.scores),
        top_activations=settings.fleet.top_activations,
        logit_lens=settings.fleet.logit_lens,
        rates=Rates(agents=_rates(settings.fleet.rates.agents), tools=_rates(settings.fleet.rates.tools)),
    )


def _check_activations(settings: Settings) -> None:
    """Raise `ConfigError` for numbers that no request may ask for."""
    try:
        SamplingParams(top_activations=settings.fleet.top_activations, logit_lens=settings.fleet.logit_lens).validate()
    except RequestError as error:
        raise ConfigError(f"fleet.{error}", key=f"fleet.{error.param}") from error


def _rates(given: Mapping[str, str]) -> dict[str, Rate]:
    return {name: read_bucket_rate(text) for name, text in given.items()}


def _confidence(settings: Settings) -> ConfidencePolicy:
    given = settings.fleet.confidence
    if unknown := [name for name in given.languages if name not in LANGUAGES]:
        hint = did_you_mean(unknown[0], LANGUAGES, f"there are {', '.join(LANGUAGES)}")
        raise ConfigError(f"there are no words of doubt in {unknown[0]!r}; {hint}", key="fleet.confidence.languages")
    return ConfidencePolicy(
        act=given.act,
        languages=tuple(given.languages),
        max_phrases=given.max_phrases,
        min_probability=given.min_probability,
        max_entropy=given.max_entropy,
        min_agreement=given.min_agreement,
        asks_logprobs=given.logprobs,
    )


def _make_executor(settings: Settings, host: PluginHost) -> Executor | None:
    """Return what runs the agents; None is this process. Raises `ConfigError` for one that no plugin brings."""
    name = settings.fleet.executor
    if name == IN_PROCESS:
        return None
    factories = host.executors()
    if name not in factories:
        hint = did_you_mean(name, factories, f"there are {', '.join([IN_PROCESS, *sorted(factories)])}")
        raise ConfigError(f"no plugin brings the executor {name!r}; {hint}", key="fleet.executor")
    return factories[name](settings)


def _make_tracer(endpoint: str | None) -> Tracer | None:
    if endpoint is None:
        return None
    try:
        from pyagent.infrastructure.observability.tracing import FleetTracer
    except ImportError as error:  # the variable may be meant for other programs
        logger.warning("runs are not traced: %s", missing_packages(error))
        return None
    return FleetTracer(endpoint)
