"""The fallback chain. Names are looked up when first used: settings need a link as written, not the chain."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyagent.core.chain.chain import Chain
    from pyagent.core.chain.explaining import LinkView, health_of
    from pyagent.core.chain.settings import LinkSettings
    from pyagent.core.chain.stats import LinkState

__all__ = ["Chain", "LinkSettings", "LinkState", "LinkView", "health_of"]

_HOMES = {
    "Chain": "chain",
    "LinkSettings": "settings",
    "LinkState": "stats",
    "LinkView": "explaining",
    "health_of": "explaining",
}


def __getattr__(name: str) -> object:
    from importlib import import_module

    if name not in _HOMES:
        raise AttributeError(f"pyagent.core.chain has no {name!r}; it has {', '.join(__all__)}")
    return getattr(import_module(f"pyagent.core.chain.{_HOMES[name]}"), name)
