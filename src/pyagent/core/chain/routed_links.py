"""The links that a router brings: one for each identity, whose counters outlive the backends that come and go."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from pyagent.core.backends import Backend
from pyagent.core.chain.link import Link, identity_of

_MAX_ABSENT = 256
"""Links kept of backends that are gone; then all of those are forgotten."""


@dataclass(slots=True)
class RoutedLinks:
    """The links by identity, those of backends that are gone too."""

    _known: dict[str, Link] = field(default_factory=dict[str, Link])

    def links(self, backends: Sequence[Backend], make: Callable[[Backend], Link]) -> list[Link]:
        """Return the links of these backends. A new object of one identity is a backend that started anew."""
        present = {identity_of(backend): backend for backend in backends}
        for identity, backend in present.items():
            known = self._known.get(identity)
            if known is None:
                self._known[identity] = make(backend)
            elif known.backend is not backend:
                known.renew(backend)
        if len(self._known) > len(present) + _MAX_ABSENT:
            self._known = {identity: self._known[identity] for identity in present}
        return [self._known[identity] for identity in present]
