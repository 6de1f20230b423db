"""Which prompts' KV a node has, by keys that tell nothing of the tokens to who has not the tokens.

A prompt's tokens are cut into blocks; the key of each hashes the block and the key before it, beginning with the tenant
and the model's weights, keyed with the cluster's id. A peer that names keys gets the KV of the tokens they are of: it
must have had the same tokens of the same tenant. Pure.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b

from pyagent.core.runners.batch import BLOCK_TOKENS, PLAIN_KEY, PrefixKey

KEY_BYTES = 16
MAX_BLOCKS = 16_384
"""Blocks that a node can be asked for: 262,144 tokens, about 4 MB."""
_TOKEN = array("I").itemsize


def block_keys(tokens: Sequence[int], key: PrefixKey, weights: str, secret: bytes) -> list[bytes]:
    """Return the keys of a prompt's whole blocks; those of two tenants or models are never equal."""
    seed = f"{key.tenant}\0{weights}".encode(errors="surrogatepass")
    last = _hashed(seed, secret)
    data, size = array("I", tokens).tobytes(), BLOCK_TOKENS * _TOKEN
    keys: list[bytes] = []
    for start in range(0, len(data) - size + 1, size):
        last = _hashed(last + data[start : start + size], secret)
        keys.append(last)
    return keys


def _hashed(data: bytes, secret: bytes) -> bytes:
    return blake2b(data, key=secret[:64], digest_size=KEY_BYTES, person=b"pyagent kv").digest()


def pack(keys: Iterable[bytes]) -> bytes:
    """Return keys as they cross."""
    return b"".join(keys)


def unpack(data: bytes) -> list[bytes]:
    """Return the keys of a message; bytes that make no whole key are dropped."""
    return [data[start : start + KEY_BYTES] for start in range(0, len(data) - KEY_BYTES + 1, KEY_BYTES)]


class KvIndex:
    """The blocks that one model computed last, by their keys; those used longest ago are forgotten first."""

    def __init__(self, max_blocks: int = MAX_BLOCKS) -> None:
        self._blocks: OrderedDict[bytes, tuple[str, bytes]] = OrderedDict()
        self._max_blocks = max_blocks

    def __len__(self) -> int:
        return len(self._blocks)

    def note(self, keys: Sequence[bytes], tokens: Sequence[int], key: PrefixKey) -> None:
        """Note that these blocks of a prompt are computed."""
        data, size = array("I", tokens).tobytes(), BLOCK_TOKENS * _TOKEN
        for number, block_key in reversed(
            list(enumerate(keys))
        ):  # a prompt is forgotten from its end: the rest is whole
            self._blocks[block_key] = (key.tenant, data[number * size : (number + 1) * size])
            self._blocks.move_to_end(block_key)
        while len(self._blocks) > self._max_blocks:
            self._blocks.popitem(last=False)

    def match(self, keys: Sequence[bytes]) -> tuple[list[int], PrefixKey]:
        """Return the tokens of the longest beginning of these keys that is known, and whose they are."""
        found = list(self._known(keys))
        tokens = array("I", b"".join(data for _, data in found)).tolist()
        return tokens, PrefixKey(tenant=found[0][0]) if found else PLAIN_KEY

    def _known(self, keys: Sequence[bytes]) -> Iterator[tuple[str, bytes]]:
        for key in keys:
            if key not in self._blocks:
                return
            yield self._blocks[key]
