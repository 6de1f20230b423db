"""`pyagent models merge`: writes a model with adapters in its weights."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from pyagent.cli.one_model import local_path
from pyagent.cli.options import AsJson, Config
from pyagent.cli.output import write_json
from pyagent.cli.quantize import ends_by_signal, shown_progress
from pyagent.cli.startup import read_settings
from pyagent.core.errors import ModelError, RequestError
from pyagent.core.nearest import did_you_mean
from pyagent.core.one_line import printable
from pyagent.core.sizes import format_bytes

if TYPE_CHECKING:
    from pyagent.infrastructure.models.merging import Merged


def merge(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A folder of safetensors, or a name.")],
    adapter: Annotated[
        str,
        typer.Argument(metavar="ADAPTER", help="A folder that peft saved, a name of engine.adapters, or several: A+B."),
    ],
    output: Annotated[
        Path | None, typer.Option("--output", metavar="FOLDER", help="Where to; MODEL-ADAPTER here unless given.")
    ] = None,
    as_json: AsJson = False,
    config: Config = None,
) -> None:
    """Write a model's folder with one adapter, or several that add up, merged into its weights."""
    from pyagent import _rust
    from pyagent.infrastructure.engine.models.adapter_digest import stack_id_of
    from pyagent.infrastructure.models.merging import merge_adapters

    source, parts = local_path(model, config), _adapters(model, adapter, config)
    target = output or Path("-".join([source.resolve().name, *(name for name, _ in parts)]))
    try:
        # In the order in which the engine adds them, so that A+B and B+A are one to the last bit.
        paths, _ = stack_id_of([path for _, path in parts])
    except OSError as error:
        raise ModelError(f"an adapter cannot be read: {error}", model=model) from error
    with ends_by_signal(), shown_progress(target.name) as progress:
        made = merge_adapters(source, paths, target, threads=_rust.available_cores(), progress=progress)
    if as_json:
        write_json(msgspec.structs.asdict(made))
        return
    for key, value in _card(made):
        typer.echo(f"{key:<8} {printable(value)}")


def _adapters(model: str, named: str, config: Path | None) -> list[tuple[str, Path]]:
    """Return names and paths of adapters: `named` is one's folder, or has names or folders with `+` between them."""
    from pyagent.core.adapter_stacks import JOINT, MAX_ADAPTERS
    from pyagent.infrastructure.engine.models.adapter_names import adapters_of

    of_settings = read_settings(config).engine.adapters
    known = {name: of_settings[key] for name, key in adapters_of(model, of_settings).items()}
    # A folder may have a `+` in its name.
    parts = [named] if Path(named).is_dir() else named.split(JOINT)
    if len(parts) > MAX_ADAPTERS:
        raise RequestError(f"{len(parts)} adapters are named; expected at most {MAX_ADAPTERS}", param="adapter")
    found: list[tuple[str, Path]] = []
    for part in parts:
        path = Path(known[part]).expanduser() if part in known else Path(part)
        if part not in known and not (part and path.exists()):
            has = f"engine.adapters has {', '.join(known) or 'none'} for {model}"
            what = f"{part[:80]!r} is neither a folder nor a known adapter"
            raise RequestError(f"{what}; {did_you_mean(part, list(known), has)}", param="adapter")
        found.append((path.resolve().name if part not in known else part, path))
    paths = [path.resolve() for _, path in found]
    if len(set(paths)) < len(paths):
        raise RequestError(f"{named[:200]!r} names an adapter twice", param="adapter")
    return found


def _card(made: Merged) -> list[tuple[str, str]]:
    rows = [
        ("folder", made.path),
        ("size", format_bytes(made.num_bytes)),
        ("tensors", f"{made.num_tensors} have what the adapter adds"),
        ("seconds", f"{made.seconds:.1f}"),
    ]
    if made.left_out:
        left = f"{', '.join(made.left_out)}: weights without the adapter are not copied"
        rows.append(("left out", left))
    return rows
