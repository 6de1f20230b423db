"""How tensors of GGUF files are put together from those of folders: every number once, whatever is read at a time."""

from __future__ import annotations

import math
from array import array
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.tiny_sparse import FFN, SHARED, USED, write_sparse

from pyagent import _rust
from pyagent.core.errors import ModelError
from pyagent.infrastructure.models.quantize.architecture import frequency_factors
from pyagent.infrastructure.models.quantize.gguf_file import boolean, float32, uint32
from pyagent.infrastructure.models.quantize.layouts import attention_sinks, falcon_h1, latent_attention
from pyagent.infrastructure.models.quantize.layouts.attention_sinks import Mxfp4
from pyagent.infrastructure.models.quantize.layouts.described import DESCRIBED
from pyagent.infrastructure.models.quantize.layouts.parts import paired
from pyagent.infrastructure.models.quantize.layouts.shared_experts import experts_keys
from pyagent.infrastructure.models.quantize.layouts.stored import (
    Columns,
    Made,
    Reader,
    Rows,
    Spread,
    Stored,
    ordered,
    plus_one,
    scaled,
)

if TYPE_CHECKING:
    from pyagent._rust import ModelConfig

EMBEDDING = "model.embed_tokens.weight"
COLS, ROWS = 6, 8
NUMBERS = [float(number) for number in range(COLS * ROWS)]
"""Of a matrix: its rows one after the other."""


def stored(**dims: list[int]) -> Stored:
    return Stored(Path("folder"), {EMBEDDING: [1, 1], "matrix": [COLS, ROWS], **dims})


def read_numbers(name: str, first_row: int, out: memoryview) -> None:
    assert name == "matrix"
    values = out.cast("f")
    values[:] = array("f", NUMBERS[first_row * COLS : first_row * COLS + len(values)])


def read(tensor: Made, rows_at_a_time: int) -> list[float]:
    """Return all of a tensor, some rows at a time."""
    reader, cols = Reader(stored(), read_numbers), tensor.dims[0]
    num_rows = 1
    for dim in tensor.dims[1:]:
        num_rows *= dim
    found: list[float] = []
    for first in range(0, num_rows, rows_at_a_time):
        out = array("f", bytes(4 * cols * min(rows_at_a_time, num_rows - first)))
        reader.read(tensor, first, out)
        found += out
    return found


@given(order=st.permutations(range(ROWS)), at_a_time=st.integers(1, ROWS))
def test_rows_are_read_in_any_order_and_in_any_pieces(order: list[int], at_a_time: int) -> None:
    """Each row is where the order has it."""
    tensor = Made("made", [COLS, ROWS], [Rows("matrix", row, 1) for row in order])
    assert read(tensor, at_a_time) == [NUMBERS[row * COLS + col] for row in order for col in range(COLS)]


@given(first_row=st.integers(0, 3), num_rows=st.integers(1, 5), step=st.integers(1, 2), at_a_time=st.integers(1, COLS))
def test_columns_are_read_as_rows(first_row: int, num_rows: int, step: int, at_a_time: int) -> None:
    """A part of a matrix is turned, every column or every second one."""
    parts = [Columns("matrix", first_row, num_rows, offset, COLS // step, step) for offset in range(step)]
    columns = [col for offset in range(step) for col in range(offset, COLS, step)]
    tensor = Made("made", [num_rows, COLS], parts)
    expected = [NUMBERS[(first_row + row) * COLS + col] for col in columns for row in range(num_rows)]
    assert read(tensor, at_a_time) == expected


@given(at_a_time=st.integers(1, ROWS))
def test_every_second_number_of_rows_is_read(at_a_time: int) -> None:
    """Of gates and ups in turns each gets its own."""
    for offset in (0, 1):
        tensor = Made("made", [COLS // 2, ROWS], [Spread("matrix", 0, ROWS, offset)])
        assert read(tensor, at_a_time) == NUMBERS[offset::2]


def test_a_row_may_have_other_dimensions() -> None:
    """A vector of the folder is a matrix of the file."""
    tensor = Made("made", [3, 2], [Rows("matrix", 1, 1)])
    assert read(tensor, 2) == NUMBERS[COLS : 2 * COLS]


def test_changes_are_made_to_whole_rows() -> None:
    """Columns get another order in each row; norms get what they lack."""
    rows = [Rows("matrix", 0, 2)]
    assert read(Made("made", [COLS, 2], rows, ordered([(4, 2), (0, 4)], COLS)), 1) == [
        4,
        5,
        0,
        1,
        2,
        3,
        10,
        11,
        *range(6, 10),
    ]
    assert read(Made("made", [COLS, 2], rows, plus_one), 2) == [number + 1 for number in NUMBERS[: 2 * COLS]]


@given(at_a_time=st.integers(1, ROWS), factor=st.floats(0.01, 100))
def test_factors_are_multiplied_in_turn_and_rounded(at_a_time: int, factor: float) -> None:
    """Each product has 32 bits, as those of llama.cpp's converter; a factor of 1 is none."""
    tensor = scaled(Made("made", [COLS, ROWS], [Rows("matrix", 0, ROWS)]), factor, 1.0, 0.3)
    once = array("f", [array("f", [factor])[0] * number for number in NUMBERS])
    assert read(tensor, at_a_time) == array("f", [array("f", [0.3])[0] * number for number in once]).tolist()
    assert scaled(tensor, 1.0).parts == [Rows("matrix", 0, ROWS, [])]


def test_pairs_of_halves_become_neighbours() -> None:
    """Of two heads of 6 numbers: the first of each half, then the second of each."""
    assert [row for row, _ in paired(2, 6)] == [0, 3, 1, 4, 2, 5, 6, 9, 7, 10, 8, 11]


def whole(*parts: Rows | Columns | Spread) -> list[Made]:
    return [Made("embedding", [1, 1], [Rows(EMBEDDING, 0, 1)]), Made("made", [COLS, ROWS], parts)]


@pytest.mark.parametrize(
    ("tensors", "expected"),
    [
        (whole(), "tensor 'matrix' would be lost"),
        (whole(Rows("matrix", 0, 7)), "tensor 'matrix' is [6, 8], of another size than config.json says"),
        (whole(Rows("matrix", 0, 8), Rows("matrix", 0, 1)), "tensor 'matrix' is [6, 8], of another size"),
        (whole(Rows("matrix", 1, 8)), "tensor 'matrix' is [6, 8], of another size"),
        (whole(Columns("matrix", 4, 6, 0, 8, 1)), "tensor 'matrix' is [6, 8], of another size"),
        (
            whole(Columns("matrix", 4, 6, 0, 6, 1), Columns("matrix", 0, 6, 0, 2, 1)),
            "tensor 'matrix' is [6, 8], of another",
        ),
        (whole(Columns("matrix", 0, 6, 0, 8, 1)), "tensor 'matrix' is [6, 8], of another size"),
        (whole(Spread("matrix", 0, 8, 0), Spread("matrix", 0, 8, 1)), "tensor 'matrix' is [6, 8], of another size"),
        (whole(Rows("other", 0, 1)), "tensor 'other' is missing; the folder is incomplete"),
    ],
)
def test_numbers_that_are_lost_or_there_twice_are_refused(tensors: list[Made], expected: str) -> None:
    """So are rows that are not there, and rows of another length."""
    with pytest.raises(ModelError) as caught:
        stored().check(tensors, [])
    assert str(caught.value).startswith(f"folder: {expected}")


def test_other_senses_and_what_is_computed_are_left_out() -> None:
    """Towers of pictures and sound are not of the half that reads text; nor is what a family says to leave."""
    others = ["model.visual.patch", "vision_tower.patch", "model.audio_tower.a", "model.layers.0.rotary_emb.inv_freq"]
    folder = Stored(
        Path("folder"), {EMBEDDING: [1, 1], "matrix": [COLS, ROWS], **{name: [4] for name in [*others, "lm_head"]}}
    )
    folder.check(whole(Rows("matrix", 0, ROWS)), ["lm_head"])
    with pytest.raises(ModelError, match="'lm_head' would be lost"):
        folder.check(whole(Rows("matrix", 0, ROWS)), [])


def test_experts_are_said_as_the_file_that_they_were_read_from_says_them(tmp_path: Path) -> None:
    """Groups, weights, ratings and the experts of all tokens, of a file of GLM's form."""
    path = write_sparse(tmp_path / "glm.gguf", "glm4moe")
    assert experts_keys(_rust.ModelFile(path).config) == {
        "expert_used_count": uint32(USED),
        "expert_feed_forward_length": uint32(FFN),
        "expert_weights_norm": boolean(True),
        "expert_weights_scale": float32(1.5),
        "expert_gating_func": uint32(2),
        "expert_group_count": uint32(3),
        "expert_group_used_count": uint32(2),
        "leading_dense_block_count": uint32(1),
        "expert_shared_count": uint32(SHARED // FFN),
        "expert_shared_feed_forward_length": uint32(SHARED),
    }


def test_settings_without_a_key_in_the_file_are_refused() -> None:
    """Where `config.json` says something else than the family's files mean: by name; what it lacks is none."""
    model = cast("ModelConfig", object())
    cases = [
        (attention_sinks.tensors, "swiglu_limit", 3.0, "3.0 would be read 7.0"),
        (attention_sinks.tensors, "swiglu_alpha", 1, "1 would be read 1.702"),
        (latent_attention.tensors, "rope_interleave", False, "False would be read True"),
    ]
    for tensors, key, value, said in cases:
        with pytest.raises(ModelError) as caught:
            next(tensors(stored(), {key: value}, model))
        assert str(caught.value) == f"folder: its '{key}' cannot be written as GGUF: {said}"
    said_by_folders = {"swiglu_limit": 7.0, "swiglu_alpha": None, "rope_interleave": True}
    stored().refuse_others(said_by_folders, {"swiglu_limit": 7.0, "swiglu_alpha": 1.702, "rope_interleave": True})


def test_llama_4_that_files_would_take_for_another_is_refused() -> None:
    """Of 128 experts there are no norms of queries and keys, of fewer there are: no key says so."""
    for experts, is_normalised in ((16, False), (128, True)):
        model = cast("ModelConfig", SimpleNamespace(num_experts=experts))
        with pytest.raises(ModelError, match=f"'use_qk_norm' cannot be written as GGUF: {is_normalised} would be read"):
            next(DESCRIBED["llama4"].tensors(stored(), {"use_qk_norm": is_normalised}, model))


def test_two_factors_of_one_matrix_are_refused() -> None:
    """Falcon-H1's embedding is its output matrix, and each would have another factor."""
    model = cast("ModelConfig", SimpleNamespace(is_output_tied=True, hidden_size=1, vocab_size=1, num_layers=0))
    said = {"embedding_multiplier": 3.0, "lm_head_multiplier": 0.5}
    with pytest.raises(ModelError, match=r"'lm_head_multiplier' cannot .* are 3\.0 and 0\.5"):
        next(falcon_h1.tensors(stored(), said, model))
    same = dict.fromkeys(said, 0.5)
    assert next(falcon_h1.tensors(stored(), same, model)).parts == [Rows(EMBEDDING, 0, 1, [0.5])]


def test_waves_are_stretched_or_not_where_there_are_none_between() -> None:
    """Llama 4's: one number of turns parts the two, and nothing is divided by 0."""
    rope = {"rope_type": "llama3", "rope_theta": 10_000.0, "factor": 8.0, "original_max_position_embeddings": 64}
    said = {"rope_parameters": rope | {"low_freq_factor": 1.0, "high_freq_factor": 1.0}}
    turns = [64 / (2 * math.pi * 10_000.0 ** (pair / 4)) for pair in range(4)]
    assert frequency_factors(said, 8)["rope_freqs.weight"].tolist() == [8.0 if one < 1 else 1.0 for one in turns]


def test_a_folder_without_an_embedding_is_refused() -> None:
    """It is the first thing that is looked for: its name says what the others begin with."""
    with pytest.raises(ModelError, match="the embedding is missing"):
        Stored(Path("folder"), {"model.norm.weight": [4]})


@given(data=st.data(), step=st.integers(1, 2), blocks=st.integers(1, 3), first=st.integers(0, 2), num=st.integers(1, 4))
def test_blocks_of_mxfp4_are_ggmls(data: st.DataObject, step: int, blocks: int, first: int, num: int) -> None:
    """The exponent is in front; a byte has a number of each half of a block, where a folder has neighbours."""
    rows, offset = (first + num) * step, step - 1
    nibbles = [
        [data.draw(st.lists(st.integers(0, 15), min_size=32, max_size=32)) for _ in range(blocks)] for _ in range(rows)
    ]
    pairs = bytes(
        low | high << 4 for row in nibbles for block in row for low, high in zip(block[::2], block[1::2], strict=True)
    )
    scales = bytes((7 * place) % 256 for place in range(rows * blocks))

    def read_stored(name: str, first_row: int, out: memoryview) -> None:
        values, size = (pairs, 16) if name.endswith("_blocks") else (scales, blocks)
        out[:] = values[first_row * size : first_row * size + len(out)]

    expected = bytearray()
    for row in range(first * step + offset, rows, step):
        for place, block in enumerate(nibbles[row]):
            expected.append(scales[row * blocks + place])
            expected += bytes(low | high << 4 for low, high in zip(block[:16], block[16:], strict=True))
    tensor = Mxfp4("made", (32 * blocks, rows // step, 1), "experts", offset, step)
    assert tensor.read(read_stored, first, num) == expected
