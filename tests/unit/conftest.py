"""Fixtures that several unit tests share."""

from __future__ import annotations

import asyncio
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.installed import write_distribution
from support.plugins import Install

from pyagent.infrastructure.engine.grammar import GrammarCompiler
from pyagent.infrastructure.engine.logits.vocabulary import ModelVocabulary
from pyagent.infrastructure.engine.tokens import ModelTokenizer
from pyagent.logic.agents.math.sandbox import Sandbox


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Writes a distribution with entry points and a module into a folder on `sys.path`."""
    site = tmp_path / "site"
    site.mkdir()
    monkeypatch.syspath_prepend(str(site))
    before = set(sys.modules)

    def write(
        name: str,
        source: str = "",
        *,
        entries: str | None = None,
        requires: str = "",
        version: str = "1.0",
        module: str = "",
    ) -> None:
        module = module or name.replace("-", "_")
        lines = entries if entries is not None else f"{name}.agents = {module}"
        write_distribution(site, name, lines, version=version, requires=requires)
        if source:
            (site / f"{module}.py").write_text(textwrap.dedent(source))

    yield write  # type: ignore[misc]
    for module in set(sys.modules) - before:
        del sys.modules[module]


@pytest.fixture(scope="module")
def compiler(tokenizer: ModelTokenizer) -> GrammarCompiler:
    """Compiles grammars for the tiny model's vocabulary."""
    return GrammarCompiler(ModelVocabulary(tokenizer))


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    """Return the math agent's sandbox with one worker, which a module's tests share."""
    made = Sandbox(max_workers=1)
    yield made
    asyncio.run(made.close())
