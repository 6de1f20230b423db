"""How evenly a mixture's router spreads tokens over experts: what each layer's counts come to."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

_NUM_BUSIEST = 4


class ExpertLoad(msgspec.Struct, frozen=True, kw_only=True):
    """The experts of a layer since the model was loaded. A token counts once for each expert that it had.

    `imbalance` is the busiest expert's tokens over the mean of all: 1 where all have as many. `busiest` are the experts
    with the most tokens, with their shares of all; `num_unused` have had none.
    """

    layer: int
    num_experts: int
    num_tokens: int
    num_unused: int
    imbalance: float
    busiest: list[tuple[int, float]]

    @classmethod
    def of(cls, layer: int, counts: Sequence[int]) -> ExpertLoad:
        """Return what the tokens of a layer's experts come to; there must be some."""
        total = sum(counts)
        order = sorted(range(len(counts)), key=lambda expert: -counts[expert])
        return cls(
            layer=layer,
            num_experts=len(counts),
            num_tokens=total,
            num_unused=sum(not count for count in counts),
            imbalance=round(max(counts) * len(counts) / total, 4),
            busiest=[(expert, round(counts[expert] / total, 4)) for expert in order[:_NUM_BUSIEST] if counts[expert]],
        )


def expert_loads(layers: Sequence[Sequence[int]]) -> list[ExpertLoad]:
    """Return the loads of those layers whose experts have had tokens."""
    return [ExpertLoad.of(layer, counts) for layer, counts in enumerate(layers) if any(counts)]
