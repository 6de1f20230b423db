"""What installed packages say about their plugins, read from metadata alone: nothing is imported here.

An entry point of the group ``pyagent`` is called ``<plugin>.<noun>`` and names a module (or ``module:object``). One
broken distribution does not hide the others. Versions and requirements are read only when somebody asks: parsing them
for every plugin would cost more than all the rest of a start.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator
from importlib.metadata import Distribution, EntryPoint, distributions

GROUP = "pyagent"
_GROUP_HEADER = re.compile(rf"^[ \t]*\[[ \t]*{GROUP}[ \t]*\][ \t\r]*$", re.MULTILINE)
_REQUIREMENT = re.compile(r"^\s*([A-Za-z0-9._-]+)")

logger = logging.getLogger("pyagent.plugins")


def installed_entry_points() -> Iterator[tuple[EntryPoint, Distribution]]:
    """Every entry point of the group, by `sys.path`, then by name; broken metadata is skipped."""
    found = [(entry, distribution) for distribution in distributions() for entry in _entry_points_of(distribution)]
    folders = {_place(distribution)[0]: None for _, distribution in found}
    position = {folder: index for index, folder in enumerate(folders)}
    found.sort(key=lambda pair: (position[_place(pair[1])[0]], _place(pair[1])[1]))
    seen: set[tuple[str, str]] = set()
    for entry, distribution in found:
        if (entry.name, entry.value) not in seen:
            seen.add((entry.name, entry.value))
            yield entry, distribution


def _place(distribution: Distribution) -> tuple[str, str]:
    """Return the folder and name of a distribution's metadata; a file system lists them in any order."""
    folder, _, name = str(getattr(distribution, "_path", "")).rpartition(os.sep)
    return folder, name


def _entry_points_of(distribution: Distribution) -> list[EntryPoint]:
    try:
        text = distribution.read_text("entry_points.txt")
        if not text or not _GROUP_HEADER.search(text):
            return []
        return [entry for entry in distribution.entry_points if entry.group == GROUP]
    except Exception as error:  # noqa: BLE001 - the metadata is somebody else's; whatever is wrong with it, go on
        logger.warning("the entry points of %s cannot be read: %s", distribution_name(distribution), error)
        return []


def distribution_name(distribution: Distribution | None) -> str:
    """Return the distribution's name, empty when its metadata does not say."""
    try:
        return (distribution.metadata["Name"] or "") if distribution else ""
    except Exception:  # noqa: BLE001 - as above
        return ""


def distribution_version(distribution: Distribution | None) -> str:
    """Return the distribution's version, empty when its metadata does not say."""
    try:
        return (distribution.metadata["Version"] or "") if distribution else ""
    except Exception:  # noqa: BLE001 - as above
        return ""


def missing_package_sentence(error: ImportError, module: str, distribution: Distribution | None) -> str | None:
    """Say what to install when `error` means that a package is absent; None when it is another kind of failure.

    `module` is the plugin's own module: its absence is a broken installation, not a missing package.
    """
    if not isinstance(error, ModuleNotFoundError) or not error.name:
        return None
    owner = distribution_name(distribution)
    if module == error.name or module.startswith(f"{error.name}."):
        again = f"reinstall the package {owner}" if owner else "check the name"
        return f"names the module {module!r}, which is not there; {again}"
    package = error.name.partition(".")[0].replace("_", "-")
    return (
        f"needs the package {package!r}, which is not installed: pip install {_install_target(package, distribution)}"
    )


def _install_target(package: str, distribution: Distribution | None) -> str:
    """Return the package's name as the owner's requirements spell it: the owner itself may be on no index."""
    names = (match[1] for text in _requirements(distribution) if (match := _REQUIREMENT.match(text)))
    return next((name for name in names if _normal(name) == _normal(package)), package)


def _requirements(distribution: Distribution | None) -> list[str]:
    try:
        return list(distribution.requires or ()) if distribution else []
    except Exception:  # noqa: BLE001 - as above
        return []


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
