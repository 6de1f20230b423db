"""The built-in search providers keep the rules of every search provider, against servers with their wire."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import ClassVar
from urllib.parse import parse_qs, urlsplit

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from pyagent.core.settings import Settings
from pyagent.core.settings.web import Web
from pyagent.core.web_search import SearchProvider
from pyagent.infrastructure.web.providers import pyagent_register_search_providers
from pyagent.testing import SearchProviderConformance, serve

PAGES = {"tides": ("https://tides.example/a", "https://tides.example/b"), "bread": ("https://bread.example/",)}


def found(request: Request, name: str) -> list[str]:
    """URLs of what a query asks for."""
    [query] = parse_qs(urlsplit(str(request.url)).query, keep_blank_values=True)[name]
    return [url for word in query.split() for url in PAGES.get(word, ())]


async def searxng(request: Request) -> Response:
    """As SearXNG answers."""
    return JSONResponse({"results": [{"url": url, "title": "A page", "content": "..."} for url in found(request, "q")]})


async def mediawiki(request: Request) -> Response:
    """As a wiki answers."""
    pages = [{"fullurl": url, "title": "A page", "index": at} for at, url in enumerate(found(request, "gsrsearch"))]
    return JSONResponse({"query": {"pages": pages}})


async def brave(request: Request) -> Response:
    """As Brave answers."""
    assert request.headers["x-subscription-token"] == "key-1"
    return JSONResponse({"web": {"results": [{"url": url, "title": "A page"} for url in found(request, "q")]}})


async def broken(request: Request) -> Response:
    """As a proxy answers."""
    del request
    return Response("<html>bad gateway", status_code=502)


ROUTES: dict[str, Callable[..., object]] = {
    "/search": searxng,
    "/w/api.php": mediawiki,
    "/brave": brave,
    "/broken": broken,
}


@pytest.fixture(scope="module")
def server() -> Generator[str]:
    """All of them."""
    with serve(Starlette(routes=[Route(path, answer) for path, answer in ROUTES.items()])) as url:
        yield url


class OfServer(SearchProviderConformance):
    """A provider that is built in, asked for what the server has."""

    __test__ = False
    queries = ("tides", "bread")
    name: ClassVar[str]
    path: ClassVar[str]

    @pytest.fixture(autouse=True)
    def at(self, server: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """Know the server."""
        self.server = server
        monkeypatch.setenv("SEARCH_KEY", "key-1")

    def make(self) -> SearchProvider:
        """Return it, over the server."""
        return self._at(self.path)

    def make_broken(self) -> SearchProvider:
        """Return it, over what is no such server."""
        return self._at("/broken")

    def _at(self, path: str) -> SearchProvider:
        web = Web(provider=self.name, url=f"{self.server}{path}", key="env:SEARCH_KEY")
        return pyagent_register_search_providers()[self.name](Settings(web=web))


class TestSearxng(OfServer):
    __test__ = True
    name, path = "searxng", ""


class TestMediaWiki(OfServer):
    __test__ = True
    name, path = "mediawiki", "/w/api.php"


class TestBrave(OfServer):
    __test__ = True
    name, path = "brave", "/brave"
