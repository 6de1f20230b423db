"""Ray's modules, imported when first used and untyped: the plugin is looked at where Ray is not installed, too."""

from __future__ import annotations

from importlib import import_module
from typing import Any


def module(name: str = "ray") -> Any:
    """Return a module of Ray's."""
    return import_module(name)
