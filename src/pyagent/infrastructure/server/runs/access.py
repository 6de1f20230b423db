"""What each route about runs begins with: the runs of this server, and the one asked for, if it is the caller's.

Another tenant's run is told exactly like one that is not there.
"""

from __future__ import annotations

import contextvars
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import cast

import msgspec
from starlette.requests import Request

from pyagent.core.errors import RequestError
from pyagent.core.fleet.events import Event, Question, RunFailed
from pyagent.core.fleet.file_access import FileAccess, grant, readable_path
from pyagent.core.fleet.journal import PRIVATE_PREFIX, Journal, RunSummary
from pyagent.core.fleet.orchestrator import Fleet
from pyagent.core.fleet.run_view import RunView, view_of
from pyagent.core.fleet.steps import RunSpec, Step, check_agents
from pyagent.core.messages import JsonObject
from pyagent.core.trace_context import continue_trace
from pyagent.infrastructure.server.agents import AgentBackend
from pyagent.infrastructure.server.api_keys import tenant_of
from pyagent.infrastructure.server.errors import without_folders
from pyagent.infrastructure.server.runs.background import BackgroundRuns, TakeTokens
from pyagent.infrastructure.server.runs.requests import all_steps
from pyagent.infrastructure.server.service import Service


@dataclass(frozen=True, slots=True)
class Runs:
    """The runs of a server, for one caller."""

    background: BackgroundRuns
    agents: AgentBackend
    tenant: str
    service: Service
    request: Request

    @classmethod
    async def of(cls, service: Service, request: Request) -> Runs:
        """Return them. Raises `RequestError` where the server has no fleet."""
        agents = service.agents
        if not isinstance(agents, AgentBackend):
            raise RequestError("this server has no fleet, and so no runs", code="no_fleet")
        return cls(await agents.background_runs(), agents, tenant_of(request), service, request)

    @property
    def access(self) -> FileAccess:
        """Which files runs of clients may read."""
        return self.agents.file_access

    @property
    def fleet(self) -> Fleet:
        """The fleet whose runs they are."""
        return self.background.fleet

    def journal_of(self, run: str) -> Journal:
        """Return what has the run's records."""
        return self.background.journal_of(run)

    def row(self, run: str) -> RunSummary:
        """Return the caller's run. Raises `RequestError` for one that is not there, or another's."""
        row = self.journal_of(run).summary(run)
        if row is None or row.tenant != self.tenant:
            raise RequestError(f"there is no run {run[:80]!r}", param="run", code="run_not_found")
        return row

    @property
    def row_named(self) -> RunSummary:
        """The caller's run that the path names. Raises `RequestError` as `row` does."""
        return self.row(str(self.request.path_params["id"]))

    def view(self, row: RunSummary) -> RunView:
        """Return a run at a glance; of one under way here, the questions that wait."""
        view = view_of(self.journal_of(row.run), row)
        if self.fleet.under_way(row.run) is not None:
            view = msgspec.structs.replace(view, questions=tuple(self.fleet.questions(row.run)))
        return view

    def check_steps(self, steps: Sequence[Step]) -> None:
        """Raise `RequestError` for an agent that there is not, and for a file that the caller may not read."""
        check_agents(steps, list(self.fleet.agents))
        files = [file for step in all_steps(steps) if step.for_each is None for file in step.task.files]
        contextvars.copy_context().run(self._check_files, files)

    def _check_files(self, files: Sequence[str]) -> None:
        grant(self.access)
        for file in files:
            readable_path(file)

    async def begin(self, events: AsyncGenerator[Event, None], spec: RunSpec, run: str | None = None) -> str:
        """Begin a run, or go on with one; return its id. Its trace is the request's, its tokens are its key's."""
        self.background.check_room(self.tenant, self.service.settings.max_runs)
        await self.agents.count_run(self.tenant)
        state = self.request.scope["state"]
        continue_trace(cast("dict[str, str] | None", state.get("trace_headers")) or self.request.headers)
        take = cast("TakeTokens | None", state.get("take_tokens"))  # of the rate limit

        def take_tokens(count: int) -> None:
            if take is not None:
                take(count)
            if self.tenant:
                self.service.stats.key_tokens[self.tenant,] += count

        return await self.background.begin(events, spec, take_tokens, run)

    def going_on(self, row: RunSummary) -> RunSpec:
        """Return what a run was asked that is to go on. Raises `RequestError` for one that cannot, or not from here.

        A run that was begun at this machine's command line may read what its user may: no client has it do more.
        """
        if row.run.startswith(PRIVATE_PREFIX):
            text = f"{row.run} is private: nothing is kept of it to go on from"
            raise RequestError(text, param="run", code="not_resumable")
        spec = self.fleet.journal.spec(row.run)
        if spec.file_access != self.access:
            text = (
                f"{row.run} may read other files than runs of this server may (server.files_root); go on with it at "
                f"the command line: pyagent runs resume {row.run}"
            )
            raise RequestError(text, param="run", code="not_resumable")
        return spec


def told_view(view: RunView) -> JsonObject:
    """Return a run as clients see it."""
    told: JsonObject = {"object": "run", **msgspec.to_builtins(view, enc_hook=str)}
    if view.error is not None:
        error = told_event(view.error)
        told["error"] = {name: error[name] for name in ("reason", "kind", "error", "partial", "failures", "skipped")}
    return told


def told_event(event: Event) -> JsonObject:
    """Return an event as clients see it: what went wrong without this machine's folders, and as words alone."""
    told: JsonObject = msgspec.to_builtins(event, enc_hook=str)
    told.pop("fault", None)
    failures = cast("list[JsonObject]", told["failures"]) if isinstance(event, RunFailed) else []
    for failed in (told, *failures):
        if isinstance(text := failed.get("error"), str):
            failed["error"] = without_folders(text)
    return told


def find_question(view: RunView, question: str | None) -> Question:
    """Return the question of a run that is meant. Raises `RequestError` where that is none, or not clear."""
    found = [each for each in view.questions if question in {None, each.id}]
    if len(found) == 1:
        return found[0]
    waiting = ", ".join(each.id for each in view.questions) or "none"
    if question is None and found:
        raise RequestError(f"{view.id} waits with several questions: {waiting}; name one", param="question")
    text = f"{view.id} waits with no question {(question or '')[:80]!r}; there are: {waiting}"
    raise RequestError(text, param="question", code="question_not_found" if question else "over")
