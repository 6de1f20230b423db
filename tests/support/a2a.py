"""A fleet behind `pyagent serve` with A2A, on this event loop."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import uvicorn
from support.server import Model, keys

from pyagent.core.fleet.orchestrator import Fleet
from pyagent.core.settings import Server
from pyagent.infrastructure.server.agents import AgentBackend
from pyagent.infrastructure.server.app import create_app
from pyagent.testing.prompt_server import PromptServer


@asynccontextmanager
async def served(fleet: Fleet, secrets: Sequence[str] = (), **settings: Any) -> AsyncGenerator[str]:
    """Serve a fleet on this event loop; gives the URL."""
    agents = AgentBackend(lambda: fleet)
    app = create_app(Model(), agents=agents, api_keys=keys(*secrets), settings=Server(**{"a2a": True} | settings))
    async with listening(app) as url:
        try:
            yield url
        finally:
            await agents.close()


@asynccontextmanager
async def listening(app: Any) -> AsyncGenerator[str]:
    """Serve an ASGI application on this event loop; gives the URL."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        config = uvicorn.Config(app, log_level=100, access_log=False, lifespan="off", timeout_graceful_shutdown=1)
        server = PromptServer(config)
        job = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            async with asyncio.timeout(30):
                while not server.started:  # noqa: ASYNC110 - uvicorn has no event for it
                    await asyncio.sleep(0.005)
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            await job
