"""Adapters (LoRA, DoRA) of a runner's model: what it is asked where requests name some."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable


class OpenedAdapter(Protocol):
    """An adapter's file, or those of several that add up, checked against the model; nothing is in memory yet."""

    @property
    def num_bytes(self) -> int:
        """What it takes when it is loaded."""
        ...

    @property
    def rank(self) -> int:
        """Its largest rank."""
        ...

    @property
    def is_dora(self) -> bool:
        """Whether it resizes what others add (DoRA), so that it does not add up with them."""
        ...

    def step_bytes(self, num_tokens: int) -> int:
        """Return the bytes that steps of up to so many tokens take for it beside what they take without."""
        ...

    def load(self, adapter_id: int) -> None:
        """Load it: sequences whose `PrefixKey` has this id are computed with it. Raises `ModelError`."""
        ...


@runtime_checkable
class AdaptingRunner(Protocol):
    """A runner that computes sequences of one step with different adapters, by the `adapter_id` of their keys."""

    def open_adapter(self, paths: Sequence[Path]) -> OpenedAdapter:
        """Open a folder or file, or several that add up. Any thread. Raises `ModelError` naming what is wrong."""
        ...

    def remove_adapter(self, adapter_id: int) -> None:
        """Forget one. Any thread. Sequences that still name it end with an error."""
        ...
