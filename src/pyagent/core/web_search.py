"""What searches the web and what a page of it says, as values: between search providers, tools and agents.

The setting `web.provider` names a provider; none is a default, as a search sends a user's words to another machine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

import msgspec

if TYPE_CHECKING:
    from pyagent.core.settings import Settings

MAX_HITS = 50
"""Results of one search that are looked at."""


class SearchHit(msgspec.Struct, frozen=True):
    """One result of a search: where it leads, and what the provider says of it."""

    url: str
    title: str = ""
    snippet: str = ""


class WebPage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A page as people read it: `url` is where it was found after redirects, `accessed` the day, as `2026-11-28`.

    `date` is when it was published as far as it says so. `is_cut` says that it goes on after `text`.
    """

    url: str
    title: str = ""
    text: str
    author: str = ""
    date: str = ""
    accessed: str
    is_cut: bool = False


class PageText(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a page says, before it is known where and when it was found."""

    text: str
    title: str = ""
    author: str = ""
    date: str = ""
    is_cut: bool = False


class SearchProvider(Protocol):
    """Searches the web."""

    async def search(self, query: str, limit: int) -> Sequence[SearchHit]:
        """Return at most `limit` results, the best first. Raises `BackendError` where there is no answer."""
        ...


SearchProviderFactory = Callable[["Settings"], SearchProvider]
"""Makes a search provider by `settings.web`. Cheap: it connects when the first search is made."""
