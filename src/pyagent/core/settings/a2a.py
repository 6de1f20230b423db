"""Agents of other programs that ours may give tasks to by A2A, as they stand in pyagent.toml.

    [a2a.agents.weather]
    url = "https://weather.example.org"
    token = "env:WEATHER_TOKEN"

Read once, every mistake named. Knows no A2A. A reader raises nothing but `ValueError`, whose text begins with
"expected". Secrets are references alone.
"""

import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any, cast

import msgspec

from pyagent.core.addresses import has_password
from pyagent.core.nearest import nearest
from pyagent.core.setting_kinds import NUMBER, REFERENCES, TEXT, TRUTH, URL, Kind, read_table
from pyagent.core.settings.section import Section, Setting

_NAME = r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}"
_HEADER_NAME = r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}"  # RFC 9110, 5.6.2
_MAX_AGENTS = 100


class RemoteAgentSettings(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One agent: where its card is, which of the card's skills is meant, and what it is sent to be let in.

    `description` stands in for the card's. With `private` it may have the tasks of private runs.
    """

    url: str
    skill: str = ""
    description: str = ""
    token: str = ""
    headers: dict[str, str] = {}
    private: bool = False
    timeout_seconds: float = 600.0


def _read_agents(value: object) -> dict[str, RemoteAgentSettings]:
    tables = read_table(value)
    if len(tables) > _MAX_AGENTS:
        raise ValueError(f"expected at most {_MAX_AGENTS} agents, got {len(tables)}")
    return {name: _read_agent(name, entry) for name, entry in tables.items()}


def _read_agent(name: str, entry: object) -> RemoteAgentSettings:
    if not re.fullmatch(_NAME, name):
        raise ValueError(f"expected up to 64 letters, digits, - and _ as an agent's name, got {name!r:.80}")
    if isinstance(entry, RemoteAgentSettings):
        return entry
    if not isinstance(entry, Mapping) or "url" not in entry:
        raise ValueError(f"expected a table with `url` as the agent {name}")
    fields: dict[str, Any] = {}
    for key, given in read_table(cast("object", entry)).items():
        if key not in _READERS:
            known = nearest(key, _READERS) or " or ".join(_READERS)
            raise ValueError(f"expected {known} in the agent {name}, got {key!r:.60}")
        try:
            fields[key] = _READERS[key](given)
        except ValueError as error:
            raise ValueError(f"{error}, as {key} of the agent {name}") from error
    return RemoteAgentSettings(**fields)


def _read_url(value: object) -> object:
    url = URL.read(value)
    if has_password(str(url)):
        raise ValueError("expected a URL without a password; give `token` or `headers`")
    return url


def _read_token(value: object) -> object:
    try:
        return cast("dict[str, str]", REFERENCES.read({"token": value}))["token"]
    except ValueError as error:
        raise ValueError("expected env:NAME or file:PATH, never the token itself") from error


def _read_headers(value: object) -> object:
    headers = cast("dict[str, str]", REFERENCES.read(value))
    if wrong := next((name for name in headers if not re.fullmatch(_HEADER_NAME, name)), None):
        raise ValueError(f"expected the name of a header, got {wrong!r:.60}")
    return headers


_READERS: dict[str, Callable[[object], object]] = {
    "url": _read_url,
    "skill": TEXT.read,
    "description": TEXT.read,
    "token": _read_token,
    "headers": _read_headers,
    "private": TRUTH.read,
    "timeout_seconds": NUMBER.read,
}


class A2a(Section, frozen=True):
    """Agents of other programs, by A2A. `server.a2a` is the other way round."""

    agents: Annotated[
        dict[str, RemoteAgentSettings],
        Setting(
            Kind("tables of agents", _read_agents, "table"),
            "Agents elsewhere that tasks may be given to as to one's own, each a table `[a2a.agents.NAME]` with `url`, "
            "and `skill`, `description`, `token` and `headers` (`env:NAME` or `file:PATH`), `private`, "
            "`timeout_seconds` ([how](../how-to/a2a.md#give-tasks-to-agents-of-other-programs)).",
        ),
    ] = msgspec.field(default_factory=dict[str, RemoteAgentSettings])
