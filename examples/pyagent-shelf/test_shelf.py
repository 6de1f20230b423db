from pathlib import Path

import pytest
from pyagent_shelf import Shelf

from pyagent.testing import SearchProviderConformance

PAGES = """https://tides.example/tables Tables of tides
https://tides.example/power Power from tides and waves
https://bread.example/ Sourdough bread
"""


class TestShelf(SearchProviderConformance):
    queries = ("tides", "bread")

    @pytest.fixture(autouse=True)
    def folder(self, tmp_path: Path) -> None:
        self.file = tmp_path / "shelf.txt"
        self.file.write_text(PAGES, encoding="utf-8")

    def make(self) -> Shelf:
        return Shelf(self.file)

    def make_broken(self) -> Shelf:
        return Shelf(self.file.with_name("missing.txt"))
