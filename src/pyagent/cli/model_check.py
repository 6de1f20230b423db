"""`pyagent models check`: whether the models in the store are still what was fetched."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from pyagent.cli.one_model import local_name
from pyagent.cli.options import AsJson, Config
from pyagent.cli.output import write_json
from pyagent.cli.startup import read_settings
from pyagent.core.errors import ModelError
from pyagent.core.one_line import printable

if TYPE_CHECKING:
    from pyagent.infrastructure.models.store import ModelStore


class Checked(msgspec.Struct, frozen=True, kw_only=True):
    """A model whose files were compared with their checksums: `is_whole` is None where there are none."""

    name: str
    is_whole: bool | None
    fault: str = ""
    has_own_sums: bool = False

    @property
    def said(self) -> str:
        """What people read of it."""
        if self.is_whole is None:
            return "a file of yours, without a checksum"
        is_as = "as the checksums in its file say" if self.has_own_sums else "as it was fetched"
        return self.fault or is_as


def check(
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME|PATH", help="A model in the store, or a file; all of the store unless given."),
    ] = None,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Compare models with the checksums that they came with, or that are in their files; reads the files whole."""
    from pyagent.infrastructure.models.store import ModelStore

    store = ModelStore.of(read_settings(config))
    name = name and local_name(name, store)
    names = [model.manifest.name for model in store.list()] if name is None else [name]
    checked: list[Checked] = []
    for each in names:
        checked.append(_checked(store, each))
        if not as_json:
            typer.echo(f"{each:<{max(map(len, names))}}  {printable(checked[-1].said)}")
    if as_json:
        write_json(checked)
    elif not checked:
        typer.echo(f"no models in {store.folder}")
    if any(one.fault for one in checked):
        raise typer.Exit(1)


def _checked(store: ModelStore, name: str) -> Checked:
    found = store.find(name)
    has_own_sums = found is None or found.is_own_file
    try:
        has_sums = store.check(name)
        return Checked(name=name, is_whole=has_sums or None, has_own_sums=has_sums and has_own_sums)
    except ModelError as error:
        return Checked(name=name, is_whole=False, fault=str(error))
