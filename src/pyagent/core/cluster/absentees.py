"""Which models nodes had that are away now: who asks for one is told to come back, not that there is none.

What a node offered is kept for a while after it left or died, of so many models.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from dataclasses import dataclass, field

from pyagent.core.backends import AGENT_PREFIX
from pyagent.core.cluster.adverts import Offer
from pyagent.core.resilience.deadline import Clock

_KEPT_SECONDS = 600.0
_MAX_MODELS = 1_024


@dataclass(slots=True)
class Absentees:
    """The models of nodes that are gone, each with the last node that had it."""

    clock: Clock = time.monotonic
    _model_to_last: OrderedDict[str, tuple[str, float]] = field(default_factory=OrderedDict[str, tuple[str, float]])

    def note(self, node: str, offer: Offer) -> None:
        """Keep what a node offered that is gone now, and itself: it may be named as a model."""
        models = [one.id for one in offer.models] + [f"{AGENT_PREFIX}{name}" for name in offer.agents]
        for model in (*models, node):
            self._model_to_last[model] = (node, self.clock())
            self._model_to_last.move_to_end(model)
        while len(self._model_to_last) > _MAX_MODELS:
            self._model_to_last.popitem(last=False)

    def last_node(self, model: str) -> str:
        """Return the node that had a model lately; empty where none did."""
        node, at = self._model_to_last.get(model, ("", 0.0))
        return node if node and self.clock() - at < _KEPT_SECONDS else ""
