"""A decoder's forward pass over a ragged batch: Llama, Mistral, Qwen2, Qwen3, Gemma 2 and 3, by their configuration.

The configuration is the CPU runner's, read and checked by the same code, and so are the rotary frequencies; what
differs between families is in it, or in which tensors there are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import embedding, linear

from pyagent.infrastructure.engine.runners.torch import attention
from pyagent.infrastructure.engine.runners.torch.layers import gated, rms_norm, rotary, rotate

if TYPE_CHECKING:
    from pyagent._rust import ModelConfig
    from pyagent.infrastructure.engine.runners.torch.kv_cache import KvCache, KvLayers
    from pyagent.infrastructure.engine.runners.torch.step import Step
    from pyagent.infrastructure.engine.runners.torch.weights import Layer, Weights

Angles = dict[bool, tuple[Tensor, Tensor]]
"""Cosines and sines of a step's positions, for layers with a window (True) and without."""


class Decoder:
    """A model's layers over its weights; the KV memory is the caller's."""

    def __init__(self, config: ModelConfig, weights: Weights, layers: KvLayers) -> None:
        self._weights = weights
        self._places = layers.places
        self._windows = config.windows
        self._heads = (config.num_heads, config.num_kv_heads)
        self._head_dim = config.head_dim
        self._epsilon = config.norm_epsilon
        self._activation = config.activation
        self._scale = config.attention_scale
        self._embedding_scale = config.embedding_scale
        self._is_interleaved = config.is_rope_interleaved
        self._softcap = config.attention_softcap
        self._logit_softcap = config.logit_softcap
        self._attend = attention.choose(config.attention_softcap)
        device = weights.embedding.device
        self._frequencies = {
            is_local: torch.tensor(frequencies, dtype=torch.float32, device=device)
            for is_local, frequencies in ((False, config.rope_frequencies), (True, config.local_rope_frequencies))
        }

    def logits(self, step: Step, kv: KvCache) -> Tensor:
        """Compute a step, write its keys and values, and return float32 logits [m, vocabulary] of its outputs."""
        angles: Angles = {
            is_local: rotary(step.positions, frequencies) for is_local, frequencies in self._frequencies.items()
        }
        x = embedding(step.tokens, self._weights.embedding)  # [T, hidden]
        if self._embedding_scale != 1:
            x = x * self._embedding_scale
        for index, layer in enumerate(self._weights.layers):
            heads = self._attention(index, layer, self._norm(x, layer.attention_norm), step, kv, angles)
            x = x + self._post_norm(linear(heads, *layer.attention_output), layer.post_attention_norm)
            inside = gated(linear(self._norm(x, layer.ffn_norm), *layer.gate_up), self._activation)
            x = x + self._post_norm(linear(inside, *layer.down), layer.post_ffn_norm)
        outputs = self._norm(x.index_select(0, step.outputs), self._weights.final_norm)
        logits = linear(outputs, self._weights.output).float()
        cap = self._logit_softcap
        return logits if cap is None else logits.div_(cap).tanh_().mul_(cap)

    def _attention(self, index: int, layer: Layer, x: Tensor, step: Step, kv: KvCache, angles: Angles) -> Tensor:
        """Heads [T, Hq * D] before their output matrix."""
        num_heads, num_kv_heads = self._heads
        table, slot = self._places[index]
        window = self._windows[index]
        qkv = linear(x, *layer.qkv).unflatten(-1, (-1, self._head_dim))
        q, k, v = qkv.split([num_heads, num_kv_heads, num_kv_heads], 1)  # [T, H, D]
        q, k = self._post_norm(q, layer.query_norm), self._post_norm(k, layer.key_norm)
        cos_sin = angles[window is not None]
        q = rotate(q, cos_sin, is_interleaved=self._is_interleaved)
        k = rotate(k, cos_sin, is_interleaved=self._is_interleaved)
        kv.write(slot, step.rows[table], k, v)
        batch = step.attention[table]
        heads = self._attend(q, kv.keys[slot], kv.values[slot], batch, self._scale, window, self._softcap)
        return heads.flatten(1)

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return rms_norm(x, weight, self._epsilon)

    def _post_norm(self, x: Tensor, weight: Tensor | None) -> Tensor:
        return x if weight is None else rms_norm(x, weight, self._epsilon)
