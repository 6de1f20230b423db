"""A decoder's forward pass over a ragged batch: Llama, Mistral, Qwen2, Qwen3, Gemma 2 and 3, by their configuration.

The configuration is the CPU runner's, read and checked by the same code, and so are the rotary frequencies; what
differs between families is in it, or in which tensors there are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import embedding

from pyagent.infrastructure.engine.runners.torch.layers import rotary

if TYPE_CHECKING:
    from pyagent._rust import ModelConfig
    from pyagent.infrastructure.engine.runners.torch.kv_cache import KvCache, KvLayers
    from pyagent.infrastructure.engine.runners.torch.stages import Stages
    from pyagent.infrastructure.engine.runners.torch.step import Step
    from pyagent.infrastructure.engine.runners.torch.weights import Layer, Weights

Angles = dict[bool, tuple[Tensor, Tensor]]
"""Cosines and sines of a step's positions, for layers with a window (True) and without."""


class Decoder:
    """A model's layers over its weights; the KV memory is the caller's."""

    def __init__(self, config: ModelConfig, weights: Weights, layers: KvLayers, stages: Stages) -> None:
        self._weights = weights
        self._stages = stages
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
        stages, layers = self._stages, self._weights.layers
        next_norms = [*(layer.attention_norm for layer in layers[1:]), self._weights.final_norm]
        normed = stages.rms_norm(x, layers[0].attention_norm, self._epsilon)
        for index, (layer, next_norm) in enumerate(zip(layers, next_norms, strict=True)):
            heads = self._attention(index, layer, normed, step, kv, angles)
            branch = self._post_norm(layer.attention_output(heads), layer.post_attention_norm)
            x, normed = stages.add_rms_norm(x, branch, layer.ffn_norm, self._epsilon)
            inside = stages.gated(layer.gate_up(normed), self._activation)
            branch = self._post_norm(layer.down(inside), layer.post_ffn_norm)
            if next_norm is self._weights.final_norm:
                x, branch = x.index_select(0, step.outputs), branch.index_select(0, step.outputs)
            x, normed = stages.add_rms_norm(x, branch, next_norm, self._epsilon)
        logits = self._weights.output(normed).float()
        cap = self._logit_softcap
        return logits if cap is None else logits.div_(cap).tanh_().mul_(cap)

    def _attention(self, index: int, layer: Layer, x: Tensor, step: Step, kv: KvCache, angles: Angles) -> Tensor:
        """Heads [T, Hq * D] before their output matrix."""
        num_heads, num_kv_heads = self._heads
        table, slot = self._places[index]
        window = self._windows[index]
        qkv = layer.qkv(x).unflatten(-1, (-1, self._head_dim))
        q, k, v = qkv.split([num_heads, num_kv_heads, num_kv_heads], 1)  # [T, H, D]
        q, k = self._post_norm(q, layer.query_norm), self._post_norm(k, layer.key_norm)
        cos_sin, caches = angles[window is not None], (kv.keys[slot], kv.values[slot])
        rows, batch = step.rows[table], step.attention[table]
        q = self._stages.rotate_and_store((q, k, v), cos_sin, rows, caches, is_interleaved=self._is_interleaved)
        return self._stages.attend(q, caches, batch, self._scale, window, self._softcap).flatten(1)

    def _post_norm(self, x: Tensor, weight: Tensor | None) -> Tensor:
        return x if weight is None else self._stages.rms_norm(x, weight, self._epsilon)
