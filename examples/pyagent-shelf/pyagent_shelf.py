"""A PyAgent plugin with a search provider: it finds pages in a file of one's own, a URL and a title on each line."""

import asyncio
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from pyagent.plugin import BackendError, SearchHit, SearchProvider, SearchProviderFactory, Settings, hookimpl


class Shelf:
    """Ranks the file's pages by how many words of the query their titles have."""

    def __init__(self, file: Path) -> None:
        self.file = file

    async def search(self, query: str, limit: int) -> Sequence[SearchHit]:
        words = set(re.findall(r"\w+", query.lower()))
        ranked = [(len(words & set(re.findall(r"\w+", hit.title.lower()))), hit) for hit in await self.pages()]
        found = [hit for count, hit in sorted(ranked, key=lambda one: -one[0]) if count]
        return found[:limit]

    async def pages(self) -> list[SearchHit]:
        try:
            text = await asyncio.to_thread(self.file.read_text, "utf-8")
        except (OSError, ValueError) as error:
            raise BackendError(f"the pages in {self.file.name} cannot be read", backend="shelf") from error
        lines = [line.partition(" ") for line in text.splitlines() if line.startswith(("http://", "https://"))]
        return [SearchHit(url, title.strip()) for url, _, title in lines]


def make_shelf(settings: Settings) -> SearchProvider:
    return Shelf(Path(os.environ.get("SHELF_FILE", "shelf.txt")))


@hookimpl
def pyagent_register_search_providers() -> Mapping[str, SearchProviderFactory]:
    return {"shelf": make_shelf}
