"""`pyagent node`: a server that is a node of a cluster, too."""

from __future__ import annotations

from typing import Annotated

import typer

from pyagent.cli import serving
from pyagent.cli.options import Chain, ChatTemplate, Config, DataParallel, Model, Port

app = typer.Typer(add_completion=False)


@app.command()
def node(
    model: Model = None,
    chain: Chain = None,
    chat_template: ChatTemplate = None,
    data_parallel: DataParallel = None,
    host: Annotated[str | None, typer.Option("--host", help="Address for OpenAI clients.")] = None,
    port: Port = None,
    name: Annotated[str | None, typer.Option("--name", help="What the other nodes show this one as.")] = None,
    bind: Annotated[
        list[str] | None, typer.Option("--bind", metavar="ADDRESS", help="Address for other nodes. May be repeated.")
    ] = None,
    door: Annotated[
        int | None, typer.Option("--door", min=0, max=65535, help="Port where other nodes knock; 0 takes a free one.")
    ] = None,
    seed: Annotated[
        list[str] | None, typer.Option("--seed", metavar="HOST[:PORT]", help="Knock there, too. May be repeated.")
    ] = None,
    config: Config = None,
) -> None:
    """Find the cluster's other nodes and share work with them, and answer OpenAI clients, until Ctrl+C."""
    cluster = {"cluster__name": name, "cluster__bind": bind, "cluster__port": door, "cluster__seeds": seed}
    serving.serve(
        model=model,
        chain=chain,
        chat_template=chat_template,
        data_parallel=data_parallel,
        host=host,
        port=port,
        config=config,
        is_node=True,
        cluster=cluster,
    )
