"""What the plugins of a host have brought so far, noun by noun, in the order in which names are given.

The first plugin in the order to bring a name keeps it, and the clash is kept for `pyagent plugins list`. What is asked
again is not merged again: the answers are remembered until something is added or withdrawn. Knows no hooks.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from pyagent.core.found_plugin import Clash, FoundPlugin

logger = logging.getLogger("pyagent.plugins")
Rank = tuple[float, int, bool, int, str]


@dataclass(frozen=True, slots=True)
class Contribution:
    """What one implementation of a hook returned, by name, and the place of its plugin in the order."""

    plugin: FoundPlugin
    rank: Rank
    items: Mapping[str, object]


@dataclass(slots=True)
class Contributions:
    """The contributions by noun. The host's lock is held around whatever changes them."""

    _by_noun: dict[str, list[Contribution]]
    _merged: dict[str, dict[str, object]] = field(default_factory=dict[str, dict[str, object]])
    _clashes: dict[Clash, None] = field(default_factory=dict[Clash, None])

    @classmethod
    def of(cls, nouns: Iterable[str]) -> Contributions:
        """Return none yet, of these nouns."""
        return cls({noun: [] for noun in nouns})

    def add(self, noun: str, contribution: Contribution) -> None:
        """Keep what a plugin has brought."""
        self._by_noun[noun].append(contribution)
        self._merged.clear()

    def withdraw(self, plugin: FoundPlugin) -> dict[str, list[Contribution]]:
        """Take back what a plugin has brought; `restore` takes what is returned."""
        taken = {noun: found for noun in self._by_noun if (found := self.by(plugin, noun))}
        for noun in taken:
            self._by_noun[noun] = [one for one in self._by_noun[noun] if one.plugin is not plugin]
        self._clashes = {clash: None for clash in self._clashes if plugin.name not in {clash.winner, clash.loser}}
        self._merged.clear()
        return taken

    def restore(self, taken: Mapping[str, Iterable[Contribution]]) -> None:
        """Put back what was withdrawn."""
        for noun, found in taken.items():
            self._by_noun[noun] += found
        self._merged.clear()

    def by(self, plugin: FoundPlugin, noun: str) -> list[Contribution]:
        """Return what one plugin has brought of a noun."""
        return [one for one in self._by_noun[noun] if one.plugin is plugin]

    def in_order(self, noun: str) -> list[Contribution]:
        """Return those of a noun, the first to be used first."""
        return sorted(self._by_noun[noun], key=lambda one: one.rank)

    def merged(self, noun: str) -> dict[str, object]:
        """Return what is used, by name: a dict of the caller's own."""
        known = self._merged.get(noun)
        if known is None:
            known = self._merged[noun] = self._merge(noun)
        return known.copy()

    def owners(self, noun: str) -> dict[str, FoundPlugin]:
        """Return who brings each name that is used."""
        return {name: one.plugin for one in reversed(self.in_order(noun)) for name in one.items}

    def clashes(self) -> list[Clash]:
        """Return the names that two plugins bring, for the nouns merged so far."""
        return list(self._clashes)

    def _merge(self, noun: str) -> dict[str, object]:
        merged: dict[str, object] = {}
        owners: dict[str, FoundPlugin] = {}
        for contribution in self.in_order(noun):
            for name, item in contribution.items.items():
                if name in merged:
                    self._note_clash(Clash(noun, name, owners[name].name, contribution.plugin.name))
                else:
                    merged[name], owners[name] = item, contribution.plugin
        return merged

    def _note_clash(self, clash: Clash) -> None:
        """Keep a clash for `pyagent plugins list`; every command would be too often."""
        if clash in self._clashes:
            return
        self._clashes[clash] = None
        logger.info(
            "plugins %s and %s both bring %s %r: %s comes first and is used (plugins.order changes that)",
            *(clash.winner, clash.loser, clash.noun, clash.name, clash.winner),
        )
