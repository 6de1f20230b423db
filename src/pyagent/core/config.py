"""Reads the settings from their layers, and remembers where each value came from.

The layers: defaults < the user's file < the project's `pyagent.toml` < environment (`PYAGENT_ENGINE__MEMORY`) < flags.
A list or free table of a higher layer replaces that of a lower one. Unknown keys are refused, naming the nearest known
one. This is the only module that reads environment variables. Built once at the edge; parts receive the values they
need.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, cast

import msgspec
import platformdirs

from pyagent.core.errors import ConfigError
from pyagent.core.nearest import did_you_mean
from pyagent.core.secrets import strike_out, strike_text
from pyagent.core.settings import ENV_PREFIX, Plugins, Section, Setting, Settings, sections_in, settings_in

if TYPE_CHECKING:
    from pyagent.core.backends import LinkSpec

__all__ = [
    "Loaded",
    "Settings",
    "are_colours_allowed",
    "env_name",
    "leaf_settings",
    "load_settings",
    "project_file",
    "read_secret",
    "unknown_key",
    "user_file",
]

T = TypeVar("T", bound=Section)

FILE_NAME = "pyagent.toml"
_CHILD_VARIABLES = ("PATH", "HOME", "USER", "LOGNAME", "SHELL", "TERM", "LANG", "LC_ALL", "TZ", "TMPDIR")
_PLUGIN_OPTIONS = "plugins.options"
_STANDARD_VARIABLES = {"server.otlp_endpoint": "OTEL_EXPORTER_OTLP_ENDPOINT"}
"""Variables with a name of everybody's; our own for the same key goes before."""


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
    sources = dict.fromkeys(leaf_settings(), "default")
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
    _gather_plugin_tables(merged, sources)
    return Loaded(_built(Settings, _read(merged, sources)), sources)


def _gather_plugin_tables(merged: Leaves, sources: dict[str, str]) -> None:
    """Make one value of the tables `[plugins.NAME]`, each of which came from the highest layer that has it."""
    tables = {key: merged.pop(key) for key in list(merged) if key.startswith(f"{_PLUGIN_OPTIONS}.")}
    if tables:
        named = {key.removeprefix(f"{_PLUGIN_OPTIONS}."): table for key, table in tables.items()}
        given = merged.get(_PLUGIN_OPTIONS, {})
        merged[_PLUGIN_OPTIONS] = {**given, **named} if isinstance(given, Mapping) else given
        sources[_PLUGIN_OPTIONS] = ", ".join(dict.fromkeys(sources.pop(key) for key in tables))


def _read(merged: Leaves, sources: Mapping[str, str]) -> Leaves:
    """Return the values as the model has them; raises `ConfigError`, one line for each that is wrong."""
    values: Leaves = {}
    faults: dict[str, tuple[object, ValueError]] = {}
    for key, leaf in leaf_settings().items():
        if key in merged:
            try:
                values[key] = leaf.setting.read(merged[key])
            except ValueError as error:
                faults[key] = merged[key], error
    if faults:
        raise _config_error(faults, sources)
    return values


def user_file() -> Path | None:
    """Return the user's own file of settings, when there is one."""
    file = platformdirs.user_config_path("pyagent", appauthor=False) / FILE_NAME
    return file if file.is_file() else None


def project_file(start: Path | None = None) -> Path | None:
    """Return the nearest `pyagent.toml` from the working directory upwards."""
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


def read_headers(link: LinkSpec) -> dict[str, str]:
    """Return a link's headers with their values, read where they say; raises `ConfigError` without telling any."""
    headers: dict[str, str] = {}
    for name, given in link.headers.items():
        value = read_secret(given) if given.startswith(("env:", "file:")) else given
        if value is None or not (value.isascii() and value.isprintable()):
            text = f"the header {name} of {link} is to be one printable line of {given}; set it, or correct it"
            raise ConfigError(text, key="chain")
        headers[name] = value
    return headers


def child_environment(given: Mapping[str, str], where: str) -> dict[str, str]:
    """Return the variables of a program that is started: a few that programs need, and those given, references read.

    Raises `ConfigError` without telling any value.
    """
    kept = {name: os.environ[name] for name in _CHILD_VARIABLES if name in os.environ}
    return kept | read_references(given, where)


def read_references(given: Mapping[str, str], where: str) -> dict[str, str]:
    """Return the values, those that are `env:NAME` or `file:PATH` read; raises `ConfigError` without telling any."""
    values: dict[str, str] = {}
    for name, text in given.items():
        value = read_secret(text) if text.startswith(("env:", "file:")) else text
        if value is None:
            raise ConfigError(f"{name} of {where} is to be {text}, which is not set", key="mcp_servers")
        values[name] = value
    return values


def env_name(key: str) -> str:
    """Return the environment variable of a dotted key."""
    return ENV_PREFIX + key.upper().replace(".", "__")


def are_colours_allowed() -> bool:
    """Whether the environment lets a terminal be coloured: NO_COLOR (https://no-color.org) is unset, TERM not dumb."""
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


class Leaf(msgspec.Struct, frozen=True):
    """A setting at its place: what it is and its default."""

    setting: Setting
    default: object


@functools.cache
def leaf_settings() -> Mapping[str, Leaf]:
    """Return every setting by its dotted key, in the order of the model."""
    return dict(_walk(Settings(), ""))


def _walk(section: Section, prefix: str) -> Iterator[tuple[str, Leaf]]:
    for name, setting in settings_in(type(section)).items():
        yield prefix + name, Leaf(setting, getattr(section, name))
    for name in sections_in(type(section)):
        yield from _walk(getattr(section, name), f"{prefix}{name}.")


def _built(kind: type[T], values: Mapping[str, object], prefix: str = "") -> T:
    """Return the table with these values, by dotted key; what is not there is its default."""
    own = {name: values[prefix + name] for name in settings_in(kind) if prefix + name in values}
    tables = {name: _built(inner, values, f"{prefix}{name}.") for name, inner in sections_in(kind).items()}
    return kind(**own, **tables)


def _read_toml(file: Path) -> dict[str, object]:
    import tomllib

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


def _leaves(kind: type[Section], data: Mapping[str, object], prefix: str, where: str) -> Iterator[tuple[str, object]]:
    settings, sections = settings_in(kind), sections_in(kind)
    for name, value in data.items():
        if name in settings:
            yield prefix + name, value
        elif kind is Plugins and isinstance(value, Mapping):
            yield f"{_PLUGIN_OPTIONS}.{name}", value
        elif name not in sections:
            raise unknown_key(prefix + name, where)
        elif isinstance(value, Mapping):
            yield from _leaves(sections[name], cast("Mapping[str, object]", value), f"{prefix}{name}.", where)
        else:
            known = ", ".join(sections[name].__struct_fields__)
            raise ConfigError(
                f"{prefix}{name} ({where}) is a table with {known}; got {strike_out(value)!r}", key=prefix + name
            )


def unknown_key(key: str, where: str = "") -> ConfigError:
    """Return the error for a setting that there is not, naming the nearest one."""
    sections = {known.rpartition(".")[0] for known in leaf_settings()} - {""}
    hint = did_you_mean(key, [*leaf_settings(), *sections], "`pyagent config show` lists all settings")
    place = f" ({where})" if where else ""
    return ConfigError(f"unknown setting {key}{place}; {hint}", key=key)


def _nested(leaves: Mapping[str, object]) -> dict[str, object]:
    result: dict[str, object] = {}
    for key, value in leaves.items():
        _put(result, key, value)
    return result


def _put(tables: dict[str, object], key: str, value: object) -> None:
    *parents, last = key.split(".")
    for parent in parents:
        inner = tables.setdefault(parent, {})
        if not isinstance(inner, dict):
            raise ConfigError(f"{key} stands beside a value for {parent}; give one of them", key=key)
        tables = cast("dict[str, object]", inner)
    tables[last] = value


def _anchored(leaves: Leaves, folder: Path) -> Leaves:
    """Relative paths of a file are relative to the file's folder, wherever the program was started."""
    anchored = dict(leaves)
    files = (f"server.{name}" for name in ("api_keys_file", "admin_keys_file", "files_root"))
    for key in ("paths.models", "paths.data", *files):
        value = anchored.get(key)
        if isinstance(value, str) and value not in {"", "none"} and not value.startswith("~"):
            anchored[key] = str(folder / value)
    models = anchored.get("engine.models")
    if isinstance(models, list):
        anchored["engine.models"] = [_beside(entry, folder) for entry in cast("list[object]", models)]
    if isinstance(adapters := anchored.get("engine.adapters"), dict):
        anchored["engine.adapters"] = {name: _beside(one, folder) for name, one in cast("Leaves", adapters).items()}
    for key in [key for key in anchored if key.startswith("engine.chat_template")]:
        anchored[key] = _beside(anchored[key], folder)
    if isinstance(servers := anchored.get("mcp_servers"), dict):
        anchored["mcp_servers"] = {name: _started_beside(one, folder) for name, one in cast("Leaves", servers).items()}
    if isinstance(hooks := anchored.get("server.hooks"), dict):
        anchored["server.hooks"] = {name: _schema_beside(one, folder) for name, one in cast("Leaves", hooks).items()}
    return anchored


def _schema_beside(hook: object, folder: Path) -> object:
    """Return an incoming webhook's table with the file of its schema as it stands beside the file of settings."""
    if not isinstance(hook, dict):
        return hook
    table = cast("dict[str, object]", hook)
    schema = table.get("schema")
    is_file = isinstance(schema, str) and schema and not schema.startswith("~")
    return table | {"schema": str(folder / cast("str", schema))} if is_file else table


def _started_beside(server: object, folder: Path) -> object:
    """Return an MCP server's table with its command and folder as they stand beside the file of settings."""
    if not isinstance(server, dict):
        return server
    table = cast("dict[str, object]", server)
    return table | {key: _beside(table[key], folder) for key in ("command", "cwd") if key in table}


def _beside(entry: object, folder: Path) -> object:
    """Return names as they are, and files by their places beside the file of settings."""
    if isinstance(entry, dict):
        return {name: _beside(one, folder) for name, one in cast("dict[str, object]", entry).items()}
    is_file = isinstance(entry, str) and entry.startswith(".") and "{" not in entry
    return str((folder / cast("str", entry)).resolve()) if is_file else entry


def _environment_leaves() -> Leaves:
    """Return the variables' values; one that names a key goes before one that gives a table around it as JSON."""
    tables: dict[str, object] = {}
    for variable in sorted(os.environ, key=lambda name: name.count("__")):
        if not variable.upper().startswith(ENV_PREFIX):
            continue
        key = variable[len(ENV_PREFIX) :].lower().replace("__", ".")
        if key.partition(".")[0] not in Settings.__struct_fields__:
            raise _unknown_variable(variable)
        if os.environ[variable]:
            _put(tables, key, _decoded(variable, key, os.environ[variable]))
    standard = {key: os.environ[name] for key, name in _STANDARD_VARIABLES.items() if os.environ.get(name)}
    return standard | _flatten(tables, "environment")


def _decoded(variable: str, key: str, value: str) -> object:
    """Return a variable's text; JSON, or a list of parts, where the setting is a list or a table."""
    leaf, text = leaf_settings().get(key), value.strip()
    written = leaf.setting.kind.written if leaf else "table"
    if written != "word" and text.startswith(("[", "{")):
        try:
            return json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ConfigError(
                f"environment: error parsing value of {variable} ({error}); "
                'tables are JSON, as {"NAME": "VALUE"}; lists are JSON or parts with commas between'
            ) from error
    return [part.strip() for part in text.split(",") if part.strip()] if written == "list" else value


def _unknown_variable(variable: str) -> ConfigError:
    known = [env_name(key) for key in leaf_settings()]
    hint = did_you_mean(variable.upper(), known, "`pyagent config show` lists all settings")
    return ConfigError(f"unknown environment variable {variable}; {hint}")


def _variable_that_set(key: str) -> str:
    """Return the variable's name as set: that of the key, or of a table around it given as JSON."""
    upper = {variable.upper() for variable in os.environ}
    parts = key.split(".")
    names = [env_name(".".join(parts[:length])) for length in range(len(parts), 0, -1)]
    return next((name for name in names if name in upper), _STANDARD_VARIABLES.get(key, names[0]))


def _config_error(faults: Mapping[str, tuple[object, ValueError]], sources: Mapping[str, str]) -> ConfigError:
    texts = [_fault(key, value, error, sources[key]) for key, (value, error) in faults.items()]
    return ConfigError("\n".join(texts), key=next(iter(faults)))


def _fault(key: str, value: object, error: ValueError, source: str) -> str:
    if key == "backends.api_keys":  # never echoed: somebody may have written the key itself
        return f"{key} ({source}): expected a table of env:NAME or file:PATH; keys never stand in settings"
    entries: list[object] = cast("list[object]", value) if isinstance(value, list) else [value]
    if any(isinstance(entry, Mapping | list) for entry in entries):  # nor a table: any name in it may be a key's
        return f"{key} ({source}): {strike_text(str(error))}"
    shown = strike_out(cast("object", value))
    return f"{key} = {shown!r:.100} ({source}): {strike_text(str(error))}"
