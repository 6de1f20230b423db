"""A folder that a plugin's architecture describes as one of a family: asked, checked, and made what Rust reads.

A plugin's answer may be wrong in any way. It is checked here as far as it is Python's, and in Rust as a file is.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import NamedTuple, cast

from pyagent import _rust
from pyagent.core.errors import ConfigError, ModelError, PluginError
from pyagent.core.runners.architecture import (
    BroughtArchitecture,
    DescribedArchitecture,
    FamilyDescription,
    ScoreFunction,
)
from pyagent.infrastructure.engine.runners.brought_folder import BroughtFolder, brought_folder
from pyagent.infrastructure.engine.runners.score_tables import MOST_NUMBERS, LayerTables, WrongTableError

_STORED = ("quantization_config", "compression_config")
"""Fields that say how weights are quantised, which a family takes as it finds them."""
_MOST_LAYERS = 1000


class LoadableFamily(NamedTuple):
    """A family with the tables of its layers, and a hash of all that it says."""

    inner: _rust.FamilyDescription
    digest: str


@dataclass(frozen=True, slots=True)
class Family:
    """A folder by the family's words. `inner` has no tables: it is for headers."""

    path: Path
    brought: BroughtArchitecture
    config: str
    tensor_names: list[tuple[str, str]]
    tables: LayerTables | None
    inner: _rust.FamilyDescription

    @classmethod
    def of(cls, path: Path, architectures: Mapping[str, BroughtArchitecture]) -> Family | None:
        """Return what an architecture describes the folder as; None where none does.

        Raises `ModelError` or `PluginError`.
        """
        folder = brought_folder(path, architectures) if path.is_dir() else None
        kind = None if folder is None else folder.brought.described
        return None if folder is None or kind is None else _described(path, folder, kind)

    @contextmanager
    def named(self) -> Generator[None]:
        """Make faults of the folder the model's, with what it is read as."""
        try:
            yield
        except _rust.ModelFileError as error:
            raise ModelError(f"{error}; {self.told}", model=str(self.path)) from error

    @property
    def told(self) -> str:
        """Who says what the folder is, for errors."""
        family: object = json.loads(self.config).get("model_type")
        name = self.brought.architecture.name
        return f"the plugin {self.brought.plugin!r} describes its architecture {name} as {family!r:.80}"

    @property
    def name(self) -> str:
        """What the folder calls itself."""
        return self.brought.architecture.name

    @property
    def has_score_functions(self) -> bool:
        """Whether layers add to scores what functions say."""
        return self.tables is not None

    def check_tables(self) -> None:
        """Raise `ModelError` where the tables would take too much, `ConfigError` where nothing can evaluate them."""
        if self.tables is None:
            return
        numbers = self.tables.num_numbers(*self._table_size())
        if numbers > MOST_NUMBERS:
            text = f"the tables of its score functions have {numbers} numbers; expected at most {MOST_NUMBERS}"
            how = "give layers the same function, or tell a shorter max_position_embeddings"
            raise ModelError(f"{self.path}: {text}: {how}; {self.told}", model=str(self.path))
        try:
            import_module("numpy")
        except ImportError as error:
            text = f"{self.path}: the score functions of {self.name} need numpy, which is not installed: "
            raise ConfigError(f"{text}pip install numpy; {self.told}", key="engine.models") from error

    def evaluated(self) -> LoadableFamily:
        """Evaluate the score functions, for who loads the model. Raises `ModelError`, `PluginError`, `ConfigError`."""
        digest = hashlib.blake2b(self.config.encode(), digest_size=16, person=b"pyagent family")
        digest.update(json.dumps([self.tensor_names, self.tables and self.tables.of_layers]).encode())
        if self.tables is None:
            return LoadableFamily(self.inner, digest.hexdigest())
        self.check_tables()
        num_heads, num_distances = self._table_size()
        with self.brought.named("evaluate the score functions", str(self.path)):
            try:
                tables = self.tables.evaluated(num_heads, num_distances)
            except WrongTableError as error:
                text = f"plugin {self.brought.plugin!r}: {error} ({self.path})"
                raise PluginError(text, plugin=self.brought.plugin) from error
        for table in tables:
            digest.update(table.data)
        told = [(table.data, num_heads) for table in tables]
        inner = _rust.FamilyDescription(self.config, self.tensor_names, self.tables.of_layers, told)
        return LoadableFamily(inner, digest.hexdigest())

    def _table_size(self) -> tuple[int, int]:
        """Return the heads and distances of a table, by the folder's header."""
        with self.named():
            config = _rust.ModelFile(self.path, family=self.inner).config
        return config.num_heads, config.context_length


def refusal(path: Path, architectures: Mapping[str, BroughtArchitecture], error: _rust.ModelFileError) -> ModelError:
    """Return the error of a folder that the CPU runner refuses: an architecture it has not may have a network."""
    folder = brought_folder(path, architectures) if path.is_dir() else None
    name = None if folder is None else folder.brought.architecture.name
    if folder is None or f"architecture '{name}' is not supported" not in str(error):
        return ModelError(str(error), model=str(path))
    text = (
        f"{path}: the plugin {folder.brought.plugin!r} computes {name} by a network, which needs the torch runner: set "
        "engine.runner to torch (`pip install torch numpy`), or have the plugin describe it for the CPU runner too"
    )
    return ModelError(text, model=str(path))


def _described(path: Path, folder: BroughtFolder, kind: DescribedArchitecture) -> Family:
    """Ask the architecture, and check what it says."""
    fields, brought = folder
    with brought.named("describe the family", str(path)):
        try:
            told = cast("object", kind.describe(fields))
        except (ArithmeticError, TypeError, ValueError) as error:
            text = f"{path}: the architecture {kind.name} cannot read config.json: {error}"
            raise ModelError(text, model=str(path)) from error
        if not isinstance(told, FamilyDescription):
            raise _wrong(brought, f"gave {told!r:.80} as a family's description; expected FamilyDescription")
        config = _config_text(brought, told.config)
        names = _names(brought, told.tensor_names)
        tables = _layer_tables(brought, told.score_functions)
    fields.check_read(path, kind.name, _STORED)
    try:
        inner = _rust.FamilyDescription(config, names, None if tables is None else tables.of_layers)
    except ValueError as error:
        raise _wrong(brought, f"describes the architecture {kind.name} wrongly: {error}") from error
    return Family(path, brought, config, names, tables, inner)


def _config_text(brought: BroughtArchitecture, config: object) -> str:
    if not isinstance(config, Mapping):
        raise _wrong(brought, f"gave {config!r:.80} as a family's config; expected a mapping, as config.json is one")
    fields = dict(cast("Mapping[object, object]", config))
    if not isinstance(fields.get("model_type"), str):
        raise _wrong(brought, "gave a family's config without a `model_type`; expected one that the CPU runner reads")
    try:
        return json.dumps(fields, sort_keys=True)
    except (TypeError, ValueError, RecursionError) as error:
        raise _wrong(brought, f"gave a family's config that is no JSON: {error}") from error


def _names(brought: BroughtArchitecture, names: object) -> list[tuple[str, str]]:
    if not isinstance(names, Mapping):
        raise _wrong(brought, f"gave {names!r:.80} as tensor_names; expected a mapping of texts")
    pairs = sorted(cast("Mapping[str, str]", names).items())
    for pair in pairs:
        if not all(isinstance(name, str) for name in cast("tuple[object, object]", pair)):
            raise _wrong(brought, f"gave {pair!r:.80} in tensor_names; expected texts")
    return pairs


def _layer_tables(brought: BroughtArchitecture, functions: object) -> LayerTables | None:
    if not isinstance(functions, Sequence) or len(functions) > _MOST_LAYERS:  # pyright: ignore[reportUnknownArgumentType]
        raise _wrong(brought, f"gave {functions!r:.80} as score_functions; expected one, or None, for each layer")
    told = cast("Sequence[ScoreFunction | None]", functions)
    for function in told:
        if function is not None and not callable(function):
            raise _wrong(brought, f"gave {function!r:.80} among the score_functions; expected functions, or None")
    return LayerTables.of(told) if told else None


def _wrong(brought: BroughtArchitecture, what: str) -> PluginError:
    return PluginError(f"plugin {brought.plugin!r} {what}", plugin=brought.plugin)
