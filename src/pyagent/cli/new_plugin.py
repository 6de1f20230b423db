"""`pyagent plugins new`: a plugin of one's own, from nothing to a package that installs."""

from __future__ import annotations

import tempfile
from collections.abc import Collection
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from pyagent.cli.options import AsJson, Config
from pyagent.cli.plugin_package import KINDS, Kind, Package, files_of, package_of
from pyagent.core.errors import RequestError


def new(
    kind: Annotated[Kind, typer.Argument(help="What the plugin brings; `parser` is how a model writes tool calls.")],
    name: Annotated[str, typer.Argument(help="The plugin's name, and that of what it brings: `tide-table`.")],
    path: Annotated[
        Path | None, typer.Option("--path", help="The folder to make; without it `pyagent-NAME` in this one.")
    ] = None,
    description: Annotated[str, typer.Option("--description", help="One line: an agent is chosen by it.")] = "",
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Write a package that brings a new agent, backend, tool, parser, policy, runner or command."""
    package = package_of(kind, name, description)
    _check_is_free(package, config)
    folder = path or Path(package.distribution)
    files = files_of(package)
    write_package(folder, files)
    if as_json:
        from pyagent.cli.output import write_json

        write_json({"name": name, "kind": kind, "folder": str(folder), "files": sorted(files)})
        return
    typer.echo(f"{folder} has the {kind} {name}, with its tests. Next:")
    for line in (f"cd {folder}", "pip install -e '.[test]'", "pytest", "pyagent plugins list", package.use):
        typer.echo(f"    {line}")


def write_package(folder: Path, files: dict[str, str]) -> None:
    """Write a new folder, whole or not at all. Raises `RequestError` where it exists or cannot be written."""
    if folder.exists() or folder.is_symlink():
        raise RequestError(f"{folder} exists already; choose another name, or a folder with --path", param="path")
    try:
        with tempfile.TemporaryDirectory(prefix=".new-plugin-", dir=folder.parent) as beside:
            made = Path(beside) / "made"
            for path, text in files.items():
                file = made / path
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(text, encoding="utf-8")
            made.rename(folder)
    except OSError as error:
        reason = error.strerror or error
        raise RequestError(
            f"{folder} cannot be written: {reason}; choose a folder with --path", param="path"
        ) from error


def _check_is_free(package: Package, config: Path | None) -> None:
    """Raise `RequestError` where the name is that of a plugin, of a thing it would bring, or of a package."""
    taken = _taken_name(package, config) or _taken_package(package)
    if taken:
        raise RequestError(f"{taken} already; choose another name", param="name")


def _taken_name(package: Package, config: Path | None) -> str:
    from pyagent.assembly import make_host
    from pyagent.core.config import load_settings

    host = make_host(load_settings(config).settings)
    if package.name in {info.name for info in host.plugins()}:
        return f"there is a plugin {package.name!r}"
    brought: dict[str, object] = getattr(host, KINDS[package.kind].noun)()
    return f"there is a {package.kind} {package.name!r}" if package.name in {*brought, *_built_in(package.kind)} else ""


def _built_in(kind: Kind) -> Collection[str]:
    """Return the names that are PyAgent's own and that no hook brings."""
    if kind == "command":
        from pyagent.cli.root import COMMANDS

        return COMMANDS
    if kind == "parser":
        from pyagent.core.dialects.registry import dialects

        return dialects()
    return {"auto"}  # as a backend or a runner: what the settings say for "find one"


def _taken_package(package: Package) -> str:
    try:
        return f"the package {package.distribution} {version(package.distribution)} is installed"
    except PackageNotFoundError:
        return f"there is a module {package.module}" if find_spec(package.module) else ""
