"""The settings of webhooks that go out: where runs are told. Those that come in are `server.hooks`.

    [webhooks.endpoints.ci]
    url = "https://ci.example.org/hook"
    events = ["run.finished", "run.failed"]
    secret = "env:CI_WEBHOOK_SECRET"

A reader raises nothing but `ValueError`, whose text begins with "expected". A secret is a reference alone. Which URLs
and events there are is `core.webhooks`' to say.
"""

import re
from collections.abc import Mapping
from typing import Annotated, cast

import msgspec

from pyagent.core.addresses import has_password
from pyagent.core.nearest import nearest
from pyagent.core.setting_kinds import TEXT, TEXTS, TRUTH, URL, Kind, read_table
from pyagent.core.settings.section import Section, Setting

_NAME = r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}"
_REFERENCE = re.compile(r"(env:[A-Za-z_][A-Za-z0-9_]*|file:.+)")
_MAX_ENDPOINTS = 50
_EVENTS = ("run.started", "run.resumed", "run.question", "run.finished", "run.failed", "run.cancelled")
EVENT_NAMES = (*_EVENTS, "run.needs_answer", "*")
_FIELDS = ("url", "events", "secret", "tenant")


class EndpointSettings(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One webhook: where to, of which events, signed by what; of the runs of `tenant`, the name of a key."""

    url: str
    events: tuple[str, ...]
    secret: str
    tenant: str = ""


def _read_endpoints(value: object) -> dict[str, EndpointSettings]:
    tables = read_table(value)
    if len(tables) > _MAX_ENDPOINTS:
        raise ValueError(f"expected at most {_MAX_ENDPOINTS} webhooks, got {len(tables)}")
    return {name: _read_endpoint(name, entry) for name, entry in tables.items()}


def _read_endpoint(name: str, entry: object) -> EndpointSettings:
    if not re.fullmatch(_NAME, name) or name.startswith("wh-"):
        raise ValueError(f"expected up to 64 letters, digits, - and _ as a webhook's name, not wh-, got {name!r:.80}")
    if isinstance(entry, EndpointSettings):
        return entry
    if not isinstance(entry, Mapping) or not set(_FIELDS[:3]) <= cast("Mapping[str, object]", entry).keys():
        raise ValueError(f"expected a table with `url`, `events` and `secret` as the webhook {name}")
    table = read_table(cast("object", entry))
    for key in table:
        if key not in _FIELDS:
            known = nearest(key, _FIELDS) or " or ".join(_FIELDS)
            raise ValueError(f"expected {known} in the webhook {name}, got {key!r:.60}")
    url, events, secret = str(URL.read(table["url"])), cast("list[str]", TEXTS.read(table["events"])), table["secret"]
    if has_password(url):
        raise ValueError(f"expected a URL without a password in the webhook {name}")
    unknown = [event for event in events if event not in EVENT_NAMES]
    if not events or unknown:
        what = f"got {unknown[0]!r:.60}" if unknown else "got none"
        raise ValueError(f"expected events of {', '.join(EVENT_NAMES)} in the webhook {name}, {what}")
    if not isinstance(secret, str) or not _REFERENCE.fullmatch(secret):
        raise ValueError(f"expected env:NAME or file:PATH, never the secret itself, in the webhook {name}")
    tenant = str(TEXT.read(table.get("tenant", "")))
    return EndpointSettings(url=url, events=tuple(dict.fromkeys(events)), secret=secret, tenant=tenant)


class Webhooks(Section, frozen=True):
    """Webhooks that tell other programs what runs do. `server.hooks` is the other way round."""

    endpoints: Annotated[
        dict[str, EndpointSettings],
        Setting(
            Kind("tables of webhooks", _read_endpoints, "table"),
            "Webhooks that are told what runs do, each a table `[webhooks.endpoints.NAME]` with `url`, `events`, "
            "`secret` (`env:NAME` or `file:PATH`) and `tenant`, the name of a key whose runs are meant "
            "([how](../how-to/webhooks.md)).",
        ),
    ] = msgspec.field(default_factory=dict[str, EndpointSettings])
    private: Annotated[
        bool,
        Setting(
            TRUTH,
            "Whether webhooks may be sent by http:// and to addresses that are not public: receivers of one's own "
            "network, and tests.",
        ),
    ] = False
