"""gpt-oss as GGUF files have it: sinks in its attention, experts whose weights are MXFP4 or plain.

A folder has gates and ups of an expert in turns. MXFP4 keeps its numbers: ggml's blocks have the exponent in front, and
in a byte a number of the first half of a block beside one of the second, where folders have neighbours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from pyagent.infrastructure.models.quantize.gguf_file import Metadata, uint32
from pyagent.infrastructure.models.quantize.layouts.parts import embedding, ends, linear, turned
from pyagent.infrastructure.models.quantize.layouts.stored import Made, Spread, Stored

if TYPE_CHECKING:
    from pyagent._rust import ModelConfig

Config = Mapping[str, object]

MXFP4 = "MXFP4"
_BLOCK_BYTES = 16
_LOW = 0x0F
_GATE: Mapping[str, float] = {"swiglu_alpha": 1.702, "swiglu_limit": 7.0}
"""What files say nothing of: the numbers of the family's gate."""


class Mxfp4(NamedTuple):
    """A tensor to be whose blocks are kept: rows of a folder's, every `step`-th from `offset` on."""

    name: str
    dims: tuple[int, int, int]
    begin: str
    offset: int
    step: int

    def check(self, find: Callable[[str], tuple[Sequence[int], str] | None], refuse: Callable[[str], NoReturn]) -> None:
        """Refuse blocks that are missing, or of another size than config.json says."""
        cols, rows, num = self.dims
        of_rows = [cols // 32, rows * self.step, num]
        for name, dims in ((f"{self.begin}_blocks", [_BLOCK_BYTES, *of_rows]), (f"{self.begin}_scales", of_rows)):
            found = find(name)
            if found is None:
                refuse(f"tensor '{name}' is missing; the folder is incomplete")
            if [*found[0]] != dims or found[1] != "U8":
                refuse(f"tensor '{name}' is {[*found[0]]} of {found[1]}; expected {dims} of U8 by config.json")

    def read(self, read: Callable[[str, int, memoryview], None], first_row: int, num_rows: int) -> bytes:
        """Return rows as ggml has them. `read` fills a buffer with a stored tensor's rows from one on."""
        first, count, num_blocks = first_row * self.step, num_rows * self.step, self.dims[0] // 32
        blocks, scales = bytearray(count * num_blocks * _BLOCK_BYTES), bytearray(count * num_blocks)
        read(f"{self.begin}_blocks", first * num_blocks, memoryview(blocks))
        read(f"{self.begin}_scales", first, memoryview(scales))
        return _as_ggml(
            _every(blocks, num_blocks * _BLOCK_BYTES, self.offset, self.step),
            _every(scales, num_blocks, self.offset, self.step),
        )


def keys(config: Config, model: ModelConfig) -> Metadata:
    """Return what the family's files say besides."""
    del config
    return {"expert_feed_forward_length": uint32(model.ffn_size)}


def tensors(stored: Stored, config: Config, model: ModelConfig) -> Iterator[Made]:
    """Yield the tensors in the order of the file to be, but for experts in MXFP4."""
    stored.refuse_others(config, _GATE)
    hidden = model.hidden_size
    yield embedding(stored, model)
    for layer in range(model.num_layers):
        block, begin = f"blk.{layer}.", f"{stored.begin}layers.{layer}."
        yield stored.whole(f"{block}attn_norm.weight", f"{begin}input_layernorm.weight", [hidden])
        yield from _attention(stored, block, f"{begin}self_attn.", model)
        yield stored.whole(f"{block}post_attention_norm.weight", f"{begin}post_attention_layernorm.weight", [hidden])
        router = f"{begin}mlp.router."
        yield stored.whole(f"{block}ffn_gate_inp.weight", f"{router}weight", [hidden, model.num_experts])
        yield stored.whole(f"{block}ffn_gate_inp.bias", f"{router}bias", [model.num_experts])
        yield from _experts(stored, block, f"{begin}mlp.experts.", model)
    yield from ends(stored, model, "norm")


def kept(stored: Stored, model: ModelConfig) -> Iterator[Mxfp4]:
    """Yield the experts' matrices in MXFP4."""
    hidden, inside, num = model.hidden_size, model.ffn_size, model.num_experts
    for layer in range(model.num_layers):
        block, begin = f"blk.{layer}.", f"{stored.begin}layers.{layer}.mlp.experts."
        if stored.has(f"{begin}down_proj"):
            continue
        for offset, name in enumerate(("gate", "up")):
            dims = hidden, inside, num
            yield Mxfp4(f"{block}ffn_{name}_exps.weight", dims, f"{begin}gate_up_proj", offset, 2)
        yield Mxfp4(f"{block}ffn_down_exps.weight", (inside, hidden, num), f"{begin}down_proj", 0, 1)


def _attention(stored: Stored, block: str, begin: str, model: ModelConfig) -> Iterator[Made]:
    hidden, queries, kv = model.hidden_size, model.num_heads * model.head_dim, model.num_kv_heads * model.head_dim
    sizes = {"q": (hidden, queries), "k": (hidden, kv), "v": (hidden, kv), "o": (queries, hidden)}
    for name, dims in sizes.items():
        yield from linear(stored, f"{block}attn_{'output' if name == 'o' else name}", f"{begin}{name}_proj", dims)
    yield stored.whole(f"{block}attn_sinks.weight", f"{begin}sinks", [model.num_heads])


def _experts(stored: Stored, block: str, begin: str, model: ModelConfig) -> Iterator[Made]:
    """Yield the experts' biases, and their matrices where they are plain: a folder has these turned."""
    hidden, inside, num = model.hidden_size, model.ffn_size, model.num_experts
    name = f"{begin}gate_up_proj"
    for offset, gguf in enumerate(("gate", "up")):
        yield Made(f"{block}ffn_{gguf}_exps.bias", [inside, num], [Spread(f"{name}_bias", 0, num, offset)])
    yield stored.whole(f"{block}ffn_down_exps.bias", f"{begin}down_proj_bias", [hidden, num])
    if not stored.has(f"{begin}down_proj"):
        return
    for offset, gguf in enumerate(("gate", "up")):
        yield turned(f"{block}ffn_{gguf}_exps.weight", name, hidden, (offset, inside, 2), num)
    yield turned(f"{block}ffn_down_exps.weight", f"{begin}down_proj", inside, (0, hidden, 1), num)


def _every(rows: bytearray, size: int, offset: int, step: int) -> bytes:
    """Return every `step`-th row of so many bytes."""
    if step == 1:
        return bytes(rows)
    return b"".join(rows[start : start + size] for start in range(offset * size, len(rows), step * size))


def _as_ggml(blocks: bytes, scales: bytes) -> bytes:
    """Return blocks with their exponents in front, and numbers half a block apart in a byte."""
    count = len(scales)
    found = bytearray(17 * count)
    found[0::17] = scales
    low = int.from_bytes(bytes([_LOW]) * count, "little")
    high = low << 4
    for byte in range(_BLOCK_BYTES // 2):
        first, second = (int.from_bytes(blocks[place::_BLOCK_BYTES], "little") for place in (byte, byte + 8))
        even = (first & low) | ((second & low) << 4)
        odd = ((first & high) >> 4) | (second & high)
        found[1 + 2 * byte :: 17] = even.to_bytes(count, "little")
        found[2 + 2 * byte :: 17] = odd.to_bytes(count, "little")
    return bytes(found)
