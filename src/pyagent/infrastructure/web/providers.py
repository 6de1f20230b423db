"""The search providers that are built in: SearXNG's JSON API, a wiki's MediaWiki API, and Brave's.

Each sends the query to the server that the settings name, and to no other: no redirect is followed. A key goes into a
header, and into no text. An answer is read within bounds, and what is no result in it is left out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from html import unescape
from typing import TypeVar
from urllib.parse import urlencode, urlsplit

import msgspec

from pyagent.core.config import read_secret
from pyagent.core.errors import BackendError, ConfigError
from pyagent.core.hooks import hookimpl
from pyagent.core.one_line import printable
from pyagent.core.settings import Settings
from pyagent.core.web_search import MAX_HITS, SearchHit, SearchProviderFactory
from pyagent.infrastructure.web.fetching import Fetcher, FetchLimits

_LIMITS = FetchLimits(max_bytes=4_000_000, seconds=20.0)
_MAX_TITLE_CHARACTERS, _MAX_SNIPPET_CHARACTERS = 300, 1_000
_MAX_URL_CHARACTERS = 2_000
_BRAVE = "https://api.search.brave.com/res/v1/web/search"
_TAG = re.compile(r"<[^<>]{0,500}>")
T = TypeVar("T")


class _SearxngHit(msgspec.Struct, frozen=True):
    url: str
    title: str | None = ""
    content: str | None = ""


class _SearxngAnswer(msgspec.Struct, frozen=True):
    results: list[msgspec.Raw] = []


class Searxng:
    """A SearXNG server whose settings allow JSON (`search.formats`)."""

    def __init__(self, url: str) -> None:
        self._url = url.rstrip("/").removesuffix("/search")

    async def search(self, query: str, limit: int) -> Sequence[SearchHit]:
        """Return what the server's engines find."""
        url = f"{self._url}/search?{urlencode({'q': query, 'format': 'json'})}"
        hint = "allow `json` in search.formats of its settings.yml"
        answer = await _asked("searxng", url, _SearxngAnswer, hint=hint)
        hits = _each(answer.results, _SearxngHit)
        return _bounded([SearchHit(hit.url, hit.title or "", hit.content or "") for hit in hits], limit)


class _WikiHit(msgspec.Struct, frozen=True):
    fullurl: str
    title: str
    index: int


class _WikiQuery(msgspec.Struct, frozen=True):
    pages: list[msgspec.Raw] = []


class _WikiAnswer(msgspec.Struct, frozen=True):
    query: _WikiQuery = _WikiQuery()


class MediaWiki:
    """A wiki with MediaWiki's API: searches its pages' texts, without a key."""

    def __init__(self, url: str) -> None:
        self._url = url

    async def search(self, query: str, limit: int) -> Sequence[SearchHit]:
        """Return the wiki's pages that fit."""
        search = {"generator": "search", "gsrsearch": query, "gsrlimit": limit, "prop": "info", "inprop": "url"}
        url = f"{self._url}?{urlencode({'action': 'query', 'format': 'json', 'formatversion': 2, **search})}"
        answer = await _asked("mediawiki", url, _WikiAnswer, hint="web.url is a wiki's api.php")
        hits = sorted(_each(answer.query.pages, _WikiHit), key=lambda hit: hit.index)
        return _bounded([SearchHit(hit.fullurl, hit.title) for hit in hits], limit)


class _BraveHit(msgspec.Struct, frozen=True):
    url: str
    title: str | None = ""
    description: str | None = ""


class _BraveWeb(msgspec.Struct, frozen=True):
    results: list[msgspec.Raw] = []


class _BraveAnswer(msgspec.Struct, frozen=True):
    web: _BraveWeb | None = None


class Brave:
    """Brave's search, by a key."""

    def __init__(self, url: str, key: Callable[[], str]) -> None:
        self._url, self._key = url or _BRAVE, key

    async def search(self, query: str, limit: int) -> Sequence[SearchHit]:
        """Return what Brave's index has."""
        url = f"{self._url}?{urlencode({'q': query, 'count': min(limit, 20)})}"
        headers = {"X-Subscription-Token": self._key()}
        answer = await _asked("brave", url, _BraveAnswer, headers, hint="look at web.key")
        hits = _each(answer.web.results if answer.web else [], _BraveHit)
        return _bounded([SearchHit(hit.url, hit.title or "", hit.description or "") for hit in hits], limit)


async def _asked(name: str, url: str, kind: type[T], headers: Mapping[str, str] | None = None, *, hint: str = "") -> T:
    """Return a server's answer. Raises `BackendError`, which tells neither query nor key."""
    fetcher = Fetcher(f"web search by {name}", _LIMITS, allows_private=True, accept="application/json")
    page = await fetcher.fetch(url, tuple((headers or {}).items()))
    host = urlsplit(url).netloc
    if page.status != 200:
        raise BackendError(f"{host} answers a search with status {page.status}; {hint}", backend=fetcher.what)
    try:
        return msgspec.json.decode(page.body, type=kind)
    except (ValueError, RecursionError) as error:
        text = f"{host} answers a search with what is no answer of {name}; {hint}"
        raise BackendError(text, backend=fetcher.what) from error


def _each(raws: Sequence[msgspec.Raw], kind: type[T]) -> list[T]:
    """Return the entries that are results."""
    found: list[T] = []
    for raw in raws[:MAX_HITS]:
        try:
            found.append(msgspec.json.decode(raw, type=kind))
        except (ValueError, RecursionError):  # a kind of result that has no page, such as an infobox
            continue
    return found


def _bounded(hits: Sequence[SearchHit], limit: int) -> list[SearchHit]:
    kept = [hit for hit in hits if hit.url.startswith(("http://", "https://")) and len(hit.url) <= _MAX_URL_CHARACTERS]
    return [
        SearchHit(hit.url, _words(hit.title)[:_MAX_TITLE_CHARACTERS], _words(hit.snippet)[:_MAX_SNIPPET_CHARACTERS])
        for hit in kept[:limit]
    ]


def _words(text: str) -> str:
    return printable(" ".join(unescape(_TAG.sub("", text[:10_000])).split()))


def _made(name: str, make: Callable[[str], Searxng | MediaWiki], example: str) -> SearchProviderFactory:
    def factory(settings: Settings) -> Searxng | MediaWiki:
        if not settings.web.url:
            text = f"web.provider = {name} needs web.url, such as {example}"
            raise ConfigError(text, key="web.url")
        return make(settings.web.url)

    return factory


def _brave(settings: Settings) -> Brave:
    reference = settings.web.key
    if not reference:
        raise ConfigError("web.provider = brave needs web.key, such as env:BRAVE_API_KEY", key="web.key")

    def key() -> str:
        value = read_secret(reference)
        if value is None or not (value.isascii() and value.isprintable()):
            text = f"web.key is to be one printable line of {reference}; set it, or correct it"
            raise ConfigError(text, key="web.key")
        return value

    return Brave(settings.web.url, key)


@hookimpl
def pyagent_register_search_providers() -> Mapping[str, SearchProviderFactory]:
    """The search providers that need no plugin."""
    return {
        "searxng": _made("searxng", Searxng, "http://127.0.0.1:8888"),
        "mediawiki": _made("mediawiki", MediaWiki, "https://en.wikipedia.org/w/api.php"),
        "brave": _brave,
    }
