"""`pyagent mcp`: the MCP servers of the settings, and PyAgent as one."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from pyagent.cli.options import AsJson, Chain, Config, Model, Port
from pyagent.cli.output import coloured, mark, write_json
from pyagent.cli.startup import read_settings
from pyagent.core.one_line import printable

if TYPE_CHECKING:
    from pyagent.core.settings import McpServer
    from pyagent.infrastructure.mcp.provider import McpProvider

app = typer.Typer(
    add_completion=False, help="List the MCP servers whose tools agents use, or be one.", no_args_is_help=True
)
_MAX_SHOWN = 100
DEFAULT_PORT = 8322
"""Where `pyagent mcp serve --http` listens; `pyagent serve` has the port beside it."""


class FoundTool(msgspec.Struct, frozen=True):
    """A tool as agents know it. `approval` says whether a person has to allow each call."""

    name: str
    description: str
    effect: str
    approval: bool


class FoundServer(msgspec.Struct, frozen=True):
    """A server that was tried. `fault` says why it does not answer; empty where it does."""

    name: str
    fault: str
    protocol: str
    tools: list[FoundTool]


@app.callback()
def group() -> None:
    """List the MCP servers whose tools agents use, or be one."""


@app.command("serve")
def serve_agents(
    agent: Annotated[
        list[str] | None, typer.Option("--agent", metavar="NAME", help="An agent to offer; all without it.")
    ] = None,
    tool: Annotated[
        list[str] | None, typer.Option("--tool", metavar="NAME", help="A tool to offer besides. May be repeated.")
    ] = None,
    http: Annotated[bool, typer.Option("--http", help="Answer at http://HOST:PORT/mcp instead of a program.")] = False,
    host: Annotated[str | None, typer.Option("--host", help="Address to listen on, with --http.")] = None,
    port: Port = None,
    chain: Chain = None,
    model: Model = None,
    config: Config = None,
) -> None:
    """Offer agents and tools to MCP clients: to the program that starts this, or over HTTP."""
    from pyagent.cli.event_loop import run_to_end
    from pyagent.cli.mcp_serving import serve_http, serve_program

    given = [f"--{name}" for name, value in (("host", host), ("port", port)) if value is not None]
    if given and not http:
        raise typer.BadParameter(f"{given[0]} is for --http")
    flags = {"server__host": host, "server__port": port if port is not None or not http else DEFAULT_PORT}
    settings = read_settings(config, chain, model, **flags)
    serve = serve_http if http else serve_program
    run_to_end(serve(settings, agent or ["*"], tool or []))


@app.command("list")
def list_servers(config: Config = None, as_json: AsJson = False) -> None:
    """Start each server of the settings, and show whether it answers and what tools it has."""
    from pyagent.cli.event_loop import run_to_end

    settings = read_settings(config)
    found: list[FoundServer] = []

    async def work() -> None:
        found.extend(await look_at_servers(settings.mcp_servers))

    run_to_end(work())
    if as_json:
        write_json(found)
    elif not found:
        typer.echo("no MCP servers; a table [mcp_servers.NAME] in pyagent.toml with `command` or `url` adds one")
    for server in [] if as_json else found:
        _show(server)
    if any(server.fault for server in found):
        raise typer.Exit(1)


def _show(server: FoundServer) -> None:
    if server.fault:
        typer.echo(f"{coloured(mark('✗', 'x'), 'red')} {server.name}  {printable(server.fault)}")
        return
    typer.echo(
        f"{coloured(mark('✓', '+'), 'green')} {server.name}  protocol {server.protocol}, {len(server.tools)} tools"
    )
    width = max((len(tool.name) for tool in server.tools), default=0)
    for tool in server.tools:
        asks = "asks " if tool.approval else "     "
        about = printable(tool.description.strip().partition("\n")[0])
        typer.echo(f"    {tool.name:<{width}}  {asks} {about[:_MAX_SHOWN]}".rstrip())


async def look_at_servers(servers: Mapping[str, McpServer]) -> list[FoundServer]:
    """Return how each server does: started, asked for its tools, and ended, all side by side."""
    import asyncio

    from pyagent.infrastructure.mcp.provider import mcp_providers

    logger = logging.getLogger("pyagent.mcp")
    level = logger.level
    logger.setLevel(logging.ERROR)  # what it would warn of is what is returned
    try:
        return list(await asyncio.gather(*map(_looked_at, mcp_providers(servers))))
    finally:
        logger.setLevel(level)


async def _looked_at(provider: McpProvider) -> FoundServer:
    from pyagent.core.errors import PyAgentError

    try:
        tools = [
            FoundTool(each.name, each.description, each.effect, each.needs_approval) for each in await provider.open()
        ]
        connection = provider.connection
        assert connection is not None
        late = f"it did not answer within {provider.server.startup_seconds:g} s"
        fault = "" if connection.is_ready else connection.fault or late
        return FoundServer(provider.server_name, fault, connection.protocol, tools)
    except PyAgentError as error:
        return FoundServer(provider.server_name, str(error), "", [])
    finally:
        await provider.close()
