"""A decoder's forward pass over a ragged batch: Llama and its relatives, by their configuration.

The configuration is the CPU runner's, read and checked by the same code, and so are the rotary frequencies; what
differs between families is in it, or in which tensors there are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import embedding

from pyagent.infrastructure.engine.runners.torch.experts import sigmoid
from pyagent.infrastructure.engine.runners.torch.layers import rotary, rotate

if TYPE_CHECKING:
    from pyagent._rust import ModelConfig
    from pyagent.infrastructure.engine.runners.torch.attention import Attend
    from pyagent.infrastructure.engine.runners.torch.kv_cache import KvCache, KvLayers
    from pyagent.infrastructure.engine.runners.torch.parallel.ranks import Ranks
    from pyagent.infrastructure.engine.runners.torch.parallel.shard import ModelPart
    from pyagent.infrastructure.engine.runners.torch.stages import Stages
    from pyagent.infrastructure.engine.runners.torch.step import Step
    from pyagent.infrastructure.engine.runners.torch.weights import Layer, Weights

Angles = dict[int, tuple[Tensor, Tensor]]
"""Cosines and sines of a step's positions, for each of the model's tables of frequencies."""

_FULL, _WINDOW, _NONE = range(3)
"""Tables: of layers that see everything, of layers with a window, and of layers without rotary positions.

The last turns nothing, by angles of 0: keys go to their pages by the same kernel. So do those that are turned before
their norm.
"""


class Decoder:
    """A model's layers over its weights; the KV memory is the caller's."""

    def __init__(
        self,
        config: ModelConfig,
        part: ModelPart,
        weights: Weights,
        layers: KvLayers,
        stages: Stages,
        attend: Attend,
        ranks: Ranks,
    ) -> None:
        self._weights = weights
        self._part = part
        self._stages = stages
        self._attend = attend
        self._ranks = ranks
        self._places = layers.places
        self._windows = part.windows
        self._heads = (part.heads.num, part.kv_heads.num)
        self._head_dim = config.head_dim
        self._is_norm_wide = config.is_qk_norm_wide
        self._is_norm_after_rope = config.is_norm_after_rope
        self._epsilon = config.norm_epsilon
        self._scale = config.attention_scale
        self._embedding_scale = config.embedding_scale
        self._residual_scale = config.residual_scale
        self._logit_divisor = config.logit_divisor
        self._is_interleaved = config.is_rope_interleaved
        self._softcap = config.attention_softcap
        self._logit_softcap = config.logit_softcap
        device = weights.embedding.device
        rotary_layers = config.rotary_layers[part.layers.first : part.layers.end]
        self._tables = [
            _NONE if not has_rotary else _FULL if window is None else _WINDOW
            for has_rotary, window in zip(rotary_layers, part.windows, strict=True)
        ]
        frequencies = {
            _FULL: (config.rope_frequencies, config.rope_attention_factor),
            _WINDOW: (config.local_rope_frequencies, config.local_rope_attention_factor),
            _NONE: ([0.0], 1.0),
        }
        self._frequencies = {
            table: (torch.tensor(frequencies[table][0], dtype=torch.float32, device=device), frequencies[table][1])
            for table in sorted({*self._tables, _NONE} if config.is_norm_after_rope else set(self._tables))
        }

    def logits(self, step: Step, kv: KvCache) -> Tensor:
        """Compute a step, write its keys and values, and return float32 logits [m, vocabulary] of its outputs.

        A stage of a pipeline before the last gives what it computed to the next one, and returns that.
        """
        angles: Angles = {table: rotary(step.positions, *told) for table, told in self._frequencies.items()}
        stages, layers, ranks = self._stages, self._weights.layers, self._ranks
        x = self._hidden(step)  # [T, hidden]
        normed = self._normed(x, layers[0].attention_norm)
        x, branch = self._layer(0, (x, normed), step, kv, angles)
        for index in range(1, len(layers)):
            x, normed = self._added(x, branch, layers[index].attention_norm)
            x, branch = self._layer(index, (x, normed), step, kv, angles)
        if not self._part.shard.is_last:
            x = x + branch
            ranks.send(x)
            return x
        x, branch = x.index_select(0, step.outputs), branch.index_select(0, step.outputs)
        _, normed = stages.add_rms_norm(x, branch, self._weights.final_norm, self._epsilon)
        return self._capped(ranks.join(self._weights.output(normed))[:, : self._part.vocab.total].float())

    def _layer(
        self, index: int, x_normed: tuple[Tensor, Tensor], step: Step, kv: KvCache, angles: Angles
    ) -> tuple[Tensor, Tensor]:
        """Return a layer's residual stream [T, hidden], and what is to be added to it."""
        layer, stages, ranks = self._weights.layers[index], self._stages, self._ranks
        x, normed = x_normed
        heads = self._attention(index, layer, normed, step, kv, angles)
        branch = self._scaled(self._normed(ranks.sum(layer.attention_output(heads)), layer.post_attention_norm))
        x, normed = self._added(x, branch, layer.ffn_norm)
        inside = layer.mlp(normed, stages, is_decode=len(step.tokens) == len(step.lengths))
        return x, self._scaled(self._normed(ranks.sum(inside), layer.post_ffn_norm))

    def _hidden(self, step: Step) -> Tensor:
        """What the first layer of this rank computes with: embeddings, or what the stage before computed."""
        weight, vocab = self._weights.embedding, self._part.vocab
        if not self._part.shard.is_first:
            x = torch.empty(len(step.tokens), weight.shape[1], dtype=weight.dtype, device=weight.device)
            return self._ranks.receive(x)
        if vocab.is_whole:
            x = embedding(step.tokens, weight)
        else:
            places = step.tokens - vocab.first
            is_elsewhere = (places < 0) | (places >= vocab.num)
            x = embedding(places.clamp(0, vocab.num - 1), weight).masked_fill_(is_elsewhere[:, None], 0)
            x = self._ranks.sum(x)
        return x if self._embedding_scale == 1 else x * self._embedding_scale

    def _scaled(self, branch: Tensor) -> Tensor:
        """What is added to the stream."""
        return branch if self._residual_scale == 1 else branch * self._residual_scale

    def _capped(self, logits: Tensor) -> Tensor:
        cap = self._logit_softcap
        logits = logits if self._logit_divisor == 1 else logits.div_(self._logit_divisor)
        return logits if cap is None else logits.div_(cap).tanh_().mul_(cap)

    def _attention(self, index: int, layer: Layer, x: Tensor, step: Step, kv: KvCache, angles: Angles) -> Tensor:
        """Heads [T, Hq * D] before their output matrix."""
        num_heads, num_kv_heads = self._heads
        table, slot = self._places[index]
        window = self._windows[index]
        qkv = layer.qkv(x).unflatten(-1, (-1, self._head_dim))
        q, k, v = qkv.split([num_heads, num_kv_heads, num_kv_heads], 1)  # [T, H, D]
        cos_sin, cache = angles[self._tables[index]], kv.slots[slot]
        if self._is_norm_after_rope:
            q, k = (rotate(heads, cos_sin, is_interleaved=self._is_interleaved) for heads in (q, k))
            cos_sin = angles[_NONE]
        q, k = self._normed_heads(q, layer.query_norm), self._normed_heads(k, layer.key_norm)
        rows, batch = step.rows[table], step.attention[table]
        q = self._stages.rotate_and_store((q, k, v), cos_sin, rows, cache, is_interleaved=self._is_interleaved)
        sinks = () if layer.sinks is None else (layer.sinks,)
        heads = self._attend(q, cache, batch, self._scale, window, self._softcap, *sinks).flatten(1)
        return heads if layer.attention_gate is None else heads * sigmoid(layer.attention_gate(x))

    def _normed(self, x: Tensor, weight: Tensor | None) -> Tensor:
        return x if weight is None else self._stages.rms_norm(x, weight, self._epsilon)

    def _added(self, x: Tensor, branch: Tensor, weight: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return `x + branch` [T, hidden], and its norm where the family has one there."""
        if weight is None:
            total = x + branch
            return total, total
        return self._stages.add_rms_norm(x, branch, weight, self._epsilon)

    def _normed_heads(self, x: Tensor, weight: Tensor | None) -> Tensor:
        """Heads [T, H, D] normalised where the family does: each, or all of a token's together."""
        if weight is None or not self._is_norm_wide:
            return self._normed(x, weight)
        wide, tp_size = x.flatten(1), self._part.shard.tp_size
        if tp_size == 1:
            return self._normed(wide, weight).unflatten(1, x.shape[1:])
        exact = wide.float()  # of which other ranks have as many columns each
        mean = self._ranks.sum(exact.square().mean(1, keepdim=True)) / tp_size
        return (exact * torch.rsqrt(mean + self._epsilon) * weight).to(x.dtype).unflatten(1, x.shape[1:])
