"""`pyagent serve`: OpenAI's API on a local port, over the chain and the fleet's agents."""

from __future__ import annotations

import sys
from typing import Annotated, Literal

import typer

from pyagent.cli.options import Chain, Config, Model, read_settings

app = typer.Typer(add_completion=False)


@app.command()
def serve(
    model: Model = None,
    chain: Chain = None,
    runner: Annotated[Literal["auto", "cpu", "torch"], typer.Option("--runner", help="What computes.")] = "auto",
    host: Annotated[str | None, typer.Option("--host", help="Address to listen on.")] = None,
    port: Annotated[int | None, typer.Option("--port", min=0, max=65535, help="0 takes a free one.")] = None,
    config: Config = None,
) -> None:
    """Answer OpenAI clients over HTTP until Ctrl+C."""
    import asyncio

    from pyagent import __version__
    from pyagent.assembly import Fleet
    from pyagent.cli.models import fetch_first_model
    from pyagent.core.chain import Chain as BackendChain
    from pyagent.core.errors import ConfigError
    from pyagent.infrastructure.server.agents import AgentBackend
    from pyagent.infrastructure.server.app import create_app
    from pyagent.infrastructure.server.guards import read_keys
    from pyagent.infrastructure.server.serving import address, bind
    from pyagent.infrastructure.server.serving import serve as serve_app

    if runner == "torch":
        raise ConfigError("this version computes on the CPU only; use --runner cpu, or auto", key="runner")
    settings = read_settings(config, chain, model, server__host=host, server__port=port)
    keys = read_keys(settings.server.api_keys_file, settings.server.host)
    listening = bind(settings.server.host, settings.server.port)

    fetch_first_model(settings)

    async def work() -> None:
        async with Fleet(settings) as fleet:
            server = create_app(
                fleet.backend,
                agents=AgentBackend(fleet),
                api_keys=keys,
                max_body_bytes=settings.server.max_body_bytes,
                version=__version__,
            )
            loading = asyncio.create_task(fleet.backend.load()) if isinstance(fleet.backend, BackendChain) else None
            sys.stdout.write(
                f"PyAgent answers on {address(listening)} ({', '.join(settings.chain)}); Ctrl+C stops it\n"
            )
            sys.stdout.flush()
            await serve_app(server, listening, drain_seconds=settings.server.drain_seconds)
            if loading:
                loading.cancel()
                await asyncio.gather(loading, return_exceptions=True)

    asyncio.run(work())
