"""Going on with runs over HTTP: cancelled, resumed, forked, and their questions answered."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from functools import partial
from typing import TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from pyagent.core.errors import RequestError
from pyagent.core.fleet.event_reader import read_events
from pyagent.core.fleet.events import Event, Question
from pyagent.core.fleet.marks import mark_run
from pyagent.core.fleet.people import DENY, check_answer
from pyagent.core.fleet.planner import ACCEPT, REFUSE, checked_plan
from pyagent.core.fleet.steps import forked
from pyagent.infrastructure.server.agents import MAX_TASK_CHARS
from pyagent.infrastructure.server.api_keys import ADMIN_KEY_NEEDED, is_admin
from pyagent.infrastructure.server.runs.access import Runs, find_question, told_view
from pyagent.infrastructure.server.runs.idempotency import begin_once, go_on_once
from pyagent.infrastructure.server.runs.requests import (
    AnswerBody,
    CancelBody,
    ForkBody,
    MarkBody,
    ResumeBody,
    check_size_of,
)
from pyagent.infrastructure.server.service import Service, json_response
from pyagent.infrastructure.server.validation import decode
from pyagent.infrastructure.storage.journal import SqliteJournal

Body = TypeVar("Body", bound=msgspec.Struct)
_CANCEL_SECONDS = 30.0


async def cancel(service: Service, request: Request) -> Response:
    """POST /v1/runs/{id}/cancel: end a run, in whatever process it runs; it can be resumed."""
    body = await _read(service, request, CancelBody)
    runs = await Runs.of(service, request)
    row = runs.row_named
    runs.background.cancel(row.run)
    if body.wait:
        await _wait(runs, row.run)
    return _shown(runs, row.run)


async def _wait(runs: Runs, run: str) -> None:
    """Return when the run has ended, or after a time in which it should have."""
    journal = runs.journal_of(run)
    reading = read_events(journal, runs.fleet.under_way, run, journal.num_records(run))
    with suppress(TimeoutError):
        async with asyncio.timeout(_CANCEL_SECONDS), aclosing(reading) as events:
            async for _ in events:
                pass


async def resume(service: Service, request: Request) -> Response:
    """POST /v1/runs/{id}/resume: go on with a run that has no result: what is finished is not run again."""
    body = await _read(service, request, ResumeBody)
    runs = await Runs.of(service, request)
    row = runs.row_named

    async def work() -> None:
        spec = runs.going_on(row)
        if body.answers:
            view = runs.view(row)
            for question, answer in body.answers.items():
                _check_answer(runs, row.run, find_question(view, question), answer)
        events = runs.fleet.resume(row.run, answers=body.answers, waits_for_answers=body.waits_for_answers)
        await runs.begin(events, spec)

    await go_on_once(runs, row.run, body, work)
    return _shown(runs, row.run)


async def fork(service: Service, request: Request) -> Response:
    """POST /v1/runs/{id}/fork: a new run: what came before a step is kept, the step and the rest are run again."""
    body = await _read(service, request, ForkBody)
    runs = await Runs.of(service, request)
    row = runs.row_named
    spec = forked(runs.going_on(row), row.run, body.step, body.task)
    if len(body.task or "") > MAX_TASK_CHARS:
        text = f"task takes up to {MAX_TASK_CHARS} characters, got {len(body.task or '')}"
        raise RequestError(text, param="task", code="context_length_exceeded")

    def events(run: str | None) -> AsyncGenerator[Event, None]:
        return runs.fleet.fork(row.run, body.step, body.task, waits_for_answers=body.waits_for_answers, run_id=run)

    run, is_new = await begin_once(runs, spec, events)
    return _shown(runs, run, 201 if is_new else 200)


async def answer(service: Service, request: Request) -> Response:
    """POST /v1/runs/{id}/answer: answer a question of a run that waits, or go on by it with one that ended with it."""
    body = await _read(service, request, AnswerBody)
    runs = await Runs.of(service, request)
    row = runs.row_named

    async def work() -> None:
        question = find_question(runs.view(row), body.question)
        _check_answer(runs, row.run, question, body.answer)
        if runs.fleet.under_way(row.run) is not None:
            runs.fleet.answer(row.run, question.id, body.answer)
            return
        spec, answers = runs.going_on(row), {question.id: body.answer}
        events = runs.fleet.resume(row.run, answers=answers, waits_for_answers=body.waits_for_answers)
        await runs.begin(events, spec)

    await go_on_once(runs, row.run, body, work)
    return _shown(runs, row.run)


async def mark(service: Service, request: Request) -> Response:
    """POST /v1/runs/{id}/mark: say how good a run was; the key's own runs alone, for its own later choices."""
    body = await _read(service, request, MarkBody)
    runs = await Runs.of(service, request)
    run = runs.row_named.run
    journal = runs.journal_of(run)
    if not isinstance(journal, SqliteJournal):
        raise RequestError(f"{run} is private or not kept on disk: nothing is learned from it", param="run")
    return json_response(msgspec.json.encode(mark_run(journal, journal.outcomes, run, body.mark)))


def _check_answer(runs: Runs, run: str, question: Question, answer: str) -> None:
    """Raise `RequestError` for an answer that the question does not take, and for a client that may not give it."""
    check_answer(question, answer)
    if question.kind == "plan" and answer.strip().lower() not in {ACCEPT, REFUSE}:
        _check_plan(runs, run, answer)
    may_approve = is_admin(runs.request) or runs.service.settings.clients_may_approve
    if question.kind == "approval" and answer != DENY and not may_approve:
        text = (
            "to approve lets a tool act on the server's machine, and needs an administrator's key, or "
            "server.clients_may_approve; a client's key may deny"
        )
        raise RequestError(text, param="answer", code=ADMIN_KEY_NEEDED)


def _check_plan(runs: Runs, run: str, plan: str) -> None:
    """Raise `RequestError` for a client's own plan that cannot run, or names what the client may not read."""
    if len(plan) > MAX_TASK_CHARS:
        raise RequestError(f"a plan has up to {MAX_TASK_CHARS} characters, got {len(plan)}", param="answer")
    task = runs.journal_of(run).spec(run).steps[0].task.text
    try:
        steps = checked_plan(plan, task, list(runs.fleet.agents))
    except RequestError as error:
        text = f"the answer is neither {ACCEPT} nor {REFUSE}, and no plan that can run: {error}"
        raise RequestError(text, param="answer", code=error.code) from error
    check_size_of(steps)
    runs.check_steps(steps)


async def _read(service: Service, request: Request, kind: type[Body]) -> Body:
    """Return the body; one that is left out is empty."""
    if request.headers.get("content-length", "0") == "0" and "transfer-encoding" not in request.headers:
        return decode(b"{}", kind, {})
    return await service.read(request, partial(decode, kind=kind, refused={}))


def _shown(runs: Runs, run: str, status: int = 200) -> Response:
    told = msgspec.json.encode(told_view(runs.view(runs.row(run))))
    return json_response(told, status, {"location": f"/v1/runs/{run}"})
