"""Which dialect a model speaks: found by its chat template, or named."""

from __future__ import annotations

from collections.abc import Iterable

from pyagent.core.dialects.dialect import Dialect
from pyagent.core.dialects.formats import DIALECTS, HERMES


def dialects(brought: Iterable[Dialect] = ()) -> dict[str, Dialect]:
    """Return the dialects by name: those `brought` by plugins before the built-in ones, whose names they may take."""
    found: dict[str, Dialect] = {}
    for dialect in (*brought, *DIALECTS):
        found.setdefault(dialect.name, dialect)
    return found


def dialect_for(template: str, brought: Iterable[Dialect] = ()) -> Dialect:
    """Return the dialect of the model with this chat template; Hermes' where nothing tells."""
    return next((dialect for dialect in dialects(brought).values() if dialect.matches(template)), HERMES)
