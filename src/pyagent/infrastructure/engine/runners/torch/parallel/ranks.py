"""What the ranks of a model exchange in a step, and a rank that is alone.

Every rank computes the same steps in the same order, so each exchange meets its counterparts.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


class Ranks(Protocol):
    """The other ranks, as a decoder sees them. What comes back may be the tensor that was given, written into."""

    def sum(self, x: Tensor) -> Tensor:
        """Return the sum of the tensor group's `x`."""
        ...

    def join(self, x: Tensor) -> Tensor:
        """Return the columns of the tensor group's `x` [n, columns] side by side, in the order of the ranks."""
        ...

    def send(self, x: Tensor) -> None:
        """Hand hidden states to the next stage; `x` may not be written afterwards."""
        ...

    def receive(self, x: Tensor) -> Tensor:
        """Fill `x` with the hidden states of the stage before."""
        ...


class Alone:
    """No other rank."""

    def sum(self, x: Tensor) -> Tensor:
        """As `Ranks.sum`."""
        return x

    def join(self, x: Tensor) -> Tensor:
        """As `Ranks.join`."""
        return x

    def send(self, x: Tensor) -> None:
        """As `Ranks.send`."""
        raise AssertionError("there is no next stage")

    def receive(self, x: Tensor) -> Tensor:
        """As `Ranks.receive`."""
        raise AssertionError("there is no stage before")
