"""`pyagent config`: every setting, its value and where it came from; and the reference page made from the model."""

from __future__ import annotations

import json
import re
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Literal, cast, get_args, get_origin

import typer

from pyagent.cli.options import AsJson, Config

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

    from pyagent.core.config import Loaded

app = typer.Typer(add_completion=False, help="Show the settings and where they come from.", no_args_is_help=True)

_USER_INFO = re.compile(r"(?<=://)[^\s/@]+(?=@)")

_TYPE_NAMES = {
    "bool": "true or false",
    "list": "list of text",
    "dict": "table",
    "int": "whole number",
    "float": "number",
    "str": "text",
    "Path": "path",
}


@app.command()
def show(
    key: Annotated[str, typer.Argument(help="Show this setting only, or those of this table.")] = "",
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Show every value and where it came from."""
    from pyagent.core.config import load_settings
    from pyagent.core.errors import ConfigError

    rows = describe(load_settings(config))
    rows = {name: row for name, row in rows.items() if not key or name == key or name.startswith(f"{key}.")}
    if not rows:
        raise ConfigError(f"there is no setting {key}; `pyagent config show` lists all", key=key)
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
    """Each dotted key with its value, fit for JSON and without passwords, and its source."""
    from pyagent.core.config import leaf_fields

    dumped = loaded.settings.model_dump(mode="json")
    rows: dict[str, tuple[object, str]] = {}
    for key, field in leaf_fields().items():
        value = cast("object", dumped)
        for part in key.split("."):
            value = cast("dict[str, object]", value)[part]
        rows[key] = (_masked(_extra(field, "none") if value is None else value), loaded.sources[key])
    return rows


def _masked(value: object) -> object:
    if isinstance(value, str):
        return _USER_INFO.sub("***", value)
    if isinstance(value, list):
        return [_masked(entry) for entry in cast("list[object]", value)]
    return value


def render_settings_reference() -> str:
    """The page docs/reference/settings.md; a test compares the two."""
    from pyagent.core.config import env_name, leaf_fields
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
    fields = leaf_fields()
    for section in dict.fromkeys(key.rpartition(".")[0] for key in fields):
        heading = f"`[{section}]`" if section else "Top level"
        lines += ["", f"## {heading}", ""]
        if section:
            lines += [_section_text(Settings, section), ""]
        lines += ["| key | type | default | environment | meaning |", "|---|---|---|---|---|"]
        for key, field in fields.items():
            table, _, name = key.rpartition(".")
            if table == section:
                cells = [
                    f"`{name}`",
                    _type_text(field),
                    _default_text(field),
                    f"`{env_name(key)}`",
                    field.description or "",
                ]
                lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _section_text(model: object, section: str) -> str:
    for name in section.split("."):
        fields = cast("dict[str, FieldInfo]", getattr(model, "model_fields", {}))
        model = fields[name].annotation
    return (model.__doc__ or "").strip()


def _extra(field: FieldInfo, name: str) -> str:
    extra = cast("dict[str, object]", field.json_schema_extra or {})
    return str(extra.get(name) or "")


def _default_text(field: FieldInfo) -> str:
    default = cast("object", field.default)
    if default is None:
        return f"`{_extra(field, 'none')}`"
    return _extra(field, "shown") or f"`{json.dumps(default)}`"


def _type_text(field: FieldInfo) -> str:
    if any("parse_size" in repr(part) for part in (field.annotation, *field.metadata)):
        name = "size"
    else:
        name = _type_name(field.annotation)
    word = _extra(field, "none")
    return f"{name} or `{word}`" if word else name


def _type_name(kind: object) -> str:
    origin: object = get_origin(kind)
    arguments = cast("tuple[object, ...]", get_args(kind))
    if origin is Literal:
        return " or ".join(f"`{argument}`" for argument in arguments)
    if origin is Annotated:
        return _type_name(arguments[0])
    if isinstance(kind, UnionType) or (origin is not None and any(part is NoneType for part in arguments)):
        return _type_name(next(part for part in arguments if part is not NoneType))
    return _TYPE_NAMES[getattr(origin or kind, "__name__", "")]
