"""The settings of searching the web and reading its pages."""

from typing import Annotated

from pyagent.core.addresses import has_password
from pyagent.core.setting_kinds import TEXT, TRUTH, URL, Kind
from pyagent.core.settings.section import Section, Setting


def _read_url(value: object) -> object:
    if value == "":
        return ""
    if has_password(str(URL.read(value))):
        raise ValueError("expected a URL without a password; give `web.key`")
    return value


def _read_key(value: object) -> object:
    if value == "" or (isinstance(value, str) and len(value) > 4 and value.startswith(("env:", "file:"))):
        return value
    raise ValueError("expected env:NAME or file:PATH, never the key itself")


class Web(Section, frozen=True):
    """Searching the web, and reading its pages."""

    provider: Annotated[
        str,
        Setting(
            TEXT,
            "What searches the web for agents: `searxng`, `mediawiki`, `brave`, or one that a plugin brings. Without "
            "one no agent searches.",
        ),
    ] = ""
    url: Annotated[
        str,
        Setting(
            Kind("URL", _read_url),
            "Where the search provider is: the address of a SearXNG server, a wiki's `api.php`; `brave` has its own.",
        ),
    ] = ""
    key: Annotated[
        str, Setting(Kind("reference", _read_key), "The search provider's key, as `env:NAME` or `file:PATH`.")
    ] = ""
    private: Annotated[
        bool,
        Setting(TRUTH, "Whether pages that searches find may be at addresses that are not public."),
    ] = False
