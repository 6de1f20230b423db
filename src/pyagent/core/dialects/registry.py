"""Which dialect a model speaks: found by its chat template, or named."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from pyagent.core.dialects.dialect import Dialect
from pyagent.core.dialects.formats import DIALECTS, HERMES

logger = logging.getLogger("pyagent.plugins")


def dialects(brought: Iterable[Dialect] = ()) -> dict[str, Dialect]:
    """Return the dialects by name: those `brought` by plugins before the built-in ones, whose names they may take."""
    found: dict[str, Dialect] = {}
    for dialect in (*brought, *DIALECTS):
        found.setdefault(dialect.name, dialect)
    return found


def dialect_for(template: str, brought: Iterable[Dialect] = ()) -> Dialect:
    """Return the dialect of the model with this chat template; Hermes' where nothing tells."""
    return next((dialect for dialect in dialects(brought).values() if _matches(dialect, template)), HERMES)


def _matches(dialect: Dialect, template: str) -> bool:
    """Whether a dialect matches; one that fails to say, a plugin's, does not."""
    try:
        return dialect.matches(template)
    except Exception as error:  # noqa: BLE001 - a plugin's failure must not end a model's load
        logger.warning("the dialect %s is passed over, its `matches` failed: %r", dialect.name, error)
        return False
