"""What a model takes on a device, said from its configuration before anything is loaded."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pyagent.core.errors import CapacityError, ModelError
from pyagent.core.runners.batch import BLOCK_TOKENS
from pyagent.core.runners.factory import LargestStep
from pyagent.infrastructure.engine.runners.torch.attention.sdpa import GATHER_BYTES, SINK_MASK_NUMBERS
from pyagent.infrastructure.engine.runners.torch.device import Target
from pyagent.infrastructure.engine.runners.torch.experts import GATHER_BYTES as EXPERT_BYTES
from pyagent.infrastructure.engine.runners.torch.kv_cache import KvLayers
from pyagent.infrastructure.engine.runners.torch.parallel.shard import ModelPart
from pyagent.infrastructure.engine.runners.torch.quantised.mxfp4 import UNPACKED_BYTES
from pyagent.infrastructure.engine.runners.torch.quantised.products import DENSE_ROWS

if TYPE_CHECKING:
    from pyagent.infrastructure.engine.runners.torch.architectures.brought import Shape
    from pyagent.infrastructure.engine.runners.torch.models import OpenedModel

_LEAST_KV_TOKENS = 512
_DEFAULT_KV_BYTES = 1 << 30
_GIGABYTE = 1e9
_RETRY_SECONDS = 10.0
_PLAIN_BYTES = 12
"""Of a number that torch's own operations dequantise, with what they go through."""


class Sizes(NamedTuple):
    """Bytes of a model's weights, of its largest step and of a page of KV, on a device."""

    weight_bytes: int
    workspace_bytes: int
    page_bytes: int
    pages_per_block: int

    @classmethod
    def of(cls, model: OpenedModel, part: ModelPart, layers: KvLayers, step: LargestStep, target: Target) -> Sizes:
        """What a rank takes, for steps up to the largest."""
        config = model.config
        page_bytes = layers.page_bytes(part.kv_heads.num, config.head_dim, target.kv_dtype)
        workspace = step_bytes(config, part, step, target) + _graph_bytes(config, part, step, target)
        weights = model.weight_bytes(part, target)
        return cls(weights, workspace, page_bytes, layers.pages_per_block)

    def check_fit(self, target: Target, path: Path) -> None:
        """Raise `ModelError` where the model and a little KV never fit, `CapacityError` where they do not fit now."""
        least_kv = self.page_bytes * self.pages_per_block * (_LEAST_KV_TOKENS // BLOCK_TOKENS)
        needed, share = self.weight_bytes + self.workspace_bytes + least_kv, target.share_bytes
        text = f"{path} needs {needed / _GIGABYTE:.1f} GB of the GPU's memory, of which"
        if needed > share:
            raise ModelError(
                f"{text} the engine may have {share / _GIGABYTE:.1f} GB (engine.gpu_memory_utilization): take a "
                "smaller model, divide it among GPUs (engine.tensor_parallel_size), or set engine.runner to cpu",
                model=str(path),
            )
        if needed > (left := target.capacity_bytes):
            raise CapacityError(
                f"{text} {left / _GIGABYTE:.1f} GB can be had now: other programs have the rest, an engine of PyAgent "
                "among them maybe; end them, or set engine.runner to cpu",
                retry_after_seconds=_RETRY_SECONDS,
            )

    def num_pages(self, target: Target, kv_bytes: int | None) -> int:
        """Return how many pages of KV there can be once the weights are loaded; at least those of a block."""
        if not target.is_gpu:
            return max((kv_bytes or _DEFAULT_KV_BYTES) // self.page_bytes, self.pages_per_block)
        room = target.usable_bytes - self.workspace_bytes
        return max(min(kv_bytes or room, room) // self.page_bytes, self.pages_per_block)


def step_bytes(config: Shape, part: ModelPart, step: LargestStep, target: Target) -> int:
    """Return the bytes that a step up to the largest takes of a rank, beside weights and KV."""
    positions = min(config.context_length, step.num_positions or config.context_length)
    kv_size = part.kv_heads.num * config.head_dim
    qkv_size = part.heads.num * config.head_dim + 2 * kv_size
    rows = 4 * step.num_tokens * (6 * config.hidden_size + 4 * qkv_size + _inside_columns(config, part))
    logits = 4 * 2 * step.num_outputs * config.vocab_size
    gathered = 4 * max(GATHER_BYTES, positions * kv_size * target.dtype.itemsize)
    masks = 6 * step.num_tokens * positions + (2 * 4 * SINK_MASK_NUMBERS if config.has_sinks else 0)
    number_bytes = target.dtype.itemsize + (UNPACKED_BYTES + 1 if target.keeps_quantised else 0)
    one_expert = 3 * part.ffn.num * config.hidden_size * number_bytes
    experts = 0 if config.experts is None else max(EXPERT_BYTES, one_expert)
    return rows + logits + gathered + masks + experts + _dequantised_bytes(config, part, step, target)


def _inside_columns(config: Shape, part: ModelPart) -> int:
    """Columns that a token takes inside a layer's feed-forward block; of a mixture, in all of its experts."""
    if config.experts is None:
        return 3 * part.ffn.num
    of_experts = config.experts.num_used * (3 * part.ffn.num + 2 * config.hidden_size)
    return max(3 * part.dense.num, of_experts + 3 * part.shared.num)


def _graph_bytes(config: Shape, part: ModelPart, step: LargestStep, target: Target) -> int:
    """What captured steps hold: the output that all of them have, and what the largest computes in."""
    if not target.is_gpu or part.shard.num_ranks > 1:
        return 0
    decode = LargestStep(step.num_outputs, step.num_outputs, BLOCK_TOKENS)
    return 4 * step.num_outputs * config.vocab_size + step_bytes(config, part, decode, target)


def _dequantised_bytes(config: Shape, part: ModelPart, step: LargestStep, target: Target) -> int:
    """What a step takes for the largest matrix, where it is quantised and dequantised for a product."""
    if not target.keeps_quantised or (target.is_gpu and step.num_tokens < DENSE_ROWS):
        return 0
    num_inside = 2 * max(part.dense.num, part.shared.num)
    num_rows = num_inside if target.is_gpu else max(num_inside, part.vocab_share)
    number_bytes = target.dtype.itemsize if target.is_gpu else _PLAIN_BYTES
    return num_rows * config.hidden_size * number_bytes
