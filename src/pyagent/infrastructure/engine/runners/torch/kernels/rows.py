"""Rows of logits before a draw: penalties and masks applied, and what a draw needs to know of each row as a whole.

A row is cut into chunks, a program each. What chunks leave is joined by maxima and sums of whole numbers, which are the
same in any order; the mean and deviation of a row, which are not, only say where to look first.
"""

# pyright: reportMissingParameterType=false, reportUnknownParameterType=false, reportGeneralTypeIssues=false
# A kernel's parameters are pointers, numbers and blocks of Triton's, which no annotation tells apart; by the types, a
# kernel that another calls never returns.

from __future__ import annotations

import triton
import triton.language as tl

from pyagent.infrastructure.engine.runners.torch.kernels.launch import INTERPRETED, configured

CHUNK = 256 if INTERPRETED else 2048
"""Tokens of a program; few in the interpreter, so that its small rows have several."""
NUM_BOUNDS = 8
"""Bounds between which a row's best tokens are counted, the first below all that weigh anything."""

WEIGHT_BITS = tl.constexpr(44)
LOWEST = tl.constexpr(-3.4028234663852886e38)
_SEEN = tl.constexpr(1 << 24)
_NO_TOKEN = tl.constexpr(1 << 30)
_VANISHING = tl.constexpr(32.0)  # e^-32 is no whole number of 2^-44
_FAR = tl.constexpr(1e4)
CONFIGS = [triton.Config({}, num_warps=num_warps) for num_warps in (4, 8, 2)]


@triton.jit
def key_of(x):
    """Return int32 numbers in the order of logits; -0 and 0 are equal."""
    bits = (x + 0.0).to(tl.int32, bitcast=True)
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)


@triton.jit
def logit_of(key):
    """Return the logits of such numbers."""
    return tl.where(key < 0, key ^ 0x7FFFFFFF, key).to(tl.float32, bitcast=True)


@triton.jit
def weight_of(x, greatest, temperature):
    """Return int64 weights of logits, as `sampling.weights_of`; `exp2`, which the device has, is exact near 0 alone."""
    below = tl.maximum(tl.math.div_rn(x - greatest, temperature), -64.0)
    whole = tl.floor(below * 1.4426950408889634 + 0.5)
    rest = (below - whole * 0.693359375) + whole * 2.1219444005469057e-4
    power = ((whole.to(tl.int32) + (127 + WEIGHT_BITS)) << 23).to(tl.float32, bitcast=True)
    return tl.floor(tl.exp2(rest * 1.4426950408889634) * power + 0.5).to(tl.int64)


@triton.jit
def summary_of(floats, ints, row, num_chunks, BLOCK_C: tl.constexpr):
    """Return a row's greatest logit, its first token, the first token of no number, mean and deviation."""
    chunks = tl.arange(0, BLOCK_C)
    is_chunk = chunks < num_chunks
    floats += row * 3 * num_chunks + chunks
    ints += row * 3 * num_chunks + chunks
    greatest = tl.load(floats, mask=is_chunk, other=float("-inf"))
    best = tl.max(greatest, 0)
    firsts = tl.load(ints, mask=is_chunk, other=_NO_TOKEN)
    token = tl.min(tl.where(greatest == best, firsts, _NO_TOKEN), 0)
    fault = tl.min(tl.load(ints + num_chunks, mask=is_chunk, other=_NO_TOKEN), 0)
    count = tl.maximum(tl.sum(tl.load(ints + 2 * num_chunks, mask=is_chunk, other=0), 0), 1)
    mean = tl.sum(tl.load(floats + num_chunks, mask=is_chunk, other=0.0), 0) / count
    squares = tl.sum(tl.load(floats + 2 * num_chunks, mask=is_chunk, other=0.0), 0) / count
    return best, token, fault, mean, tl.sqrt(tl.maximum(squares - mean * mean, 0.0))


@triton.jit
def bounds_of(greatest, mean, deviation, temperature, first_z, step_z, NUM_BOUNDS: tl.constexpr):
    """Return a row's bounds [NUM_BOUNDS]: below all that weigh anything, then at so many deviations above the mean."""
    numbers = tl.arange(0, NUM_BOUNDS)
    lowest = tl.maximum(greatest - _VANISHING * temperature, LOWEST)
    bounds = mean + deviation * (first_z + step_z * (numbers - 1).to(tl.float32))
    return tl.where(numbers == 0, lowest, tl.minimum(tl.maximum(bounds, lowest), greatest))


@triton.jit
def _penalised(x, seen, repetition, frequency, presence):
    """Return logits with penalties for what was seen: times in the output, plus `SEEN`."""
    counts = (seen & (_SEEN - 1)).to(tl.float32)
    repeated = tl.where(x > 0, tl.math.div_rn(x, repetition), x * repetition)
    x = tl.where(seen > 0, repeated, x) - frequency * counts
    return tl.where(counts > 0, x - presence, x)


@configured(CONFIGS, key=["CHUNK"], changes=["logits"])
@triton.jit(do_not_specialize=["vocab_size", "row_stride", "num_words"])
def adjust(
    logits,  # read and written
    penalties,  # [m, 3] float32
    tallies,  # [m] int32, rows of `seen`; below 0 for a row without penalties
    seen,  # [tallies, V] int32
    mask_rows,  # [m] int32, rows of `words`; below 0 for a row without a mask
    words,  # [masks, words] int32
    floats,  # [m, 3, chunks] float32: greatest, sum, sum of squares
    ints,  # [m, 3, chunks] int32: the greatest's first token, the first of no number, how many were summed
    vocab_size,
    row_stride,
    num_words,
    CHUNK: tl.constexpr,
):
    """Apply a chunk's penalties and mask, and store what it adds to its row's summary."""
    row, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
    tokens = chunk * CHUNK + tl.arange(0, CHUNK)
    is_token = tokens < vocab_size
    places = logits + row * row_stride + tokens
    x = tl.load(places, mask=is_token, other=float("-inf"))
    tally, mask_row = tl.load(tallies + row), tl.load(mask_rows + row)
    if tally >= 0:
        counts = tl.load(seen + tally.to(tl.int64) * vocab_size + tokens, mask=is_token, other=0)
        rates = penalties + 3 * row
        x = _penalised(x, counts, tl.load(rates), tl.load(rates + 1), tl.load(rates + 2))
    if mask_row >= 0:
        bits = tl.load(words + mask_row.to(tl.int64) * num_words + tokens // 32, mask=is_token, other=0)
        x = tl.where((bits >> (tokens % 32)) & 1 != 0, x, float("-inf"))
    if (tally >= 0) | (mask_row >= 0):
        tl.store(places, x, mask=is_token)
    is_number = x < float("inf")
    x = tl.where(is_number, x, float("-inf"))
    greatest = tl.max(x, 0)
    is_finite = x > float("-inf")
    near = tl.where(is_finite, tl.minimum(tl.maximum(x, -_FAR), _FAR), 0.0)
    num_chunks = tl.num_programs(1)
    floats += row * 3 * num_chunks + chunk
    ints += row * 3 * num_chunks + chunk
    tl.store(floats, greatest)
    tl.store(floats + num_chunks, tl.sum(near, 0))
    tl.store(floats + 2 * num_chunks, tl.sum(near * near, 0))
    tl.store(ints, tl.min(tl.where((x == greatest) & is_token, tokens, _NO_TOKEN), 0))
    tl.store(ints + num_chunks, tl.min(tl.where(is_number, _NO_TOKEN, tokens), 0))
    tl.store(ints + 2 * num_chunks, tl.sum(is_finite.to(tl.int32), 0))


@configured(CONFIGS, key=["CHUNK"])
@triton.jit(do_not_specialize=["vocab_size", "row_stride"])
def weigh(
    logits,
    temperatures,  # [m] float32
    min_p,  # [m] float32
    floats,
    ints,
    masses,  # [m, 2, chunks] int64: of all tokens, of those that are likely enough
    counts,  # [m, NUM_BOUNDS, chunks] int32: tokens from each bound on
    vocab_size,
    row_stride,
    first_z,
    step_z,
    CHUNK: tl.constexpr,
    NUM_BOUNDS: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """Store a chunk's weights' sums, and how many of its tokens are above each bound."""
    row, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
    temperature = tl.load(temperatures + row)
    if temperature > 0:
        num_chunks = tl.num_programs(1)
        greatest, _, _, mean, deviation = summary_of(floats, ints, row, num_chunks, BLOCK_C)
        tokens = chunk * CHUNK + tl.arange(0, CHUNK)
        x = tl.load(logits + row * row_stride + tokens, mask=tokens < vocab_size, other=float("-inf"))
        x = tl.where(x < float("inf"), x, float("-inf"))  # a row without numbers is not sampled
        weights = weight_of(x, tl.maximum(greatest, LOWEST), temperature)
        masses += row * 2 * num_chunks + chunk
        tl.store(masses, tl.sum(weights, 0))
        tl.store(masses + num_chunks, tl.sum(tl.where(weights >= least_weight(tl.load(min_p + row)), weights, 0), 0))
        bounds = bounds_of(greatest, mean, deviation, temperature, first_z, step_z, NUM_BOUNDS)
        above = tl.sum((x[None, :] >= bounds[:, None]).to(tl.int32), 1)
        tl.store(counts + (row * NUM_BOUNDS + tl.arange(0, NUM_BOUNDS)) * num_chunks + chunk, above)


@triton.jit
def least_weight(min_p):
    """Return the least weight of a token that is likely enough."""
    return tl.ceil(min_p.to(tl.float64) * 17592186044416.0).to(tl.int64)
