"""Incoming webhooks, as they stand in pyagent.toml: each begins runs of one task.

    [server.hooks.issues]
    form = "github"
    secret = "env:GITHUB_WEBHOOK_SECRET"
    events = ["issues"]
    task = "Answer this issue: {issue.title}"

Read once, every mistake named. A reader raises nothing but `ValueError`, whose text begins with "expected". A secret is
a reference alone.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, Literal, cast

import msgspec

from pyagent.core.nearest import nearest
from pyagent.core.setting_kinds import NUMBER, TEXT, TEXTS, Kind, choice, parse_size, read_table, whole

_NAME = r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}"
_REFERENCE = re.compile(r"(env:[A-Za-z_][A-Za-z0-9_]*|file:.+)")
_MAX_HOOKS = 100
_MAX_BYTES = 2_000_000
"""Of a body: what the server's own routes read."""


class HookSettings(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One hook: how its messages are signed, which it takes, and the task that each begins, for `agent` or any.

    `schema` is a file with a JSON schema. Runs belong to `tenant`, the name of a key.
    """

    secret: str
    task: str
    form: Literal["standard", "github"] = "standard"
    agent: str = ""
    events: tuple[str, ...] = ()
    schema: str = ""
    tenant: str = ""
    max_bytes: int = 256_000
    max_waiting: int = 1_000
    tolerance_seconds: float = 300.0


def _read_hooks(value: object) -> dict[str, HookSettings]:
    tables = read_table(value)
    if len(tables) > _MAX_HOOKS:
        raise ValueError(f"expected at most {_MAX_HOOKS} hooks, got {len(tables)}")
    return {name: _read_hook(name, entry) for name, entry in tables.items()}


def _read_hook(name: str, entry: object) -> HookSettings:
    if not re.fullmatch(_NAME, name):
        raise ValueError(f"expected up to 64 letters, digits, - and _ as a hook's name, got {name!r:.80}")
    if isinstance(entry, HookSettings):
        return entry
    if not isinstance(entry, Mapping) or not {"secret", "task"} <= cast("Mapping[str, object]", entry).keys():
        raise ValueError(f"expected a table with `secret` and `task` as the hook {name}")
    fields: dict[str, Any] = {}
    for key, given in read_table(cast("object", entry)).items():
        if key not in _READERS:
            known = nearest(key, _READERS) or " or ".join(_READERS)
            raise ValueError(f"expected {known} in the hook {name}, got {key!r:.60}")
        try:
            fields[key] = _READERS[key](given)
        except ValueError as error:
            raise ValueError(f"{error}, as {key} of the hook {name}") from error
    return HookSettings(**fields)


def _read_secret(value: object) -> str:
    if not isinstance(value, str) or not _REFERENCE.fullmatch(value):
        raise ValueError("expected env:NAME or file:PATH, never the secret itself")
    return value


def _read_task(value: object) -> str:
    text = str(TEXT.read(value))
    if not text.strip():
        raise ValueError("expected a task such as `Look at {payload}`")
    return text


def _read_bytes(value: object) -> int:
    size = parse_size(value)
    if not 0 < size <= _MAX_BYTES:
        raise ValueError(f"expected at most {_MAX_BYTES:,} bytes")
    return size


_READERS: dict[str, Callable[[object], object]] = {
    "secret": _read_secret,
    "task": _read_task,
    "form": choice("standard", "github").read,
    "agent": TEXT.read,
    "events": lambda value: tuple(cast("list[str]", TEXTS.read(value))),
    "schema": TEXT.read,
    "tenant": TEXT.read,
    "max_bytes": _read_bytes,
    "max_waiting": whole(1, 100_000).read,
    "tolerance_seconds": NUMBER.read,
}

HOOKS = Kind("tables of hooks", _read_hooks, "table")
