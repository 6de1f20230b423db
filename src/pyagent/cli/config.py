"""`pyagent config`: every setting, its value and where it came from; and the reference page made from the model."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, cast

import typer

from pyagent.cli.options import AsJson, Config

if TYPE_CHECKING:
    from pyagent.core.config import Leaf, Loaded
    from pyagent.core.settings import Section, Setting

app = typer.Typer(add_completion=False, help="Show the settings and where they come from.", no_args_is_help=True)


@app.command()
def show(
    key: Annotated[str, typer.Argument(help="Show this setting only, or those of this table.")] = "",
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Show every value and where it came from."""
    from pyagent.core.config import load_settings, unknown_key

    rows = describe(load_settings(config))
    rows = {name: row for name, row in rows.items() if not key or name == key or name.startswith(f"{key}.")}
    if not rows:
        raise unknown_key(key)
    if as_json:
        typer.echo(json.dumps({name: {"value": value, "source": source} for name, (value, source) in rows.items()}))
        return
    values = {name: json.dumps(value, ensure_ascii=False) for name, (value, _) in rows.items()}
    widths = max(map(len, values)), min(60, max(map(len, values.values())))
    for name, text in values.items():
        typer.echo(f"{name:<{widths[0]}}  {text:<{widths[1]}}  {rows[name][1]}")


@app.command(hidden=True)
def reference() -> None:
    """Print the reference page of the settings (docs/reference/settings.md)."""
    typer.echo(render_settings_reference(), nl=False)


def describe(loaded: Loaded) -> dict[str, tuple[object, str]]:
    """Return each dotted key with its value, fit for JSON and without secrets, and its source."""
    import msgspec

    from pyagent.core.chain.settings import written
    from pyagent.core.config import leaf_settings
    from pyagent.core.secrets import strike_out
    from pyagent.core.settings import learning, mcp

    dumped = msgspec.to_builtins(loaded.settings, enc_hook=str)
    dumped["chain"] = [link if isinstance(link, str) else written(link) for link in loaded.settings.chain]
    dumped["learning"] |= learning.written(loaded.settings.learning)
    dumped["mcp_servers"] = {name: mcp.written(server) for name, server in loaded.settings.mcp_servers.items()}
    rows: dict[str, tuple[object, str]] = {}
    for key, leaf in leaf_settings().items():
        value = cast("object", dumped)
        for part in key.split("."):
            value = cast("dict[str, object]", value)[part]
        rows[key] = (strike_out(leaf.setting.none if value is None else value), loaded.sources[key])
    return rows


def render_settings_reference() -> str:
    """Return the page docs/reference/settings.md; a test compares the two."""
    from pyagent.core.config import env_name, leaf_settings
    from pyagent.core.settings import Settings

    lines = [
        "# Settings",
        "",
        "Made by `pyagent config reference` from the model; do not edit.",
        "",
        "A value comes from, in rising order: the default, `pyagent.toml` in the user's configuration folder, the",
        "nearest `pyagent.toml` from the working directory upwards, the environment, flags. `--config FILE` stands in",
        "for both files. Sizes are written `12GB` (10⁹ bytes) or `12GiB` (2³⁰). In environment variables lists are",
        "JSON or parts with commas between. `pyagent config show` says where each value came from.",
    ]
    leaves = leaf_settings()
    for section in dict.fromkeys(key.rpartition(".")[0] for key in leaves):
        heading = f"`[{section}]`" if section else "Top level"
        lines += ["", f"## {heading}", ""]
        if section:
            lines += [_section_text(Settings, section), ""]
        lines += ["| key | type | default | environment | meaning |", "|---|---|---|---|---|"]
        for key, leaf in leaves.items():
            table, _, name = key.rpartition(".")
            if table == section:
                cells = [
                    f"`{name}`",
                    _type_text(leaf.setting),
                    _default_text(leaf),
                    f"`{env_name(key)}`",
                    leaf.setting.meaning,
                ]
                lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _section_text(kind: type[Section], section: str) -> str:
    from pyagent.core.settings import sections_in

    for name in section.split("."):
        kind = sections_in(kind)[name]
    return (kind.__doc__ or "").strip()


def _default_text(leaf: Leaf) -> str:
    if leaf.default is None:
        return f"`{leaf.setting.none}`"
    return leaf.setting.shown or f"`{json.dumps(leaf.default)}`"


def _type_text(setting: Setting) -> str:
    return f"{setting.kind.text} or `{setting.none}`" if setting.none else setting.kind.text
