"""Triton's attention over pages against the plain form in float64: interpreted, or on the GPU where there is one."""

from __future__ import annotations

import pytest
import torch
from support.paged_attention import Heads, Inputs, in_fp8, make_inputs, worst_row

from pyagent.infrastructure.engine.runners.torch.attention import plain
from pyagent.infrastructure.engine.runners.torch.kernels.attention import attend

pytestmark = pytest.mark.oracle

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
MOST_ERROR = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 1.5e-2}
"""Of a row: some units in the last place of the operands. The interpreter cuts bfloat16 off where a GPU rounds."""


def error(
    inputs: Inputs,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    sinks: torch.Tensor | None = None,
) -> float:
    """Return the worst row's error against the plain form in float64."""
    q, cache, batch = inputs
    out = attend(q, cache, batch, scale, window, softcap, sinks)
    assert out.dtype == q.dtype
    expected = plain.attend(q.double(), cache, batch, scale, window, softcap, sinks)
    return worst_row(out, expected)


def sinks_of(heads: Heads) -> torch.Tensor:
    """A score for each head, from below most of the keys' to above all of them."""
    return torch.linspace(-2, 5, heads.q, device=DEVICE)


@pytest.mark.parametrize("dtype", list(MOST_ERROR), ids=str)
@pytest.mark.parametrize(
    "heads", [Heads(1, 1, 64), Heads(6, 2, 80), Heads(8, 2, 96), Heads(5, 1, 128), Heads(8, 1, 256)]
)
def test_decode_and_prefill_in_one_batch_equal_the_plain_form(heads: Heads, dtype: torch.dtype) -> None:
    """Sequences of one token and chunks, of any head shape and type, are attended to as the formula says."""
    inputs = make_inputs([1, 19, 1, 1, 2], [1, 19, 33, 17, 40], heads, dtype, device=DEVICE)
    assert error(inputs, heads.dim**-0.5) < MOST_ERROR[dtype]


@pytest.mark.parametrize("length", [1, 15, 16, 17, 31, 32, 33, 48, 63, 64, 65, 128, 129])
def test_contexts_that_end_at_any_place_of_a_page_are_read_to_their_end(length: int) -> None:
    """A context's last token, before, at and after the border of a page or block, counts, and nothing after it."""
    heads = Heads(2, 1, 64)
    assert error(make_inputs([1], [length], heads, device=DEVICE), 0.125) < MOST_ERROR[torch.float32]
    chunk = make_inputs([min(length, 5)], [length], heads, device=DEVICE)
    assert error(chunk, 0.125) < MOST_ERROR[torch.float32]


@pytest.mark.parametrize("group", range(1, 9))
def test_query_heads_read_the_kv_head_of_their_group(group: int) -> None:
    """One to eight query heads share a KV head, in decode and prefill, powers of two or not."""
    inputs = make_inputs([1, 21], [50, 37], Heads(3 * group, 3, 64), device=DEVICE)
    assert error(inputs, 0.125) < MOST_ERROR[torch.float32]


@pytest.mark.parametrize("window", [1, 2, 16, 17, 40, 64, 500])
def test_windows_hide_what_came_before(window: int) -> None:
    """A token sees the last tokens of the window alone; pages before it may hold anything."""
    inputs = make_inputs([1, 1, 30, 3, 90], [1, 130, 30, 100, 120], Heads(4, 2, 64), window=window, device=DEVICE)
    assert error(inputs, 0.125, window) < MOST_ERROR[torch.float32]


@pytest.mark.parametrize("softcap", [5.0, 50.0])
def test_softcap_bends_the_scores(softcap: float) -> None:
    """Scores well beyond the cap and below it go through its tanh, alone and with a window."""
    inputs = make_inputs([1, 20], [70, 60], Heads(4, 2, 64), window=33, device=DEVICE)
    assert error(inputs, 2.0, 33, softcap) < 1e-5
    inputs = make_inputs([1, 20], [70, 60], Heads(4, 2, 64), device=DEVICE)
    assert error(inputs, 2.0, None, softcap) < 1e-5


@pytest.mark.parametrize("window", [None, 600])
def test_long_contexts_are_cut_into_parts_and_merged(window: int | None) -> None:
    """Contexts of one to several parts, cut unevenly, come out as if read in one piece."""
    lengths = [255, 257, 700, 1100]
    inputs = make_inputs([1] * 4, lengths, Heads(3, 1, 64), window=window, device=DEVICE)
    assert error(inputs, 0.125, window) < MOST_ERROR[torch.float32]


@pytest.mark.parametrize(
    ("num_shared", "dtype"),
    [
        (240, torch.float32),
        (256, torch.float32),
        (336, torch.float16),
        (336, torch.bfloat16),
        (784, torch.float32),
    ],
    ids=str,
)
def test_a_shared_prefix_is_read_once_and_merged(num_shared: int, dtype: torch.dtype) -> None:
    """Sequences that begin alike, beside a chunk that does not, come out as if each had read its own context."""
    inputs = make_inputs(
        [1, 3, 1, 1], [785, 40, 800, 1050], Heads(6, 2, 64), dtype, num_shared=num_shared, device=DEVICE
    )
    assert error(inputs, 0.125) < MOST_ERROR[dtype]
    assert error(inputs, 0.125, softcap=20.0) < 10 * MOST_ERROR[dtype]


@pytest.mark.parametrize("dtype", list(MOST_ERROR), ids=str)
def test_fp8_keys_and_values_are_read_with_their_scales(dtype: torch.dtype) -> None:
    """Decode, chunks, parts, a shared prefix, a window: over FP8 pages, as the formula over the same numbers."""
    batch = make_inputs([1, 19, 1], [33, 40, 130], Heads(6, 2, 80), dtype, device=DEVICE)
    assert error(in_fp8(batch), 0.1) < MOST_ERROR[dtype]
    hidden = make_inputs([1, 5], [90, 60], Heads(4, 2, 64), dtype, window=20, device=DEVICE)
    assert error(in_fp8(hidden), 0.1, 20, 30.0) < 10 * MOST_ERROR[dtype]
    shared = make_inputs([1, 1], [300, 340], Heads(4, 2, 64), dtype, num_shared=256, device=DEVICE)
    assert error(in_fp8(shared), 0.1) < MOST_ERROR[dtype]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_sinks_take_their_share_of_the_softmax(dtype: torch.dtype) -> None:
    """In decode and chunks, of contexts in one part and in several, with windows, FP8 keys and a shared prefix."""
    heads = Heads(6, 2, 64)
    sinks, most = sinks_of(heads), MOST_ERROR[dtype]
    mixed = make_inputs([1, 19, 1, 2], [1, 33, 700, 40], heads, dtype, device=DEVICE)
    assert error(mixed, 0.125, sinks=sinks) < most
    assert error(in_fp8(mixed), 0.125, sinks=sinks) < most
    hidden = make_inputs([1, 20, 1], [600, 60, 9], heads, dtype, window=24, device=DEVICE)
    assert error(hidden, 0.125, 24, sinks=sinks) < most
    shared = make_inputs([1, 3, 1], [300, 40, 600], heads, dtype, num_shared=256, device=DEVICE)
    assert error(shared, 0.125, sinks=sinks) < most


def test_sinks_keep_the_bits_of_every_batch() -> None:
    """A context in one part is the same alone and where others have several; sinks of no weight change no bit."""
    heads = Heads(4, 2, 64)
    sinks = sinks_of(heads)
    alone = make_inputs([1], [200], heads, seed=1, device=DEVICE)
    together = beside(alone, make_inputs([1, 7], [700, 90], heads, seed=2, device=DEVICE))
    first = attend(*alone, 0.125, None, None, sinks)
    assert torch.equal(attend(*together, 0.125, None, None, sinks)[:1], first)
    none = torch.full_like(sinks, -1e4)
    assert torch.equal(attend(*together, 0.125, None, None, none), attend(*together, 0.125, None, None))


def test_windows_leave_a_shared_prefix_out_of_sight() -> None:
    """With a window each sequence reads what it sees, though all begin alike."""
    inputs = make_inputs([1, 1], [300, 400], Heads(2, 1, 64), window=70, num_shared=288, device=DEVICE)
    assert error(inputs, 0.125, 70) < MOST_ERROR[torch.float32]


def test_scores_of_great_size_stay_finite() -> None:
    """Scores in the hundreds give the likeliest key's value, no overflow."""
    inputs = make_inputs([1, 10], [300, 40], Heads(2, 1, 64), device=DEVICE)
    assert error(inputs, 20.0) < 1e-4


def test_a_sequence_gets_the_same_bits_in_any_batch() -> None:
    """A decoding sequence's output does not depend on those beside it: its context is cut by its own length."""
    alone = make_inputs([1], [530], Heads(2, 1, 64), seed=1, device=DEVICE)
    others = make_inputs([1, 7], [1300, 90], Heads(2, 1, 64), seed=2, device=DEVICE)
    first = attend(*alone, 0.125, None, None)
    together = beside(alone, others)
    assert torch.equal(attend(*together, 0.125, None, None)[:1], first)


def test_a_prompt_gets_the_same_bits_in_any_chunks() -> None:
    """A token's attention is one number whether its prompt is computed whole or in chunks of several tokens."""
    whole = make_inputs([70], [70], Heads(4, 2, 64), device=DEVICE)
    q, cache, batch = whole
    out = attend(q, cache, batch, 0.125, None, None)
    for start, end in ((0, 33), (33, 70)):
        starts = torch.tensor([0, end - start], dtype=torch.int32, device=DEVICE)
        lengths = torch.tensor([end], dtype=torch.int32, device=DEVICE)
        chunk = type(batch)(starts, lengths, batch.tables, (end - start,), (end,))
        assert torch.equal(attend(q[start:end], cache, chunk, 0.125, None, None), out[start:end])


@pytest.mark.parametrize("heads", [Heads(33, 1, 64), Heads(1, 1, 320)])
def test_heads_without_a_tile_are_refused(heads: Heads) -> None:
    """Groups and head dimensions beyond the kernels' tiles are an error that says so."""
    inputs = make_inputs([1], [3], heads, device=DEVICE)
    with pytest.raises(ValueError, match="choose another attention backend"):
        attend(*inputs, 0.125, None, None)


def beside(first: Inputs, second: Inputs) -> Inputs:
    """Return one batch of both: the second's pages come after the first's."""
    width = max(first.batch.tables.shape[1], second.batch.tables.shape[1])

    def widened(tables: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.pad(tables, (0, width - tables.shape[1]))

    tables = torch.cat([widened(first.batch.tables), widened(second.batch.tables) + len(first.cache.keys)])
    starts = torch.cat([first.batch.query_starts, second.batch.query_starts[1:] + first.batch.query_starts[-1]])
    batch = type(first.batch)(
        starts,
        torch.cat([first.batch.lengths, second.batch.lengths]),
        tables,
        (*first.batch.num_queries, *second.batch.num_queries),
        (*first.batch.num_tokens, *second.batch.num_tokens),
    )
    pairs = zip(first.cache.tensors, second.cache.tensors, strict=True)
    cache = type(first.cache)(*(torch.cat(pair) for pair in pairs))
    return Inputs(torch.cat([first.q, second.q]), cache, batch)
