"""Runs over HTTP: started, listed, shown, followed, exported and deleted. Going on with them is in `control`."""

from __future__ import annotations

from asyncio import to_thread
from collections.abc import AsyncGenerator
from functools import partial
from itertools import islice

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from pyagent.core.errors import RequestError
from pyagent.core.fleet.events import Event
from pyagent.core.fleet.journal import RunSummary, still_running
from pyagent.core.fleet.planner import planning_of
from pyagent.core.fleet.steps import RunSpec
from pyagent.infrastructure.server.runs.access import Runs, told_event, told_view
from pyagent.infrastructure.server.runs.idempotency import begin_once
from pyagent.infrastructure.server.runs.requests import RunBody, event_number
from pyagent.infrastructure.server.runs.stream import MEDIA_TYPE, failed, server_sent
from pyagent.infrastructure.server.service import Service, json_response
from pyagent.infrastructure.server.streaming import EventStream
from pyagent.infrastructure.server.validation import decode

_MAX_LISTED = 100
_PAGE = 256


async def create(service: Service, request: Request) -> Response:
    """POST /v1/runs: start a run of a task or of steps, which goes on without this request."""
    body = await service.read(request, partial(decode, kind=RunBody, refused={}))
    runs, steps = await Runs.of(service, request), body.as_steps()
    spec = RunSpec.of(steps, body.timeout_seconds, runs.tenant, runs.tenant, runs.access)
    plan = planning_of(body.plan, runs.fleet.limits.plan, steps)
    spec = msgspec.structs.replace(spec, priority=body.priority, request_class=body.request_class, plan=plan)
    spec = msgspec.structs.replace(spec, budget=body.budget)
    run, is_new = await begin_once(runs, spec, partial(_events, runs, spec, body), is_private=body.private)
    row, where = runs.row(run), f"/v1/runs/{run}"
    if not body.stream:
        return json_response(_told(runs, row), 201 if is_new else 200, {"location": where})
    sent = server_sent(runs, row, 0, cancels=body.on_disconnect == "cancel")
    stream = EventStream(sent, MEDIA_TYPE, failed)
    stream.headers["content-location"] = where
    return stream


def _events(runs: Runs, spec: RunSpec, body: RunBody, run: str | None) -> AsyncGenerator[Event, None]:
    runs.check_steps(spec.steps)
    return runs.fleet.run(
        spec.steps,
        timeout_seconds=spec.timeout_seconds,
        is_private=body.private,
        client=spec.client,
        tenant=spec.tenant,
        file_access=runs.access,
        waits_for_answers=body.waits_for_answers,
        run_id=run,
        priority=spec.priority,
        request_class=spec.request_class,
        plan=spec.plan,
        budget=spec.budget,
    )


async def list_runs(service: Service, request: Request) -> Response:
    """GET /v1/runs: the caller's runs, newest first; `?limit=`, and `?after=` a run's id."""
    runs, query = await Runs.of(service, request), request.query_params
    limit = query.get("limit", "20")
    if not (limit.isascii() and limit.isdigit() and len(limit) < 4 and 0 < int(limit) <= _MAX_LISTED):
        raise RequestError(f"limit is from 1 to {_MAX_LISTED}, got {limit[:40]!r}", param="limit")
    rows = [row for row in runs.fleet.journal.runs() if row.tenant == runs.tenant]
    if (after := query.get("after")) is not None:
        runs.row(after)
        ids = [row.run for row in rows]
        rows = rows[ids.index(after) + 1 :] if after in ids else []
    shown = rows[: int(limit)]
    ends = {"first_id": shown[0].run, "last_id": shown[-1].run} if shown else {}
    data = [_told_row(row) for row in shown]
    return json_response({"object": "list", "data": data, "has_more": len(rows) > len(shown)} | ends)


async def show(service: Service, request: Request) -> Response:
    """GET /v1/runs/{id}: how a run stands, its result, and the questions that it waits with."""
    runs = await Runs.of(service, request)
    return json_response(_told(runs, runs.row_named))


async def events(service: Service, request: Request) -> Response:
    """GET /v1/runs/{id}/events: server-sent events from `?start=` on, or after `Last-Event-ID`, until the run ends."""
    runs = await Runs.of(service, request)
    row, last_id = runs.row_named, request.headers.get("last-event-id")
    start = event_number(request.query_params.get("start"), last_id)
    if last_id and row.state != "running" and start >= runs.journal_of(row.run).num_records(row.run):
        return Response(status_code=204)  # tells an EventSource that reconnects to stop
    return EventStream(server_sent(runs, row, start), MEDIA_TYPE, failed)


async def export(service: Service, request: Request) -> Response:
    """GET /v1/runs/{id}/export: the run as JSON lines, first what it was asked, then its numbered events."""
    runs = await Runs.of(service, request)
    row = runs.row_named
    stream = EventStream(
        _lines(runs, row), "application/x-ndjson", lambda error: msgspec.json.encode(error.body) + b"\n"
    )
    stream.headers.update({"content-disposition": f'attachment; filename="{row.run}.jsonl"'})
    return stream


async def _lines(runs: Runs, row: RunSummary) -> AsyncGenerator[bytes, None]:
    journal = runs.journal_of(row.run)
    spec, num_records = msgspec.structs.replace(journal.spec(row.run), file_root=None), journal.num_records(row.run)
    yield _line({"run": row.run, "summary": _told_row(row), "spec": spec, "num_records": num_records})
    replay = journal.replay(row.run)
    while page := await to_thread(lambda: list(islice(replay, _PAGE))):
        for record in page:
            yield _line({"number": record.number, "event": told_event(record.event), "is_exact": record.is_exact})


async def delete(service: Service, request: Request) -> Response:
    """DELETE /v1/runs/{id}: forget a run that is over, with all that was asked and answered in it."""
    runs = await Runs.of(service, request)
    row = runs.row_named
    if row.state == "running":
        raise still_running(row.run)
    runs.journal_of(row.run).remove(row.run)
    return json_response({"id": row.run, "object": "run", "deleted": True})


def _told(runs: Runs, row: RunSummary) -> bytes:
    return msgspec.json.encode(told_view(runs.view(row)))


def _told_row(row: RunSummary) -> dict[str, object]:
    told: dict[str, object] = {"id": row.run, "object": "run", "state": row.state, "task": row.task}
    return told | {"started_at": row.started_at, "totals": msgspec.to_builtins(row.totals)}


def _line(part: object) -> bytes:
    return msgspec.json.encode(part, enc_hook=str) + b"\n"
