"""`pyagent chain explain`: which links a request would try, in order, and why not the others."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from pyagent.cli.options import AsJson, Chain, Config, Model
from pyagent.cli.startup import read_settings

app = typer.Typer(add_completion=False, help="Explain which backends a request would try.", no_args_is_help=True)


@app.callback()
def group() -> None:
    """Explain which backends a request would try."""


@app.command()
def explain(
    text: Annotated[str, typer.Argument(help="The request.")] = "",
    private: Annotated[bool, typer.Option("--private", help="As a request that must stay on this machine.")] = False,
    chain: Chain = None,
    model: Model = None,
    as_json: AsJson = False,
    config: Config = None,
) -> None:
    """Say what would be tried for a request, and why the rest would not; asks each backend how it is, sends nothing."""
    import asyncio

    import msgspec

    from pyagent.assembly import make_chain, make_host
    from pyagent.core.chain import LinkView
    from pyagent.core.messages import ChatRequest, Message

    settings = read_settings(config, chain, model)

    async def work() -> list[LinkView]:
        made = make_chain(settings, make_host(settings))
        try:
            return await made.explain(ChatRequest(messages=[Message("user", text)], private=private))
        finally:
            await made.close()

    rows = asyncio.run(work())
    if as_json:
        sys.stdout.write(msgspec.json.encode(rows).decode() + "\n")
        return
    width = max(len(row.backend) for row in rows)
    number = 0
    for row in rows:
        number += row.is_eligible
        mark = f"{number}." if row.is_eligible else "– "
        detail = f" ({row.detail})" if row.detail else ""
        sys.stdout.write(f"{mark} {row.backend:<{width}}  {row.reason}{detail}\n")
