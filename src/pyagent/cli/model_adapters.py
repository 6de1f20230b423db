"""A model's adapters for `pyagent models show`: what their files hold, and whether a server has loaded them."""

from __future__ import annotations

from pathlib import Path

import msgspec

from pyagent.cli.startup import read_settings
from pyagent.core.sizes import format_bytes


class AdapterCard(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An adapter of `engine.adapters`, or the reason why its file cannot be read.

    `is_loaded` is what this user's server says, None where none runs; `loaded_bytes` is what the adapter takes there.
    """

    name: str
    path: str
    method: str = ""
    rank: int = 0
    targets: list[str] = []
    tensor_bytes: int = 0
    refused: str = ""
    is_loaded: bool | None = None
    loaded_bytes: int = 0

    def line(self) -> str:
        """Return one line for people."""
        if self.refused:
            return f"{self.name}: cannot be used: {self.refused}"
        what = f"{self.name}: {self.method}, rank {self.rank}, {format_bytes(self.tensor_bytes)}"
        if self.is_loaded is not None:
            what += f", loaded ({format_bytes(self.loaded_bytes)})" if self.is_loaded else ", not loaded"
        return f"{what}; adds to {', '.join(self.targets)} ({self.path})"


def adapter_cards(model: str, config: Path | None) -> list[AdapterCard]:
    """Return the adapters that the settings name for a model; reads their files' headers."""
    from pyagent.infrastructure.engine.models.adapter_names import adapters_of

    adapters = read_settings(config).engine.adapters
    found = adapters_of(model, adapters)
    loaded = _loaded_bytes(model, config) if found else None
    return [_card(name, adapters[key], loaded) for name, key in found.items()]


def _card(name: str, path: str, loaded: dict[str, int] | None) -> AdapterCard:
    from pyagent import _rust

    try:
        about = _rust.describe_adapter(Path(path).expanduser())
    except _rust.ModelFileError as error:
        return AdapterCard(name=name, path=path, refused=str(error))
    is_loaded = None if loaded is None else bool(loaded.get(name))
    return AdapterCard(
        name=name, path=path, **about, is_loaded=is_loaded, loaded_bytes=loaded.get(name, 0) if loaded else 0
    )


def _loaded_bytes(model: str, config: Path | None) -> dict[str, int] | None:
    """Return the bytes that each adapter of a model takes in this user's server; None where none runs, or says so."""
    from pyagent.cli.running_servers import running_servers
    from pyagent.cli.server_calls import call_server
    from pyagent.core.errors import PyAgentError

    if not running_servers(read_settings(config).paths.data):
        return None
    try:
        engines = msgspec.json.decode(call_server("GET", "/pyagent/engine", None, config), type=dict[str, _Engine])
    except (PyAgentError, msgspec.MsgspecError):
        return None
    of_model = [engine.adapters.get(model, {}) for engine in engines.values()]
    return {name: adapter.num_bytes for adapters in of_model for name, adapter in adapters.items()}


class _Adapter(msgspec.Struct):
    num_bytes: int


class _Engine(msgspec.Struct):
    adapters: dict[str, dict[str, _Adapter]] = {}
