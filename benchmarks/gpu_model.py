"""A Llama of random weights in safetensors, of a real model's shapes: speed needs no other, and no download."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

_SCALE = 0.02
_SHARD_BYTES = 2 << 30


@dataclass(frozen=True)
class Shape:
    """A Llama's sizes."""

    name: str
    hidden: int
    ffn: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    vocab: int
    context: int
    is_tied: bool

    @property
    def head_dim(self) -> int:
        return self.hidden // self.num_heads

    @property
    def num_products(self) -> int:
        """Weights that a token is multiplied with in the layers."""
        attention = self.hidden * self.head_dim * 2 * (self.num_heads + self.num_kv_heads)
        return self.num_layers * (attention + 3 * self.hidden * self.ffn)

    @property
    def num_output(self) -> int:
        """Weights of the matrix that gives logits."""
        return self.vocab * self.hidden

    def kv_bytes(self, itemsize: int) -> int:
        """Bytes of a token's keys and values."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * itemsize


LLAMA_3_8B = Shape("Llama-3-8B", 4096, 14336, 32, 32, 8, 128_256, 131_072, is_tied=False)
SMOLLM2_135M = Shape("SmolLM2-135M", 576, 1536, 30, 9, 3, 49_152, 8192, is_tied=True)


def write(folder: Path, shape: Shape, dtype: torch.dtype, device: torch.device) -> None:
    """Write config.json and the shards; numbers are drawn on `device`."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": shape.hidden,
        "intermediate_size": shape.ffn,
        "num_hidden_layers": shape.num_layers,
        "num_attention_heads": shape.num_heads,
        "num_key_value_heads": shape.num_kv_heads,
        "head_dim": shape.head_dim,
        "vocab_size": shape.vocab,
        "max_position_embeddings": shape.context,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500_000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": shape.is_tied,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "torch_dtype": str(dtype).removeprefix("torch."),
    }
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    draw = torch.Generator(device).manual_seed(1234)
    places: dict[str, str] = {}
    shards = list(_shards(_tensors(shape), dtype.itemsize))
    for number, shard in enumerate(shards, 1):
        name = f"model-{number:05}-of-{len(shards):05}.safetensors"
        places |= dict.fromkeys(shard, name)
        _write_shard(folder / name, shard, dtype, draw)
    index = {"metadata": {}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")


def _tensors(shape: Shape) -> Iterator[tuple[str, tuple[int, ...]]]:
    q, kv = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
    yield "model.embed_tokens.weight", (shape.vocab, shape.hidden)
    for layer in range(shape.num_layers):
        prefix = f"model.layers.{layer}."
        yield prefix + "input_layernorm.weight", (shape.hidden,)
        yield prefix + "self_attn.q_proj.weight", (q, shape.hidden)
        yield prefix + "self_attn.k_proj.weight", (kv, shape.hidden)
        yield prefix + "self_attn.v_proj.weight", (kv, shape.hidden)
        yield prefix + "self_attn.o_proj.weight", (shape.hidden, q)
        yield prefix + "post_attention_layernorm.weight", (shape.hidden,)
        yield prefix + "mlp.gate_proj.weight", (shape.ffn, shape.hidden)
        yield prefix + "mlp.up_proj.weight", (shape.ffn, shape.hidden)
        yield prefix + "mlp.down_proj.weight", (shape.hidden, shape.ffn)
    yield "model.norm.weight", (shape.hidden,)
    if not shape.is_tied:
        yield "lm_head.weight", (shape.vocab, shape.hidden)


def _shards(tensors: Iterator[tuple[str, tuple[int, ...]]], itemsize: int) -> Iterator[dict[str, tuple[int, ...]]]:
    shard: dict[str, tuple[int, ...]] = {}
    num_bytes = 0
    for name, dims in tensors:
        shard[name] = dims
        num_bytes += torch.Size(dims).numel() * itemsize
        if num_bytes >= _SHARD_BYTES:
            yield shard
            shard, num_bytes = {}, 0
    if shard:
        yield shard


def _write_shard(path: Path, shard: dict[str, tuple[int, ...]], dtype: torch.dtype, draw: torch.Generator) -> None:
    names = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}
    header: dict[str, object] = {}
    start = 0
    for name, dims in shard.items():
        end = start + torch.Size(dims).numel() * dtype.itemsize
        header[name] = {"dtype": names[dtype], "shape": dims, "data_offsets": [start, end]}
        start = end
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for dims in shard.values():
            values = torch.empty(dims, dtype=dtype, device=draw.device)
            values.fill_(1) if len(dims) == 1 else values.normal_(0, _SCALE, generator=draw)
            file.write(values.cpu().view(torch.uint8).numpy().data)
