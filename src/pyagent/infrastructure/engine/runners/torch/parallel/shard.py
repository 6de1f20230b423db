"""Which part of a model a rank has: heads, columns and tokens by its place in the tensor group, layers by its stage.

Pure. Ranks are numbered from the last stage on, so that rank 0, the engine's own, is where logits come out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from pyagent.core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyagent.infrastructure.engine.runners.torch.architectures.brought import Shape

_TP, _PP = "engine.tensor_parallel_size", "engine.pipeline_parallel_size"


class Span(NamedTuple):
    """A run of a matrix's rows or columns: `num` from `first` on, of `total`."""

    first: int
    num: int
    total: int

    @classmethod
    def whole(cls, total: int) -> Span:
        """All of them."""
        return cls(0, total, total)

    @classmethod
    def share(cls, total: int, rank: int, num_ranks: int) -> Span:
        """A rank's share: the same number for each, where they divide, else one fewer for some."""
        first = total * rank // num_ranks
        return cls(first, total * (rank + 1) // num_ranks - first, total)

    @property
    def end(self) -> int:
        """The first after them."""
        return self.first + self.num

    @property
    def is_whole(self) -> bool:
        """Whether it is all of them."""
        return self.num == self.total

    def times(self, size: int) -> Span:
        """The same run where each of them is `size` long: of heads, their rows."""
        return Span(self.first * size, self.num * size, self.total * size)


@dataclass(frozen=True, slots=True)
class Shard:
    """A rank's place among `tp_size * pp_size` ranks: `tp_size` ranks compute each of `pp_size` stages of layers."""

    rank: int = 0
    tp_size: int = 1
    pp_size: int = 1

    @property
    def num_ranks(self) -> int:
        """Ranks in all."""
        return self.tp_size * self.pp_size

    @property
    def tp_rank(self) -> int:
        """Its place in its stage."""
        return self.rank % self.tp_size

    @property
    def stage(self) -> int:
        """Its stage; the first has the embedding."""
        return self.pp_size - 1 - self.rank // self.tp_size

    @property
    def is_first(self) -> bool:
        """Whether tokens come in here."""
        return self.stage == 0

    @property
    def is_last(self) -> bool:
        """Whether logits come out here."""
        return self.stage == self.pp_size - 1

    @property
    def previous(self) -> int:
        """The rank that hidden states come from."""
        return self.rank + self.tp_size

    @property
    def next(self) -> int:
        """The rank that hidden states go to."""
        return self.rank - self.tp_size


@dataclass(frozen=True, slots=True)
class ModelPart:
    """What a rank has of a model. Tensor ranks have as many heads, FFN columns and, but for the last, tokens each.

    Where there are fewer key-value heads than tensor ranks, several have the same one.
    """

    shard: Shard
    heads: Span
    kv_heads: Span
    ffn: Span
    """Of an expert, where there are any."""
    dense: Span
    """Of an MLP in a layer without experts."""
    shared: Span
    """Of the MLP beside experts that all tokens share."""
    vocab: Span
    layers: Span
    windows: Sequence[int | None]

    @classmethod
    def of(cls, config: Shape, shard: Shard) -> ModelPart:
        """Divide a model. Raises `ConfigError` for sizes that do not divide it."""
        size, rank = shard.tp_size, shard.tp_rank
        experts = config.experts
        dense_size = experts.dense_size if experts is not None and experts.dense_size else config.ffn_size
        shared_size = 0 if experts is None else experts.shared_size
        columns = [("FFN columns", size) for size in (config.ffn_size, dense_size, shared_size)]
        for name, total in (("attention heads", config.num_heads), *columns):
            if total % size:
                raise _undivided(_TP, size, f"{total} {name}")
        if config.num_kv_heads % size and size % config.num_kv_heads:
            raise _undivided(_TP, size, f"{config.num_kv_heads} key-value heads")
        if config.num_layers < shard.pp_size:
            raise _undivided(_PP, shard.pp_size, f"{config.num_layers} layers")
        share = -(-config.vocab_size // size)
        if share * (size - 1) >= config.vocab_size:
            raise _undivided(_TP, size, f"a vocabulary of {config.vocab_size}")
        layers = stages(config.num_layers, shard.pp_size)[shard.stage]
        kv_first = config.num_kv_heads * rank // size
        return cls(
            shard=shard,
            heads=Span.share(config.num_heads, rank, size),
            kv_heads=Span(kv_first, max(1, config.num_kv_heads // size), config.num_kv_heads),
            ffn=Span.share(config.ffn_size, rank, size),
            dense=Span.share(dense_size, rank, size),
            shared=Span.share(shared_size, rank, size),
            vocab=Span(share * rank, min(share, config.vocab_size - share * rank), config.vocab_size),
            layers=layers,
            windows=config.windows[layers.first : layers.end],
        )

    @property
    def vocab_share(self) -> int:
        """Rows of the vocabulary that each rank computes: the last one's are filled up."""
        return -(-self.vocab.total // self.shard.tp_size)


def stages(num_layers: int, num_stages: int) -> list[Span]:
    """Return the layers of each stage of a pipeline."""
    return [Span.share(num_layers, stage, num_stages) for stage in range(num_stages)]


def _undivided(key: str, size: int, what: str) -> ConfigError:
    return ConfigError(f"{key} is {size}, which does not divide the model's {what}; take another", key=key)
