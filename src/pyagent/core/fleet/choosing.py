"""Which agents or tools a fleet has: those given by hand, and the installed ones that are named beside them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, TypeVar

from pyagent.core.fleet.agent import unknown_name

if TYPE_CHECKING:
    from pyagent.core.fleet.agent import Agent
    from pyagent.core.fleet.tools import FleetTool

T = TypeVar("T", "Agent", "FleetTool")


def chosen(given: Iterable[T | str], installed: Mapping[str, T], what: str) -> list[T]:
    """Return what is given; a name stands for the installed one, `*` for all whose names are not given.

    Raises `RequestError` for a name that is not installed, with the nearest one that is.
    """
    given = list(given)
    by_hand = [each for each in given if not isinstance(each, str)]
    names = [name for name in dict.fromkeys(each for each in given if isinstance(each, str)) if name != "*"]
    for name in names:
        if name not in installed:
            raise unknown_name(what, name, list(installed))
    if "*" in given:
        taken = {each.name for each in by_hand}
        names = [name for name in installed if name not in taken]
    return [*by_hand, *(installed[name] for name in names)]
