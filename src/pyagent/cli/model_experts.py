"""`pyagent models experts`: which experts of a mixture compute a text, layer by layer."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from pyagent.cli.one_model import ask_alone, local_path, sample_text
from pyagent.cli.options import AsJson, Config
from pyagent.cli.output import write_json
from pyagent.core.errors import RequestError

if TYPE_CHECKING:
    from pyagent.core.chain.chain import Chain
    from pyagent.infrastructure.engine.expert_loads import ExpertLoad


def experts(
    name: Annotated[str, typer.Argument(metavar="NAME|PATH", help="A mixture of experts: a name, or a file.")],
    text: Annotated[
        Path | None, typer.Option("--text", metavar="FILE", help="The text, in UTF-8, that the model reads.")
    ] = None,
    as_json: AsJson = False,
    config: Config = None,
) -> None:
    """Show which experts of a mixture compute a text: how many of a layer, which most, and how unevenly."""
    from pyagent.infrastructure.models.describe import task_of

    path, sample = local_path(name, config), sample_text(text)
    if (task := task_of(path)) != "generate":
        what = (
            f"{name} is a model to {task} texts; experts are counted of models that answer: name one that is a mixture"
        )
        raise RequestError(what, param="name")
    loads = ask_alone(path, config, lambda chain: _loads_after(chain, sample))
    if not loads:
        what = f"{name} has no experts whose tokens are counted; give a mixture of experts, on the cpu runner"
        raise RequestError(what, param="name")
    if as_json:
        write_json([msgspec.to_builtins(one) for one in loads])
        return
    sys.stdout.write("layer  unused      imbalance  busiest\n")
    for one in loads:
        busiest = ", ".join(f"{expert} ({share:.1%})" for expert, share in one.busiest)
        unused = f"{one.num_unused} of {one.num_experts}"
        sys.stdout.write(f"{one.layer:>5}  {unused:<10}  {one.imbalance:>9.2f}  {busiest}\n")


async def _loads_after(chain: Chain, text: str) -> list[ExpertLoad]:
    """Have a chain of one model read a text; return the loads of its experts."""
    from pyagent.core.text_score import score_positions
    from pyagent.infrastructure.server.admin_routes import engine_links

    await score_positions(chain, text)
    [state] = [await link.engine_state() for link in engine_links(chain)]
    return [load for state in state.copies or [state] for loads in state.experts.values() for load in loads]
