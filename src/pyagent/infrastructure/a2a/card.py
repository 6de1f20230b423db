"""The card of an agent elsewhere: fetched when its description is first needed, bounded, and read as hostile text.

Needs no package of the protocol: a card is looked at for its description before anything is sent there.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import urlsplit

import msgspec

from pyagent.core.addresses import is_loopback
from pyagent.core.errors import AgentAwayError
from pyagent.core.one_line import printable

PATH = "/.well-known/agent-card.json"
_MAX_BYTES = 1 << 20
_MAX_SKILLS = 20
_MAX_CHARACTERS = 300
_SECONDS = 10.0
_CONNECT_SECONDS = 5.0


class _Skill(msgspec.Struct, frozen=True):
    id: str = ""
    name: str = ""
    description: str = ""
    tags: list[str] = []


class _Interface(msgspec.Struct, frozen=True):
    url: str = ""
    protocolBinding: str = ""  # noqa: N815 - the protocol's name


class _Content(msgspec.Struct, frozen=True):
    name: str = ""
    description: str = ""
    skills: list[_Skill] = []
    supportedInterfaces: list[_Interface] = []  # noqa: N815 - the protocol's name


@dataclass(frozen=True, slots=True)
class Card:
    """A card as it was sent (`document`), and when."""

    document: dict[str, Any]  # what the protocol's package reads
    content: _Content
    fetched_at: float

    def description(self, skill: str) -> str:
        """Return what it says of a skill, or of all, in one bounded line."""
        named = [each for each in self.content.skills if skill in {"", each.id}]
        skills = "; ".join(_said_of(each) for each in named[:_MAX_SKILLS])
        about = "" if skill and named else _short(self.content.description or self.content.name)
        return " ".join(part for part in (about, f"Skills: {skills}." if skills else "") if part)

    def has_skill(self, skill: str) -> bool:
        """Whether there is a skill of that id."""
        return any(each.id == skill for each in self.content.skills)

    def leads_elsewhere(self, url: str) -> str:
        """Return the first server that it sends tasks to, unless one of them is the server of `url`."""
        origins = [_origin(each.url) for each in self.content.supportedInterfaces]
        return "" if _origin(url) in origins else next(iter(origins), "nowhere")

    def own_document(self, url: str) -> dict[str, Any]:
        """Return the card with the interfaces of the server of `url` alone: a token goes to no other."""
        given = cast("list[dict[str, object]]", self.document["supportedInterfaces"])
        own = [each for each in given if _origin(str(each.get("url", ""))) == _origin(url)]
        return {**self.document, "supportedInterfaces": own}


def _said_of(skill: _Skill) -> str:
    tags = f" ({', '.join(_short(tag) for tag in skill.tags[:5])})" if skill.tags else ""
    return f"{_short(skill.name or skill.id)}{tags}: {_short(skill.description)}"


def _short(text: str) -> str:
    return printable(" ".join(text[: 4 * _MAX_CHARACTERS].split()))[:_MAX_CHARACTERS]


def _origin(url: str) -> str:
    try:
        parts = urlsplit(url)
        port = parts.port or {"http": 80, "https": 443}.get(parts.scheme, 0)
    except ValueError:
        return "nowhere"
    return f"{parts.scheme}://{(parts.hostname or '').lower()}:{port}"


def card_url(url: str) -> str:
    """Return where the card is: the URL itself where it names a file, else its usual place below it."""
    return url if urlsplit(url).path.endswith(".json") else url.rstrip("/") + PATH


def fetch_card(agent: str, url: str, headers: Mapping[str, str]) -> Card:
    """Return a card; waits, so call it in a thread. Raises `AgentAwayError`, which quotes nothing of what was sent."""
    import httpx

    given_up_at, where = time.monotonic() + _SECONDS, card_url(url)
    try:
        with (
            httpx.Client(timeout=httpx.Timeout(_CONNECT_SECONDS), trust_env=not is_loopback(url)) as client,
            client.stream("GET", where, headers={**headers, "accept-encoding": "identity"}) as response,
        ):
            if response.is_error or response.is_redirect:
                text = f"{agent} has no card at {where}: it answers {response.status_code}"
                raise AgentAwayError(f"{text}; check `url`, and `token` if it wants one", agent=agent)
            body = _bounded(agent, response, given_up_at)
    except httpx.HTTPError as error:
        raise AgentAwayError(f"{agent} does not answer at {where} ({type(error).__name__})", agent=agent) from error
    try:
        document = msgspec.json.decode(body, type=dict[str, Any])
        return Card(document, msgspec.convert(document, _Content), time.monotonic())
    except (ValueError, RecursionError) as error:
        raise AgentAwayError(f"{agent} has no card at {where}: {str(error)[:200]}", agent=agent) from error


def _bounded(agent: str, response: Any, given_up_at: float) -> bytes:  # an httpx.Response, which is imported late
    body = b""
    for piece in response.iter_raw():
        body += piece
        if len(body) > _MAX_BYTES or time.monotonic() > given_up_at:
            what = f"is longer than {_MAX_BYTES >> 20} MiB" if len(body) > _MAX_BYTES else f"took over {_SECONDS:g} s"
            raise AgentAwayError(f"the card of {agent} {what}", agent=agent)
    return body
