"""What is known of one plugin: by its metadata, by what was imported of it, and by how that went."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from importlib.metadata import Distribution
from typing import Literal, TypeVar

import msgspec

from pyagent.core.entry_points import missing_package_sentence
from pyagent.core.hooks import PROJECT_NAME
from pyagent.core.plugin_checks import module_of
from pyagent.core.plugin_watch import in_time, named_when_slow

T = TypeVar("T")

PluginState = Literal["idle", "loaded", "disabled", "quarantined"]


class PluginInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What `pyagent plugins list` shows of one plugin. `provides` maps nouns to names, known once it is loaded."""

    name: str
    version: str
    distribution: str
    nouns: tuple[str, ...]
    state: PluginState
    reason: str = ""
    load_seconds: float = 0.0
    hook_seconds: dict[str, float] = {}
    is_builtin: bool = False
    modules: tuple[str, ...] = ()
    hooks: tuple[str, ...] = ()
    provides: dict[str, tuple[str, ...]] = {}


class Clash(msgspec.Struct, frozen=True):
    """Two plugins bring the same name; `winner` came first in the order."""

    noun: str
    name: str
    winner: str
    loser: str


@dataclass(slots=True)
class FoundPlugin:
    """A plugin as the host knows it: where its parts are, what was imported of it, and whether it is used."""

    name: str
    index: int
    is_by_hand: bool = False
    distribution: Distribution | None = None
    noun_to_target: dict[str, str] = field(default_factory=dict[str, str])
    target_to_object: dict[str, object] = field(default_factory=dict[str, object])
    state: PluginState = "idle"
    reason: str = ""
    load_seconds: float = 0.0
    hook_seconds: dict[str, float] = field(default_factory=dict[str, float])
    asked: set[str] = field(default_factory=set[str])

    @property
    def is_builtin(self) -> bool:
        """Whether it comes with PyAgent."""
        return all(module_of(target).partition(".")[0] == PROJECT_NAME for target in self.noun_to_target.values())

    def target_for(self, noun: str) -> str | None:
        """Return the module that fills the noun's hook; an entry without a noun may fill any."""
        return self.noun_to_target.get(noun) or self.noun_to_target.get("")

    @property
    def is_open(self) -> bool:
        """Whether it is used as long as it does not fail."""
        return self.state in {"idle", "loaded"}

    def failure(self, target: str, error: BaseException, what: str) -> str:
        """Say what went wrong in it, or what to install for it."""
        if isinstance(error, ImportError):
            sentence = missing_package_sentence(error, module_of(target), self.distribution)
            if sentence:
                return sentence
        return f"{what}: {type(error).__name__}: {error}"

    def watched(self, doing: str) -> AbstractContextManager[None]:
        """Have it named when it takes long, unless it is built in."""
        return nullcontext() if self.is_builtin else named_when_slow(self.name, doing)

    def in_time(self, doing: str, limit_seconds: float, work: Callable[[], T]) -> T:
        """Return what its code returns; `TimeoutError` when that takes too long. What is built in is trusted to end."""
        return work() if self.is_builtin else in_time(self.name, doing, limit_seconds, work)
