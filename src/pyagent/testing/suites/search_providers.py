"""What every search provider must do.

class TestMine(SearchProviderConformance):
    queries = ("tides",)

    def make(self):
        return make_provider(Settings())
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Sequence
from typing import ClassVar
from urllib.parse import urlsplit

import pytest

from pyagent.core.errors import BackendError
from pyagent.core.settings import Settings
from pyagent.core.web_search import SearchHit, SearchProvider
from pyagent.testing.suites.checks import check_host_takes, run

_END_SECONDS = 5.0
_PRIVATE_WORDS = "zq private words of a query"


class SearchProviderConformance:
    """Derive from it, and define `make`; `queries` are some that the provider finds something for."""

    queries: ClassVar[Sequence[str]] = ()

    def make(self) -> SearchProvider:
        """Return a new provider."""
        raise NotImplementedError

    def make_broken(self) -> SearchProvider | None:
        """Return a provider whose server gives no answer; None where there is no server."""
        return None

    def test_host_takes_the_provider(self) -> None:
        """It has an async `search(query, limit)`, and is made by a function of the settings."""
        check_host_takes("search_providers", {"mine": self._made})
        assert inspect.iscoroutinefunction(getattr(self.make(), "search", None)), "`search` is not `async def`"

    def test_queries_find_pages_of_the_web(self) -> None:
        """Results are `SearchHit`s that lead to pages by http or https, none of them twice."""
        assert self.queries, "name some `queries`"
        for query in self.queries:
            hits = self._search(query, 5)
            assert hits, f"{query!r} finds nothing"
            for hit in hits:
                assert isinstance(hit, SearchHit), f"{query!r} gives {hit!r:.80}, expected a SearchHit"
                parts = urlsplit(hit.url)
                is_web = parts.scheme in {"http", "https"} and bool(parts.hostname)
                assert is_web, f"{hit.url!r:.80} leads to no web page"
            urls = [hit.url for hit in hits]
            assert len(set(urls)) == len(urls), f"{query!r} gives a page twice"

    def test_limit_is_kept(self) -> None:
        """No more results come than are asked for."""
        for query in self.queries:
            found = len(self._search(query, 1))
            assert found <= 1, f"{query!r} gives {found} results where 1 is asked for"

    def test_odd_queries_are_answered(self) -> None:
        """Any text is a query: operators, quotes, other scripts, long ones; finding nothing is no error."""
        for query in ('"', "a AND OR (", "%00&format=xml", "東京 水位", "x" * 5_000, "\u2028\t"):
            hits = self._search(query, 3)
            assert len(hits) <= 3, f"{query[:20]!r} gives {len(hits)} results where 3 are asked for"

    def test_searches_at_once_do_not_mix(self) -> None:
        """Searches at the same time give what each gives alone."""
        alone = [self._search(query, 5) for query in self.queries]

        async def work() -> list[Sequence[SearchHit]]:
            provider = self.make()
            return list(await asyncio.gather(*(provider.search(query, 5) for query in self.queries)))

        for query, one, other in zip(self.queries, alone, run(work()), strict=True):
            assert list(one) == list(other), f"{query!r} finds something else beside other searches"

    def test_cancelling_ends_a_search(self) -> None:
        """A search that is cancelled ends at once."""

        async def work() -> None:
            task = asyncio.ensure_future(self.make().search(self.queries[0], 3))
            await asyncio.sleep(0)
            started = time.monotonic()
            task.cancel()
            await asyncio.wait([task])
            assert time.monotonic() - started < _END_SECONDS, "the search went on after it was cancelled"

        run(work())

    def test_no_answer_is_a_backend_error(self) -> None:
        """Where its server gives no answer, `BackendError` says so, without the query's words."""
        provider = self.make_broken()
        if provider is None:
            pytest.skip("no server is asked")
        with pytest.raises(BackendError) as caught:
            run(provider.search(_PRIVATE_WORDS, 3))
        assert _PRIVATE_WORDS not in str(caught.value), "the error tells the query"

    def _made(self, settings: Settings) -> SearchProvider:
        del settings
        return self.make()

    def _search(self, query: str, limit: int) -> Sequence[SearchHit]:
        return run(self.make().search(query, limit))
