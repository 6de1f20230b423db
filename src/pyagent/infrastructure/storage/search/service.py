"""Search over runs and files: brings an index up to date, embeds what is new, and fuses the two rankings.

Without an embedder, or while it does not answer, words alone decide, and the result says so.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from pyagent.core.errors import PyAgentError, RequestError
from pyagent.core.messages import EmbedRequest
from pyagent.core.search import SearchHit, SearchResult, fused, words_of
from pyagent.infrastructure.storage.search.files import follow_folder, index_of_folder
from pyagent.infrastructure.storage.search.index import SqliteIndex, is_damage
from pyagent.infrastructure.storage.search.runs import KeptRuns, discard_runs, follow_runs

if TYPE_CHECKING:
    from pyagent.core.backends import Backend

T = TypeVar("T")
MAX_HITS = 100
_CANDIDATES = 50
_HITS_A_SOURCE = 3
_BATCH = 32
_MAX_EMBEDDED = 4_096
"""Passages embedded for one search; the next goes on."""

Follow = Callable[[], tuple[Mapping[str, SqliteIndex], str]]
"""Brings indexes up to date; returns them by tenant, and what is left out, in words."""
logger = logging.getLogger("pyagent.search")


class Search:
    """Finds passages of past runs and of files. `embedder` is the caller's to close; None searches by words alone."""

    def __init__(self, folder: Path, journal: KeptRuns, embedder: Backend | None = None) -> None:
        self._folder = folder
        self._journal = journal
        self._embedder = embedder
        self._turn = asyncio.Lock()

    async def runs(self, query: str, *, tenant: str | None = "", limit: int = 10, without: str = "") -> SearchResult:
        """Return the passages of a tenant's runs that fit best; None searches those of all. `without` leaves a run out.

        Raises `RequestError` for a query without words.
        """
        tenants = None if tenant is None else [tenant]
        return await self._search(
            query,
            lambda: (follow_runs(self._folder, self._journal, tenants), ""),
            lambda: discard_runs(self._folder),
            limit,
            without,
        )

    async def files(self, query: str, root: Path, *, limit: int = 10) -> SearchResult:
        """Return the passages of the files below a folder that fit best.

        Raises `RequestError` for what is no folder, and for a query without words.
        """
        root = await _aside(lambda: _folder(root))
        index = await _aside(lambda: index_of_folder(self._folder, root))
        return await self._search(query, lambda: ({"": index}, follow_folder(index, root)), index.discard, limit)

    async def _search(
        self, query: str, follow: Follow, discard: Callable[[], None], limit: int, without: str = ""
    ) -> SearchResult:
        """Search an index that follows what it is about; one that is damaged is thrown away and made again."""
        _check(query, limit)
        async with self._turn:
            try:
                return await self._followed(query, follow, limit, without)
            except sqlite3.Error as error:
                if not is_damage(error):
                    text = f"the index in {self._folder} cannot be used: {error}"
                    raise RequestError(text, param="query", code="index_unusable") from error
                logger.warning("a search index is damaged and made again: %s", error)
            await _aside(discard)
            return await self._followed(query, follow, limit, without)

    async def _followed(self, query: str, follow: Follow, limit: int, without: str) -> SearchResult:
        indexes, note = await _aside(follow)
        try:
            return await self._found(query, indexes, note, limit, without)
        finally:
            for index in indexes.values():
                index.close()

    async def _found(
        self, query: str, indexes: Mapping[str, SqliteIndex], note: str, limit: int, without: str
    ) -> SearchResult:
        hits, num_passages, num_vectors = list[SearchHit](), 0, 0
        for tenant, index in indexes.items():
            vector, fault = await self._embed_all(index, tenant, query)
            note = note or fault
            hits += await _aside(lambda index=index, tenant=tenant, vector=vector: _hits(index, tenant, query, vector))
            counts = await _aside(index.counts)
            num_passages, num_vectors = num_passages + counts[0], num_vectors + counts[1]
        hits.sort(key=lambda hit: (-hit.score, hit.source, hit.place))
        shown = _spread([hit for hit in hits if hit.source != without], limit)
        return SearchResult(hits=shown, num_passages=num_passages, num_vectors=num_vectors, note=note)

    async def _embed_all(self, index: SqliteIndex, tenant: str, query: str) -> tuple[list[float] | None, str]:
        """Embed what has no vector yet, and the query; return its vector, and what went wrong in words."""
        if self._embedder is None:
            return None, ""
        name = self._embedder.name
        try:
            await _aside(lambda: index.use_embedder(name))
            for _ in range(0, _MAX_EMBEDDED, _BATCH):
                missing = await _aside(lambda: index.without_vector(_BATCH))
                if not missing:
                    break
                vectors = await self._embed([text for _, text in missing], tenant)
                numbered = [(number, vector) for (number, _), vector in zip(missing, vectors, strict=True)]
                if not await _aside(lambda numbered=numbered: index.put_vectors(name, numbered)):
                    return None, f"{name} gives vectors that cannot be compared; searched by words alone"
            [vector] = await self._embed([query], tenant)
        except PyAgentError as error:
            logger.warning("search goes by words alone: %s", error)
            return None, f"searched by words alone, as the embedder failed: {error}"
        return vector, ""

    async def _embed(self, texts: list[str], tenant: str) -> list[list[float]]:
        assert self._embedder is not None
        result = await self._embedder.embed(EmbedRequest(model="", input=texts, tenant=tenant, truncate=True))
        if len(result.vectors) != len(texts):
            raise RequestError(f"asked for {len(texts)} vectors, got {len(result.vectors)}", param="search.embedder")
        return result.vectors


def _folder(root: Path) -> Path:
    root = root.expanduser().resolve()
    if not root.is_dir():
        raise RequestError(f"there is no folder {str(root)!r} to search", param="files")
    return root


def _check(query: str, limit: int) -> None:
    if not words_of(query):
        raise RequestError(f"search needs at least one word or number, got {query!r:.80}", param="query")
    if not 1 <= limit <= MAX_HITS:
        raise RequestError(f"expected 1 to {MAX_HITS} hits, got {limit}", param="limit")


def _hits(index: SqliteIndex, tenant: str, query: str, vector: Sequence[float] | None) -> list[SearchHit]:
    words = index.by_words(query, _CANDIDATES)
    near = [] if vector is None else index.by_vector(vector, _CANDIDATES)
    ranking = fused(words, near)
    found = index.found([number for number, _ in ranking])
    keyword_rank = {number: rank for rank, number in enumerate(words, 1)}
    vector_rank = {number: rank for rank, number in enumerate(near, 1)}
    return [
        SearchHit(
            source=found[number][0],
            place=found[number][1],
            text=found[number][2],
            score=score,
            keyword_rank=keyword_rank.get(number),
            vector_rank=vector_rank.get(number),
            tenant=tenant,
        )
        for number, score in ranking
        if number in found
    ]


def _spread(hits: Sequence[SearchHit], limit: int) -> list[SearchHit]:
    """Return the best, a few of each source at most."""
    num_of, shown = Counter[tuple[str, str]](), list[SearchHit]()
    for hit in hits:
        if num_of[hit.tenant, hit.source] < _HITS_A_SOURCE:
            num_of[hit.tenant, hit.source] += 1
            shown.append(hit)
    return shown[:limit]


async def _aside(work: Callable[[], T]) -> T:
    return await asyncio.to_thread(work)
