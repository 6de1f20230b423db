"""Which tensor gets which type: llama.cpp's rules for files of the same names, without an importance matrix.

Its exception for Llama 2 70B (values in Q5_K) is left out, and layers are counted where it counts tensors of values.

A mixture has more bits where an error costs most: in the output matrix, and in values and the feed-forward block's way
back of the first and last eighth of the layers and every third between.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from pyagent.infrastructure.models.quantize.gguf_file import fits

TYPE_TO_BASE: Mapping[str, str] = MappingProxyType(
    {name: name for name in ("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q6_K")}
    | {"Q4_K_S": "Q4_K", "Q4_K_M": "Q4_K", "Q5_K_S": "Q5_K", "Q5_K_M": "Q5_K"}
)
"""What a file may be made of, to what most of its matrices are then."""
TYPE_TO_FILE_TYPE: Mapping[str, int] = MappingProxyType(
    {"F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q8_0": 7, "Q5_0": 8, "Q5_1": 9, "Q4_K_S": 14, "Q4_K_M": 15}
    | {"Q5_K_S": 16, "Q5_K_M": 17, "Q6_K": 18, "BF16": 32}
)
"""The number for `general.file_type`."""
PLAIN = frozenset({"F32", "F16", "BF16"})

_NARROWER = {"Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0"}
"""Of rows that are not whole blocks of 256."""
_MIXTRAL, _OF_MIXTRAL = 8, {"attn_v": "Q8_0", "attn_k": "Q8_0", "attn_output": "Q5_K"}
"""So many experts, and what is small beside them."""
_EMBEDDINGS = frozenset({"token_embd.weight", "per_layer_token_embd.weight"})
_KEPT = (
    *("norm.weight", "ffn_gate_inp.weight", "ffn_gate_inp_shexp.weight", "rope_freqs.weight", "rope_factors"),
    *("ssm_conv1d", "shortconv.conv.weight", "per_layer_model_proj", "position_embd.weight", "token_types.weight"),
    *("altup", "laurel"),
)
"""Parts of the names of tensors that stay as they are, as `llama-quantize` leaves them."""


def is_matrix(name: str, num_dims: int) -> bool:
    """Whether a tensor gets the type of matrices; norms, biases, convolutions and what rates experts do not."""
    return num_dims > 1 and name.endswith("weight") and not any(part in name for part in _KEPT)


@dataclass(frozen=True, slots=True)
class Mixture:
    """A file's types: `chosen` is what it may be made of. `is_tied` says that the embedding is the output too."""

    chosen: str
    num_layers: int
    is_tied: bool
    num_experts: int = 0

    def type_of(self, name: str, cols: int) -> str:
        """Return the element type of a matrix with rows of so many numbers."""
        base = TYPE_TO_BASE[self.chosen]
        if base in PLAIN:
            return base
        wanted = self._wanted(name, base)
        if fits(wanted, cols):
            return wanted
        narrower = "Q8_0" if self._is_output(name) else _NARROWER.get(wanted, "F16")
        return narrower if fits(narrower, cols) else "F16"

    def _is_output(self, name: str) -> bool:
        return name == "output.weight" or (self.is_tied and name in _EMBEDDINGS)

    def _wanted(self, name: str, base: str) -> str:
        if self._is_output(name):
            return "Q8_0" if base == "Q8_0" else "Q6_K"
        block, _, part = name.removeprefix("blk.").partition(".")
        layer = int(block) if block.isdecimal() else 0
        part = part.removesuffix(".weight").removesuffix("_exps").removesuffix("_shexp")
        if self.num_experts == _MIXTRAL and base in {"Q4_K", "Q5_K"} and part in _OF_MIXTRAL:
            return _OF_MIXTRAL[part]
        if self.chosen.endswith("_K_M"):
            return self._of_medium(part, layer, base)
        first_layers = {"attn_v": 4, "ffn_down": self.num_layers // 8}.get(part, 0)
        return "Q5_K" if self.chosen == "Q4_K_S" and layer < first_layers else base

    def _of_medium(self, part: str, layer: int, base: str) -> str:
        if part == "attn_qkv":
            return "Q5_K" if base == "Q4_K" else "Q6_K"
        eighth = self.num_layers // 8
        has_more = layer < eighth or layer >= 7 * self.num_layers // 8 or (layer - eighth) % 3 == 2
        return "Q6_K" if part in {"attn_v", "ffn_down"} and has_more else base
