"""`pyagent serve`: its flags. The work is in `serving.py`, which starts without this where the flags are plain."""

from __future__ import annotations

from typing import Annotated

import typer

from pyagent.cli import serving
from pyagent.cli.options import Chain, ChatTemplate, Config, DataParallel, Model, Port

app = typer.Typer(add_completion=False)


@app.command()
def serve(
    model: Model = None,
    chain: Chain = None,
    chat_template: ChatTemplate = None,
    data_parallel: DataParallel = None,
    host: Annotated[str | None, typer.Option("--host", help="Address to listen on.")] = None,
    port: Port = None,
    config: Config = None,
) -> None:
    """Answer OpenAI clients over HTTP until Ctrl+C."""
    serving.serve(
        model=model,
        chain=chain,
        chat_template=chat_template,
        data_parallel=data_parallel,
        host=host,
        port=port,
        config=config,
    )
