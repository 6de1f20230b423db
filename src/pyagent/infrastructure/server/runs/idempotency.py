"""Requests that are sent again, after a lost connection, say: by its `Idempotency-Key` each does its work once.

A key that begins a run is the run's id, so that it is found as long as the run is kept, after a restart and by other
servers too. A key that goes on with a run is kept beside the run in the journal, before the work, and dropped where the
work fails. A key is its tenant's own, and stands for one request: for another one it is refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import suppress
from hashlib import blake2b

import msgspec

from pyagent.core.errors import RequestError
from pyagent.core.fleet.events import Event
from pyagent.core.fleet.steps import RunSpec
from pyagent.infrastructure.server.runs.access import Runs
from pyagent.infrastructure.server.runs.requests import chosen_id, key_hash

_HEADER = "idempotency-key"


async def begin_once(
    runs: Runs, spec: RunSpec, events: Callable[[str | None], AsyncGenerator[Event, None]], *, is_private: bool = False
) -> tuple[str, bool]:
    """Begin a run, unless the request's key did; return it, and whether it began now. `events` is given its id.

    Raises `RequestError` where the key stands for another request.
    """
    key = runs.request.headers.get(_HEADER)
    if (kept := _run_of_key(runs, spec, key, is_private=is_private)) is not None:
        return kept, False
    run = chosen_id(key, runs.tenant, is_private=is_private)
    try:
        return await runs.begin(events(run), spec, run), True
    except RequestError as error:
        if error.code == "run_exists" and run is not None:  # another server of this journal was quicker
            return run, False
        raise


def _run_of_key(runs: Runs, spec: RunSpec, key: str | None, *, is_private: bool) -> str | None:
    """Return the run that was begun by this key; None where none was. Raises `RequestError` when it was another."""
    if key is None:
        return None
    for was_private in (is_private, not is_private):
        run = chosen_id(key, runs.tenant, is_private=was_private)
        if run is not None and (journal := runs.journal_of(run)).summary(run) is not None:
            if was_private == is_private and _asked(journal.spec(run)) == _asked(spec):
                return run
            raise _reused(f"began another run, {run}")
        if run is not None and runs.journal_of(run).keys.find(key_hash(key, runs.tenant)) is not None:
            raise _reused("went on with a run")
    return None


async def go_on_once(runs: Runs, run: str, body: msgspec.Struct, work: Callable[[], Awaitable[None]]) -> None:
    """Do what a request asks of a run, unless the request's key had it done before.

    Raises `RequestError` where the key stands for another request.
    """
    header = runs.request.headers.get(_HEADER)
    if header is None:
        await work()
        return
    for is_private in (True, False):
        begun = chosen_id(header, runs.tenant, is_private=is_private)
        if begun is not None and runs.journal_of(begun).summary(begun) is not None:
            raise _reused(f"began a run, {begun}")
    key, keys, under_way = key_hash(header, runs.tenant), runs.journal_of(run).keys, runs.background.keys
    asked = _hash_of(run, body)
    if key in runs.background.void_keys:  # its work failed, and the disk had no room to say so
        keys.drop(key)
        runs.background.void_keys.discard(key)
    while (before := keys.keep(key, asked, run)) is not None:
        if before != asked:
            raise _reused("asked for something else")
        if (same := under_way.get(key)) is None:
            return
        await asyncio.wait([same])  # where it fails its key is dropped, and this one fails by itself
    under_way[key] = asyncio.get_running_loop().create_future()
    try:
        await work()
    except Exception:
        runs.background.void_keys.add(key)
        with suppress(RequestError):
            keys.drop(key)
            runs.background.void_keys.discard(key)
        raise
    finally:
        under_way.pop(key).set_result(None)


def _hash_of(run: str, body: msgspec.Struct) -> str:
    said = msgspec.json.encode([run, type(body).__name__, body])
    return blake2b(said, digest_size=12).hexdigest()


def _reused(what: str) -> RequestError:
    text = f"this Idempotency-Key {what}; choose a new key for each request"
    return RequestError(text, param="Idempotency-Key", code="idempotency_key_reused")


def _asked(spec: RunSpec) -> bytes:
    """Return what was asked for, without what the fleet added to it."""
    return msgspec.json.encode(msgspec.structs.replace(spec, offers_questions=None))
