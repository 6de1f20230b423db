"""The imported modules of a plugin: taken out of `sys.modules` so that they are imported anew, and put back.

What still runs of the old modules keeps them; only what is imported from now on is new. Knows no hooks.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable, Mapping
from types import ModuleType

from pyagent.core.hooks import PROJECT_NAME
from pyagent.core.plugin_checks import module_of


def take_modules(targets: Iterable[str]) -> dict[str, ModuleType]:
    """Forget the modules of these targets, with all of their packages, and return them."""
    packages = {_package_of(module_of(target)) for target in targets} - {PROJECT_NAME}
    within = tuple(f"{package}." for package in packages)
    taken = {name: module for name, module in sys.modules.items() if name in packages or name.startswith(within)}
    for name in taken:
        del sys.modules[name]
    importlib.invalidate_caches()
    return taken


def put_back(taken: Mapping[str, ModuleType], targets: Iterable[str]) -> None:
    """Have the modules that were taken again, in place of those that were imported for these targets meanwhile."""
    take_modules(targets)
    sys.modules.update(taken)


def _package_of(module: str) -> str:
    """Return the outermost package of a module that is its own: a namespace holds those of others too."""
    names = module.split(".")
    for num_names in range(1, len(names)):
        package = sys.modules.get(".".join(names[:num_names]))
        if package is not None and getattr(package, "__file__", None) is not None:
            return ".".join(names[:num_names])
    return names[0] if names[0] not in sys.modules else module
