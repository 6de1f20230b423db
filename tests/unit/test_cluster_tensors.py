"""Tensors of a message against a schema: named sizes agree, and an error names the field that does not fit."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyagent.core.cluster.tensors import DTYPE_TO_BYTES, Size, Tensor, TensorSchema, TensorSpec
from pyagent.core.errors import RequestError

KV = TensorSchema(
    (
        TensorSpec("keys", "float16", ("layers", "tokens", 8, None)),
        TensorSpec("values", "float16", ("layers", "tokens", 8, 64)),
    )
)
KEYS, VALUES = Tensor("keys", "float16", (2, 5, 8, 96)), Tensor("values", "float16", (2, 5, 8, 64))
KEYS_BYTES, VALUES_BYTES = 2 * 5 * 8 * 96 * 2, 2 * 5 * 8 * 64 * 2


def test_schema_returns_the_sizes_of_named_dimensions() -> None:
    """Sizes of a name agree among tensors, and with those known before."""
    assert KV.check([KEYS, VALUES], [KEYS_BYTES, VALUES_BYTES], {"layers": 2}) == {"layers": 2, "tokens": 5}


@pytest.mark.parametrize(
    ("tensors", "num_bytes", "sizes", "field"),
    [
        ([KEYS], [KEYS_BYTES], {}, "tensors"),
        ([KEYS, VALUES], [KEYS_BYTES], {}, "buffers"),
        ([VALUES, KEYS], [VALUES_BYTES, KEYS_BYTES], {}, "tensors[0].name"),
        ([Tensor("keys", "bfloat16", KEYS.shape), VALUES], [KEYS_BYTES, VALUES_BYTES], {}, "tensors.keys.dtype"),
        ([Tensor("keys", "float16", (2, 5, 8)), VALUES], [KEYS_BYTES, VALUES_BYTES], {}, "tensors.keys.shape"),
        ([Tensor("keys", "float16", (2, 5, 9, 96)), VALUES], [0, VALUES_BYTES], {}, "tensors.keys.shape[2]"),
        ([Tensor("keys", "float16", (2, 5, 8, -1)), VALUES], [0, VALUES_BYTES], {}, "tensors.keys.shape[3]"),
        ([KEYS, Tensor("values", "float16", (2, 6, 8, 64))], [KEYS_BYTES, 0], {}, "tensors.values.shape[1]"),
        ([KEYS, VALUES], [KEYS_BYTES, VALUES_BYTES], {"layers": 3}, "tensors.keys.shape[0]"),
        ([KEYS, VALUES], [KEYS_BYTES, VALUES_BYTES - 1], {}, "tensors.values.buffer"),
    ],
)
def test_schema_names_the_field_that_does_not_fit(
    tensors: list[Tensor], num_bytes: list[int], sizes: dict[str, int], field: str
) -> None:
    """Each way in which a message can differ is an error with the field's name."""
    with pytest.raises(RequestError, match="does not fit: got") as caught:
        KV.check(tensors, num_bytes, sizes)
    assert caught.value.param == field


@given(
    st.lists(st.tuples(st.sampled_from(sorted(DTYPE_TO_BYTES)), st.lists(st.integers(0, 50), max_size=5)), max_size=4),
    st.data(),
)
def test_schema_takes_exactly_what_fits(shapes: list[tuple[str, list[int]]], data: st.DataObject) -> None:
    """A schema made from tensors, with some sizes named or left open, takes them, and no other length of a buffer."""
    tensors = [Tensor(str(index), dtype, tuple(shape)) for index, (dtype, shape) in enumerate(shapes)]
    num_bytes = [math.prod(tensor.shape) * DTYPE_TO_BYTES[tensor.dtype] for tensor in tensors]
    specs = list[TensorSpec]()
    for tensor in tensors:
        sizes: list[Size] = [data.draw(st.sampled_from([size, f"n{size}", None])) for size in tensor.shape]
        specs.append(TensorSpec(tensor.name, tensor.dtype, tuple(sizes)))
    schema = TensorSchema(tuple(specs))
    assert all(name == f"n{size}" for name, size in schema.check(tensors, num_bytes).items())
    if num_bytes:
        with pytest.raises(RequestError):
            schema.check(tensors, [num_bytes[0] + 1, *num_bytes[1:]])
