"""The messages by which nodes move KV."""

from __future__ import annotations

from typing import Annotated

import msgspec

from pyagent.core.cluster.kv_index import MAX_BLOCKS
from pyagent.core.cluster.tensors import Tensor, TensorSchema, TensorSpec
from pyagent.core.runners.batch import BLOCK_TOKENS
from pyagent.core.runners.kv_connector import KvLayout
from pyagent.infrastructure.cluster.protocol import MAX_SMALL_BYTES
from pyagent.infrastructure.wire.codec import Codec

MAX_PREFILL_TOKENS = MAX_BLOCKS * BLOCK_TOKENS
"""The longest prompt that a node computes for another: as long as those whose KV can be asked for."""
MATCH, READ, PROBE, PREFILL = "kv.match", "kv.read", "kv.probe", "kv.prefill"
_Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 32)]
_Keys = Annotated[bytes, msgspec.Meta(max_length=MAX_SMALL_BYTES // 2)]
_Tokens = Annotated[bytes, msgspec.Meta(max_length=4 * MAX_PREFILL_TOKENS)]
_Name = Annotated[str, msgspec.Meta(max_length=1000)]


class AskKv(msgspec.Struct, frozen=True):
    """Whether a node has KV of a prompt with these keys, as this layout has it."""

    model: _Name
    layout: KvLayout
    keys: _Keys


class FoundKv(msgspec.Struct, frozen=True, omit_defaults=True):
    """How many tokens of it there are, or why none can be used; a prompt's token is computed in `token_seconds`."""

    num_tokens: _Count = 0
    refusal: Annotated[str, msgspec.Meta(max_length=1000)] = ""
    token_seconds: Annotated[float, msgspec.Meta(ge=0, le=1e6)] | None = None


class ReadKv(msgspec.Struct, frozen=True):
    """Ask for all layers of `wanted` pages (32 bits each) of the `num_pages` that the prompt with these keys has."""

    model: _Name
    layout: KvLayout
    keys: _Keys
    num_pages: _Count
    wanted: _Keys


class KvPart(msgspec.Struct, frozen=True):
    """Some layers of the pages asked for, from the `first_page` of them on; `key` is the prompt's last one."""

    key: bytes
    first_layer: _Count
    tensor: Tensor
    first_page: _Count = 0


class PrefillKv(msgspec.Struct, frozen=True):
    """Have a prompt computed, of so many bits a token: 32, in the order that `priority` gives it."""

    model: _Name
    layout: KvLayout
    tokens: _Tokens
    tenant: Annotated[str, msgspec.Meta(max_length=1000)] = ""
    priority: int = 0


_PEER = "a node of the cluster"
ask_codec: Codec[AskKv] = Codec(AskKv, _PEER, MAX_SMALL_BYTES)
found_codec: Codec[FoundKv] = Codec(FoundKv, _PEER, MAX_SMALL_BYTES)
read_codec: Codec[ReadKv] = Codec(ReadKv, _PEER, MAX_SMALL_BYTES)
part_codec: Codec[KvPart] = Codec(KvPart, _PEER, MAX_SMALL_BYTES)
prefill_codec: Codec[PrefillKv] = Codec(PrefillKv, _PEER, 4 * MAX_PREFILL_TOKENS + MAX_SMALL_BYTES)


def part_schema(layer_bytes: int) -> TensorSchema:
    """Return what the tensor of a part must be: so many pages of so many layers, as bytes in the layout's own order."""
    return TensorSchema((TensorSpec("kv", "uint8", ("pages", "layers", layer_bytes)),))
