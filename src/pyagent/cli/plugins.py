"""`pyagent plugins`: which plugins there are, what each brings, and what is wrong with the broken ones."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from pyagent.cli.new_plugin import new
from pyagent.cli.options import AsJson, Config
from pyagent.cli.output import for_terminal
from pyagent.cli.server_calls import call_server

if TYPE_CHECKING:
    from pyagent.core.found_plugin import PluginInfo
    from pyagent.core.plugins import PluginHost

app = typer.Typer(add_completion=False, help="List, load and write plugins.", no_args_is_help=True)
app.command("new")(new)
Url = Annotated[str | None, typer.Option("--url", help="The server; without it your own that runs.")]
_SHOWN_SECONDS = 0.0005


@app.command("list")
def list_plugins(
    config: Config = None,
    as_json: AsJson = False,
    timings: Annotated[
        bool, typer.Option("--timings", help="Show the time of each import and hook, slowest plugin first.")
    ] = False,
) -> None:
    """Load every plugin and show what it brings, or why it is not used."""
    host = _loaded_host(config)
    if timings and not as_json:
        _write_timings(host.plugins())
        return
    if as_json:
        typer.echo(json.dumps([_as_json(host, info) for info in host.plugins()]))
        return
    infos = host.plugins()
    widths = [max((len(text) for text in column), default=0) for column in zip(*map(_columns, infos), strict=True)]
    for info in infos:
        cells = (f"{text:<{width}}" for text, width in zip(_columns(info), widths, strict=True))
        typer.echo("  ".join([*cells, _outcome(info)]))
    for clash in host.clashes():
        typer.echo(
            f"{clash.noun} {clash.name!r}: {clash.winner} comes before {clash.loser}; plugins.order changes that"
        )
    for name in host.unknown_names():
        typer.echo(f"the settings name the plugin {name!r}, which is not installed")


@app.command()
def show(name: str, config: Config = None, as_json: AsJson = False) -> None:
    """Show all there is to know of one plugin."""
    from pyagent.core.errors import ConfigError
    from pyagent.core.nearest import did_you_mean

    host = _loaded_host(config)
    infos = {info.name: info for info in host.plugins()}
    if name not in infos:
        hint = did_you_mean(name, infos, "`pyagent plugins list` shows all")
        raise ConfigError(f"there is no plugin {name!r}; {hint}")
    described = _as_json(host, infos[name]) | _isolation(infos[name], config)
    if as_json:
        typer.echo(json.dumps(described))
        return
    for key, value in described.items():
        text = _text(value)
        if text:
            typer.echo(f"{key:<13} {text}")


@app.command()
def reload(name: str, url: Url = None, config: Config = None, as_json: AsJson = False) -> None:
    """Load a plugin anew in a running server; what is under way ends with what it began with."""
    body = call_server("POST", "/pyagent/plugins/reload", url, config, {"plugin": name})
    if as_json:
        typer.echo(body)
        return
    told = json.loads(body)
    info = told["plugin"]
    spent = _milliseconds(info["load_seconds"])
    typer.echo(for_terminal(f"{info['name']} {info['version'] or '-'} is loaded in {spent}"))
    for noun, who in told["used_by"].items():
        typer.echo(for_terminal(f"{noun} {', '.join(info['provides'][noun]) or '(none)'}: used by {who}"))


@app.command()
def unload(name: str, url: Url = None, config: Config = None, as_json: AsJson = False) -> None:
    """Take a plugin out of a running server until it is loaded anew, or the server starts anew."""
    body = call_server("POST", "/pyagent/plugins/unload", url, config, {"plugin": name})
    if as_json:
        typer.echo(body)
        return
    typer.echo(f"{json.loads(body)['plugin']['name']} is out of use; runs under way end with it")


def _write_timings(infos: Sequence[PluginInfo]) -> None:
    """Show what loading costs: the import, then each hook that was called."""
    costs = [(info.load_seconds + sum(info.hook_seconds.values()), info) for info in infos]
    width = max((len(info.name) for info in infos), default=0)
    for seconds, info in sorted(costs, key=lambda cost: -cost[0]):
        slow = {noun: spent for noun, spent in info.hook_seconds.items() if spent > _SHOWN_SECONDS}
        hooks = [f"{noun} {_milliseconds(spent)}" for noun, spent in slow.items()]
        parts = ", ".join([f"import {_milliseconds(info.load_seconds)}", *hooks])
        state = "" if info.state == "loaded" else f"  {info.state}"
        typer.echo(f"{info.name:<{width}}  {_milliseconds(seconds):>10}  {parts}{state}")
    typer.echo(f"{'all':<{width}}  {_milliseconds(sum(seconds for seconds, _ in costs)):>10}")


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms"


def _text(value: object) -> str:
    if isinstance(value, dict):
        return "; ".join(
            f"{key}: {_text(inner) or 'nothing'}" for key, inner in cast("dict[str, object]", value).items()
        )
    if isinstance(value, list | tuple):
        return ", ".join(map(str, cast("list[object]", value)))
    return f"{value:.4f}" if isinstance(value, float) else str(value)


def _loaded_host(config: Path | None) -> PluginHost:
    from pyagent.assembly import make_host
    from pyagent.core.config import load_settings

    host = make_host(load_settings(config).settings)
    logger = logging.getLogger("pyagent.plugins")
    level = logger.level
    logger.setLevel(logging.CRITICAL)  # what it would warn of is what this command prints
    try:
        host.load_all()
    finally:
        logger.setLevel(level)
    return host


def _isolation(info: PluginInfo, config: Path | None) -> dict[str, object]:
    """Return what an isolated plugin may do, and what of this machine holds it to that; nothing for others."""
    import msgspec

    from pyagent.core.config import load_settings
    from pyagent.infrastructure.isolation.capabilities import declared, source_of_plugin
    from pyagent.infrastructure.isolation.jail import kinds

    if info.name not in load_settings(config).settings.plugins.isolate or not info.modules:
        return {}
    allowed = declared(info.name, source_of_plugin(info.name, info.modules[0]))
    return {"may": msgspec.to_builtins(allowed), "isolated_by": kinds()}


def _columns(info: PluginInfo) -> tuple[str, str, str]:
    brings = " ".join(f"{noun}={len(names)}" for noun, names in info.provides.items()) or " ".join(info.nouns)
    return info.name, info.version or "-", brings or "-"


def _outcome(info: PluginInfo) -> str:
    if info.state == "loaded":
        return f"loads in {info.load_seconds * 1000:.0f} ms"
    return f"{info.state}: {info.reason}" if info.reason else info.state


def _as_json(host: PluginHost, info: PluginInfo) -> dict[str, object]:
    import msgspec

    described: dict[str, object] = msgspec.to_builtins(info)
    clashes = [
        f"{clash.noun} {clash.name}: {clash.winner} before {clash.loser}"
        for clash in host.clashes()
        if info.name in {clash.winner, clash.loser}
    ]
    return described | {"clashes": clashes}
