"""PyAgent: a fleet of AI agents on your own machines, with the inference engine inside.

Importing this package is cheap: names load on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyagent.fleet import Fleet as Fleet

__version__ = "0.1.0"
__all__ = ["Fleet", "__version__"]

_HOME = {"Fleet": "pyagent.fleet"}


def __getattr__(name: str) -> object:
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
