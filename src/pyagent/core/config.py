"""Reads the settings from their layers, and remembers where each value came from.

The layers: defaults < the user's file < the project's `pyagent.toml` < environment (`PYAGENT_ENGINE__MEMORY`) < flags.
A list or free table of a higher layer replaces that of a lower one. Unknown keys are refused, naming the nearest known
one. This is the only module that reads environment variables. Built once at the edge; parts receive the values they
need. Importing it costs what pydantic-settings costs, so command-line modules import it inside their functions.
"""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, cast

import platformdirs
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_settings import EnvSettingsSource

from pyagent.core.errors import ConfigError
from pyagent.core.settings import ENV_PREFIX, Settings

__all__ = ["Loaded", "Settings", "env_name", "leaf_fields", "load_settings", "project_file", "read_secret", "user_file"]

FILE_NAME = "pyagent.toml"


@dataclass(frozen=True, slots=True)
class Loaded:
    """Settings, and for each dotted key where its value came from: `default`, `pyagent.toml:/path`, `env X`, `flag`."""

    settings: Settings
    sources: Mapping[str, str]


Leaves = dict[str, object]


def load_settings(path: Path | None = None, overrides: Mapping[str, object] | None = None) -> Loaded:
    """Read all layers; `path` stands in for both files. `overrides` (flags) have dotted keys; None means not given.

    Raises `ConfigError`, one sentence for each fault, with its key and where it stands.
    """
    merged: Leaves = {}
    sources = dict.fromkeys(leaf_fields(), "default")
    files = [path] if path is not None else [file for file in (user_file(), project_file()) if file is not None]
    for file in files:
        leaves = _anchored(_flatten(_read_toml(file), str(file)), file.parent)
        merged |= leaves
        sources |= dict.fromkeys(leaves, f"{FILE_NAME}:{file}")
    environment = _environment_leaves()
    merged |= environment
    sources |= {key: f"env {_variable_that_set(key)}" for key in environment}
    flags = _flatten(_nested({k: v for k, v in (overrides or {}).items() if v is not None}), "flag")
    merged |= flags
    sources |= dict.fromkeys(flags, "flag")
    try:
        return Loaded(Settings(**cast("dict[str, Any]", _nested(merged))), sources)
    except ValidationError as error:
        raise _config_error(error, sources) from error


def user_file() -> Path | None:
    """The user's own file of settings, when there is one."""
    file = platformdirs.user_config_path("pyagent", appauthor=False) / FILE_NAME
    return file if file.is_file() else None


def project_file(start: Path | None = None) -> Path | None:
    """The nearest `pyagent.toml` from the working directory upwards."""
    start = (start or Path.cwd()).resolve()
    return next((folder / FILE_NAME for folder in (start, *start.parents) if (folder / FILE_NAME).is_file()), None)


def read_secret(reference: str) -> str | None:
    """The secret that `env:NAME` or `file:PATH` names; None when the variable is not set. Never log the result."""
    kind, _, name = reference.partition(":")
    if kind == "env":
        return os.environ.get(name) or None
    try:
        return Path(name).expanduser().read_text(encoding="utf-8").strip() or None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the file of the key, {name}, cannot be read: {error}", key="backends.api_keys") from error


def env_name(key: str) -> str:
    """The environment variable of a dotted key."""
    return ENV_PREFIX + key.upper().replace(".", "__")


def leaf_fields() -> dict[str, FieldInfo]:
    """Every setting by its dotted key, in the order of the model."""
    return dict(_walk(Settings, ""))


def _walk(model: type[BaseModel], prefix: str) -> Iterator[tuple[str, FieldInfo]]:
    for name, field in model.model_fields.items():
        if section := _section(field):
            yield from _walk(section, f"{prefix}{name}.")
        else:
            yield prefix + name, field


def _section(field: FieldInfo) -> type[BaseModel] | None:
    kind: object = field.annotation
    return kind if isinstance(kind, type) and issubclass(kind, BaseModel) else None


def _read_toml(file: Path) -> dict[str, object]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{file} is not valid TOML: {error}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file} is not UTF-8 text: {error}") from error
    except OSError as error:
        raise ConfigError(f"the file of settings {file} cannot be read: {error.strerror or error}") from error
    except RecursionError as error:
        raise ConfigError(f"{file} nests too deep to be a file of settings") from error


def _flatten(data: Mapping[str, object], where: str) -> Leaves:
    """Dotted keys of nested tables; refuses unknown ones, naming the nearest."""
    return dict(_leaves(Settings, data, "", where))


def _leaves(
    model: type[BaseModel], data: Mapping[str, object], prefix: str, where: str
) -> Iterator[tuple[str, object]]:
    for name, value in data.items():
        field = model.model_fields.get(name)
        if field is None:
            raise _unknown_key(prefix + name, where)
        section = _section(field)
        if section is None:
            yield prefix + name, value
        elif isinstance(value, Mapping):
            yield from _leaves(section, cast("Mapping[str, object]", value), f"{prefix}{name}.", where)
        else:
            known = ", ".join(section.model_fields)
            raise ConfigError(f"{prefix}{name} ({where}) is a table with {known}; got {value!r}", key=prefix + name)


def _unknown_key(key: str, where: str) -> ConfigError:
    sections = {known.rpartition(".")[0] for known in leaf_fields()} - {""}
    nearest = get_close_matches(key, [*leaf_fields(), *sections], n=1, cutoff=0.5)
    hint = f"did you mean {nearest[0]}?" if nearest else "`pyagent config show` lists all settings"
    return ConfigError(f"unknown setting {key} ({where}); {hint}", key=key)


def _nested(leaves: Mapping[str, object]) -> dict[str, object]:
    result: dict[str, object] = {}
    for key, value in leaves.items():
        *parents, last = key.split(".")
        table = result
        for parent in parents:
            inner = table.setdefault(parent, {})
            if not isinstance(inner, dict):
                raise ConfigError(f"{key} stands beside a value for {parent}; give one of them", key=key)
            table = cast("dict[str, object]", inner)
        table[last] = value
    return result


def _anchored(leaves: Leaves, folder: Path) -> Leaves:
    """Relative paths of a file are relative to the file's folder, wherever the program was started."""
    anchored = dict(leaves)
    for key in ("paths.models", "paths.data", "server.api_keys_file"):
        value = anchored.get(key)
        if isinstance(value, str) and value not in {"", "none"} and not value.startswith("~"):
            anchored[key] = str(folder / value)
    models = anchored.get("engine.models")
    if isinstance(models, list):
        entries = cast("list[object]", models)
        anchored["engine.models"] = [
            str((folder / entry).resolve()) if isinstance(entry, str) and entry.startswith((".", "..")) else entry
            for entry in entries
        ]
    return anchored


class _Environment(EnvSettingsSource):
    """Environment variables; a list may be JSON or parts with commas between."""

    def decode_complex_value(self, field_name: str, field: FieldInfo, value: Any) -> Any:
        text = str(value).strip()
        if text.startswith(("[", "{")):
            return json.loads(text)
        return [part.strip() for part in text.split(",") if part.strip()]


def _environment_leaves() -> Leaves:
    for variable in os.environ:
        if variable.upper().startswith(ENV_PREFIX):
            key = variable[len(ENV_PREFIX) :].lower().replace("__", ".")
            if key.partition(".")[0] not in Settings.model_fields:
                raise _unknown_variable(variable)
    try:
        data = cast("dict[str, object]", _Environment(Settings)())
    except ValueError as error:
        raise ConfigError(
            f"environment: {error} ({error.__cause__}); lists are JSON or parts with commas between"
        ) from error
    return _flatten(data, "environment")


def _unknown_variable(variable: str) -> ConfigError:
    nearest = get_close_matches(variable.upper(), [env_name(key) for key in leaf_fields()], n=1, cutoff=0.5)
    hint = f"did you mean {nearest[0]}?" if nearest else "`pyagent config show` lists all settings"
    return ConfigError(f"unknown environment variable {variable}; {hint}")


def _variable_that_set(key: str) -> str:
    """The variable's name as set: that of the key, or of a table around it given as JSON."""
    upper = {variable.upper() for variable in os.environ}
    parts = key.split(".")
    names = [env_name(".".join(parts[:length])) for length in range(len(parts), 0, -1)]
    return next((name for name in names if name in upper), names[0])


def _config_error(error: ValidationError, sources: Mapping[str, str]) -> ConfigError:
    faults = [_fault(cast("Mapping[str, Any]", detail), sources) for detail in error.errors(include_url=False)]
    return ConfigError("\n".join(text for _, text in faults), key=faults[0][0])


def _fault(detail: Mapping[str, Any], sources: Mapping[str, str]) -> tuple[str, str]:
    parts = [str(part) for part in detail["loc"]]
    keys = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
    key = next((key for key in keys if key in sources), ".".join(parts))
    said = str(detail["msg"]).removeprefix("Value error, ").replace("Input should be", "expected")
    if key == "backends.api_keys":  # never echoed: somebody may have written the key itself
        where = sources.get(key, "default")
        return key, f"{key} ({where}): expected a table of env:NAME or file:PATH; keys never stand in settings"
    return key, f"{key} = {detail['input']!r:.100} ({sources.get(key, 'default')}): {said}"
