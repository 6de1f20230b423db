"""What running requests need of a step beside their tokens: masks, logits processors, activations, beams."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyagent.infrastructure.engine.request import Request


class StepNeeds:
    """Counts the running requests by what each needs, so that a step that needs nothing looks at no request."""

    def __init__(self) -> None:
        self._num_masked = self._num_processed = self._num_probed = self._num_searching = 0

    def add(self, request: Request) -> None:
        """Count a request that begins to run."""
        self._count(request, 1)

    def remove(self, request: Request) -> None:
        """Forget one that runs no more. It must need what it did when it was counted."""
        self._count(request, -1)

    def _count(self, request: Request, change: int) -> None:
        self._num_masked += change * request.has_mask
        self._num_processed += change * bool(request.processors)
        self._num_probed += change * (request.activations is not None)
        self._num_searching += change * (request.search is not None)

    @property
    def has_masks(self) -> bool:
        """Whether some token may not be sampled for a running request."""
        return self._num_masked > 0

    @property
    def has_processors(self) -> bool:
        """Whether a running request has logits processors."""
        return self._num_processed > 0

    @property
    def has_probes(self) -> bool:
        """Whether a running request asks for its tokens' activations."""
        return self._num_probed > 0

    @property
    def has_beams(self) -> bool:
        """Whether a running request is a beam of a search."""
        return self._num_searching > 0
