"""`pyagent stop`: end a server that `pyagent serve` started, letting its running answers finish."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from pyagent.cli.options import Config
from pyagent.cli.startup import read_settings

app = typer.Typer(add_completion=False)

_SPARE_SECONDS = 10.0
"""Beyond its time to drain: closing models, the journal and the process."""


@app.command()
def stop(
    port: Annotated[
        int | None, typer.Option("--port", min=1, max=65535, help="The server on this port; needed when several run.")
    ] = None,
    config: Config = None,
) -> None:
    """End the server that runs here; it takes no more requests, and running answers may finish."""
    from pyagent.cli.running_servers import running_servers
    from pyagent.core.errors import RequestError

    settings = read_settings(config)
    servers = [server for server in running_servers(settings.paths.data) if port in {None, server.port}]
    if not servers:
        where = f" on port {port}" if port else ""
        raise RequestError(f"no server of yours runs{where}; `pyagent serve` starts one", param="port")
    if len(servers) > 1:
        ports = ", ".join(str(server.port) for server in servers)
        raise RequestError(f"several servers run, on ports {ports}; say which with --port", param="port")
    [server] = servers
    seconds = settings.server.drain_seconds + _SPARE_SECONDS
    if not server.stop(seconds):
        message = f"the server on port {server.port} (process {server.process_id}) has not ended within {seconds:g} s"
        raise RequestError(f"{message}; a second `pyagent stop` cuts its answers", param="port")
    sys.stdout.write(f"stopped the server on {server.host}:{server.port}\n")
