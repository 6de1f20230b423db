"""Grammars that compile long: they hold up no other request, and their own not beyond its deadline."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from msgspec.structs import replace
from support.gated_grammars import Gated, choice
from support.native import run
from support.server import keys, listening_at
from support.waiting import until

from pyagent.core.backends import collect
from pyagent.core.chain import Chain
from pyagent.core.errors import CapacityError, DeadlineError
from pyagent.core.messages import ChatRequest, Message
from pyagent.core.runners.factory import RunnerOptions
from pyagent.infrastructure.engine.backend import NativeBackend
from pyagent.infrastructure.engine.client import LocalEngine
from pyagent.infrastructure.engine.models.loaded_model import EngineOptions
from pyagent.infrastructure.server.app import create_app

ANNA, BEN = "sk-anna-0123456789", "sk-ben-0123456789"


@asynccontextmanager
async def clients(path: Path, grammars: Gated) -> AsyncIterator[list[httpx.AsyncClient]]:
    """Anna and Ben at a server whose grammars compile as the gate says."""
    options = EngineOptions(RunnerOptions(threads=1, kv_bytes=1 << 21), grammar_backends=(grammars,))
    backend = NativeBackend.of("tiny", lambda: path, options)
    app = create_app(Chain([backend], private=["tiny", "native"]), api_keys=keys(ANNA, BEN))
    try:
        async with listening_at(app) as url:
            both = [
                httpx.AsyncClient(base_url=url, headers={"authorization": f"Bearer {key}"}, timeout=120)
                for key in (ANNA, BEN)
            ]
            async with both[0], both[1]:
                yield both
    finally:
        grammars.gate.set()
        await backend.close()


async def ask(client: httpx.AsyncClient, text: str, *choices: str, **fields: Any) -> httpx.Response:
    form = {"response_format": {"type": "choice", "choice": choices}} if choices else {}
    body = {"model": "tiny", "messages": [{"role": "user", "content": text}], "max_tokens": 4}
    return await client.post("/v1/chat/completions", json=body | form | fields)


def test_slow_grammars_of_one_tenant_hold_up_nobody(tiny_model_path: Path) -> None:
    """While three grammars of one compile, another's requests are prepared and answered."""

    async def main() -> None:
        grammars = Gated()
        async with clients(tiny_model_path, grammars) as (anna, ben):
            slow = [asyncio.create_task(ask(anna, "hi", f"slow {number}")) for number in range(3)]
            await until(lambda: len(grammars.compiled) == 2)
            plain, structured = await asyncio.gather(ask(ben, "hi", bad_words=["no"]), ask(ben, "hi", "yes", "no"))
            assert (plain.status_code, structured.status_code) == (200, 200)
            assert not any(one.done() for one in slow)
            grammars.gate.set()
            for number, reply in enumerate(await asyncio.gather(*slow)):
                assert f"slow {number}".startswith(reply.json()["choices"][0]["message"]["content"])

    run(main())


def test_request_ends_by_its_deadline_while_its_grammar_compiles(tiny_model_path: Path) -> None:
    """What is left of `timeout_seconds` is all that a request waits; one without waits on."""

    async def main() -> None:
        grammars = Gated()
        async with clients(tiny_model_path, grammars) as (anna, _):
            patient = asyncio.create_task(ask(anna, "hi", "slow"))
            await until(lambda: len(grammars.compiled) == 1)
            late = await ask(anna, "hi", "slow", timeout_seconds=0.3)
            assert (late.status_code, "deadline" in late.text) == (504, True)
            assert not patient.done()
            grammars.gate.set()
            assert (await patient).status_code == 200
            assert len(grammars.compiled) == 1

    run(main())


def test_engine_alone_keeps_deadlines_and_ends_while_grammars_compile(tiny_model_path: Path) -> None:
    """Without a chain around it a deadline holds too; one that is closed meanwhile says so to those that wait."""

    async def main() -> None:
        grammars = Gated()
        options = EngineOptions(RunnerOptions(threads=1, kv_bytes=1 << 21), grammar_backends=(grammars,))
        backend = NativeBackend.of("tiny", lambda: tiny_model_path, options)
        slow = ChatRequest(messages=[Message("user", "hi")], response_format=choice("slow"))
        try:
            with pytest.raises(DeadlineError):
                await collect(backend.chat(replace(slow, timeout_seconds=0.3)))
            waiting = asyncio.create_task(collect(backend.chat(slow)))
            cancelled = asyncio.create_task(collect(backend.chat(slow)))
            assert isinstance(backend.engine, LocalEngine)
            life = backend.engine.life
            await until(lambda: life.num_running == 2)
            cancelled.cancel()
        finally:
            await backend.close()
            grammars.gate.set()
        with pytest.raises(CapacityError, match="is stopping"):
            await waiting

    run(main())
