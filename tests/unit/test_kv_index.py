"""Keys of blocks, and which of them a node knows: never another tenant's, and nothing that was not computed."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyagent.core.cluster.kv_index import KEY_BYTES, KvIndex, block_keys, pack, unpack
from pyagent.core.runners.batch import BLOCK_TOKENS, PrefixKey
from pyagent.core.runners.kv_connector import KvLayout, KvMatch, KvShape, is_worth_loading

SHAPE = KvShape(
    kv_dtype="bf16",
    num_kv_heads=3,
    head_dim=64,
    rope="base 10000",
    block_tokens=16,
    groups=(("full", 0, 1),),
    layers_per_page=30,
    layer_bytes=12_288,
)
LAYOUT = KvLayout(weights="ab", shape=SHAPE)
OURS = PrefixKey(tenant="ours")
TOKENS = list(range(5 * BLOCK_TOKENS))


def keys_of(tokens: list[int], key: PrefixKey = OURS, weights: str = "ab", secret: bytes = b"secret") -> list[bytes]:
    return block_keys(tokens, key, weights, secret)


def test_keys_are_equal_for_equal_beginnings_alone() -> None:
    """Two prompts share the keys of their common whole blocks; tenant, weights and the cluster's secret change all."""
    keys = keys_of(TOKENS)
    other = [*TOKENS[:40], 7, *TOKENS[41:]]
    assert len(keys) == 5
    assert keys_of([*TOKENS, 1, 2]) == keys
    assert [a == b for a, b in zip(keys, keys_of(other), strict=True)] == [True, True, False, False, False]
    for changed in (keys_of(TOKENS, PrefixKey()), keys_of(TOKENS, weights="ac"), keys_of(TOKENS, secret=b"other")):
        assert not set(keys) & set(changed)
    assert keys_of(TOKENS, PrefixKey(tenant="ours", priority=3)) == keys


def test_index_matches_the_longest_known_beginning() -> None:
    """What is matched are the tokens and the tenant of the keys, up to the first that is not known."""
    index = KvIndex()
    keys = keys_of(TOKENS)
    index.note(keys, TOKENS, OURS)
    assert index.match(keys) == (TOKENS, OURS)
    assert index.match([*keys[:2], bytes(KEY_BYTES), *keys[2:]]) == (TOKENS[:32], OURS)
    assert index.match(keys_of(TOKENS, PrefixKey(tenant="theirs"))) == ([], PrefixKey())
    assert index.match(keys[1:]) == (TOKENS[16:], OURS)  # the pool has no such prompt: nothing is cached of it


def test_index_forgets_what_was_used_longest_ago() -> None:
    """It keeps so many blocks; those of the prompts noted last stay, and of a prompt the beginning."""
    index = KvIndex(max_blocks=8)
    prompts = [[number] * 3 * BLOCK_TOKENS for number in range(4)]
    for tokens in prompts:
        index.note(keys_of(tokens), tokens, OURS)
    assert len(index) == 8
    assert [len(index.match(keys_of(tokens))[0]) for tokens in prompts] == [0, 32, 48, 48]


@given(st.binary(max_size=100))
def test_keys_cross_whole(data: bytes) -> None:
    """Any bytes are read as the whole keys they begin with."""
    assert pack(unpack(data)) == data[: len(data) // KEY_BYTES * KEY_BYTES]


@pytest.mark.parametrize("field", KvShape.__struct_fields__)
def test_layout_names_the_field_that_differs(field: str) -> None:
    """Each field of a shape, and the weights, make KV another; the difference names the field and both values."""
    value = getattr(SHAPE, field)
    changed = value + 1 if isinstance(value, int) else (*value, ("window", 40, 1)) if field == "groups" else value + "x"
    other = KvLayout(weights="ab", shape=msgspec.structs.replace(SHAPE, **{field: changed}))
    assert LAYOUT.difference(other) == f"{field} is {value} here and {changed} there"
    assert not LAYOUT.difference(KvLayout(weights="ab", shape=msgspec.structs.replace(SHAPE)))
    assert LAYOUT.difference(KvLayout(weights="ac", shape=SHAPE)) == "weights is ab here and ac there"


def test_moving_must_be_clearly_sooner() -> None:
    """KV is loaded where that takes at most four fifths of the time that computing what is missing takes."""
    match = KvMatch(num_tokens=1_100, load_seconds=0.79)
    assert is_worth_loading(match, 100, 0.001)
    assert not is_worth_loading(match, 200, 0.001)
    assert not is_worth_loading(match, 1_100, 1.0)
