"""A token of each row, sampled without sorting the row: only the tokens among which the draw ends are sorted.

A ranking is looked into three times: where top-k ends, where top-p ends, and where the draw falls. Each time an
interval of logits is narrowed until few enough tokens are in it to be sorted in registers. The best some hundred, which
`rows.weigh` counted, are looked at first, and as a rule hold all three.
"""

# pyright: reportMissingParameterType=false, reportUnknownParameterType=false, reportGeneralTypeIssues=false
# A kernel's parameters are pointers, numbers and blocks of Triton's, which no annotation tells apart; by the types, a
# kernel that another calls never returns.

from __future__ import annotations

import triton
import triton.language as tl

from pyagent.infrastructure.engine.runners.torch.kernels.launch import configured
from pyagent.infrastructure.engine.runners.torch.kernels.rows import (
    bounds_of,
    key_of,
    logit_of,
    summary_of,
    weight_of,
)

DRAW_CONFIGS = [triton.Config({}, num_warps=num_warps) for num_warps in (8, 16, 4)]
_NO_TOKEN = tl.constexpr(1 << 30)
_LAST_ID = tl.constexpr((1 << 32) - 1)
_NOTHING = tl.constexpr(-0x7F800001 << 32)  # a logit of -infinity
_NUM_PIVOTS = tl.constexpr(4)


@triton.jit
def _gathered(row, scratch, vocab_size, low, high, skipped, NUM_SORTED: tl.constexpr, BLOCK: tl.constexpr):
    """Return the tokens with keys from `low` to `high`, best first, packed with their ids, and how many there are.

    The first `skipped` of them, by id, are left out, and what is too many.
    """
    num_found = low * 0
    for start in range(0, vocab_size, BLOCK):
        tokens = start + tl.arange(0, BLOCK)
        keys = key_of(tl.load(row + tokens, mask=tokens < vocab_size, other=float("-inf")))
        is_in = (keys >= low) & (keys <= high) & (tokens < vocab_size)
        places = num_found + tl.cumsum(is_in.to(tl.int32), 0) - 1 - skipped
        packed = (keys.to(tl.int64) << 32) + (tokens.to(tl.int64) ^ _LAST_ID)
        tl.store(scratch + places, packed, mask=is_in & (places >= 0) & (places < NUM_SORTED))
        num_found += tl.sum(is_in.to(tl.int32), 0)
    tl.debug_barrier()  # what one thread wrote another reads
    count = tl.minimum(num_found - skipped, NUM_SORTED)
    places = tl.arange(0, NUM_SORTED)
    packed = tl.load(scratch + places, mask=places < count, other=_NOTHING)
    tl.debug_barrier()  # and it is read before it is written again
    return tl.sort(packed, descending=True), count


@triton.jit
def _pivots(low, high, is_even):
    """Return keys [4] from `low` on that divide an interval: evenly by logits, or by keys, which ends for certain."""
    numbers = tl.arange(0, _NUM_PIVOTS)
    parts = numbers.to(tl.float32) / _NUM_PIVOTS
    by_logit = key_of(logit_of(low) * (1 - parts) + logit_of(high) * parts)
    quarter = (high.to(tl.int64) - low.to(tl.int64)) // _NUM_PIVOTS
    by_key = (low.to(tl.int64) + quarter * numbers).to(tl.int32)
    pivots = tl.where(is_even, by_key, by_logit)
    return tl.where(numbers == 0, low, tl.minimum(tl.maximum(pivots, low + 1), high))


@triton.jit
def _narrowed(
    row, vocab_size, greatest, temperature, target, by_count, low, high, count_above, mass_above,
    NUM_SORTED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Return an interval of keys with few tokens, or of one key, where the sum exceeds `target`; what is above it."""
    num_in = vocab_size
    pass_number = 0
    numbers = tl.arange(0, _NUM_PIVOTS)
    while (num_in > NUM_SORTED) & (low < high):
        pivots = _pivots(low, high, (pass_number % 2 == 1) | (high.to(tl.int64) - low.to(tl.int64) < 1024))
        counts = tl.zeros([_NUM_PIVOTS, BLOCK], tl.int32)
        masses = tl.zeros([_NUM_PIVOTS, BLOCK], tl.int64)
        for start in range(0, vocab_size, BLOCK):
            tokens = start + tl.arange(0, BLOCK)
            x = tl.load(row + tokens, mask=tokens < vocab_size, other=float("-inf"))
            keys = key_of(x)
            is_in = (keys[None, :] >= pivots[:, None]) & (keys <= high)[None, :] & (tokens < vocab_size)[None, :]
            counts += is_in.to(tl.int32)
            masses += tl.where(is_in, weight_of(x, greatest, temperature)[None, :], 0)
        counts_at = count_above + tl.sum(counts, 1).to(tl.int64)
        masses_at = mass_above + tl.sum(masses, 1)
        reached = tl.where(by_count, counts_at, masses_at)
        last = tl.maximum(tl.sum((reached > target).to(tl.int32), 0) - 1, 0)
        num_in = tl.sum(tl.where(numbers == last, counts_at, 0), 0)
        if last < _NUM_PIVOTS - 1:
            high = tl.sum(tl.where(numbers == last + 1, pivots, 0), 0) - 1
            count_above = tl.sum(tl.where(numbers == last + 1, counts_at, 0), 0)
            mass_above = tl.sum(tl.where(numbers == last + 1, masses_at, 0), 0)
        low = tl.sum(tl.where(numbers == last, pivots, 0), 0)
        num_in = (num_in - count_above).to(tl.int32)
        pass_number += 1
    return low, high, count_above, mass_above, num_in


@triton.jit
def _share(mass, part):
    """Return the least whole number that is this part of a mass, from 1 to the mass itself."""
    share = tl.ceil(mass.to(tl.float64) * part.to(tl.float64)).to(tl.int64)
    return tl.maximum(tl.minimum(tl.where(part >= 1, mass, share), mass), 1)


@triton.jit
def _sampled(
    row, scratch, vocab_size, greatest, temperature, top_k, top_p, uniform, mass, heavy, low, num_weighing,
    NUM_SORTED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Return the token of a row, whose best tokens from key `low` on are looked at first."""
    best = key_of(greatest)
    floor = key_of(tl.maximum(greatest - 32.0 * temperature, -3.4028234663852886e38))
    high = best
    places = tl.arange(0, NUM_SORTED)
    count_above = mass * 0
    mass_above = mass * 0
    skipped = low * 0
    count = low * 0
    num_in = low * 0
    packed = tl.zeros([NUM_SORTED], tl.int64)
    reached = tl.zeros([NUM_SORTED], tl.int64)
    kept = mass
    token = low * 0
    for look in range(4):  # at the best tokens; then for the ends of top-k and top-p, and the draw
        by_count = look == 1
        target = top_k.to(tl.int64) - 1
        is_needed = (look == 0) | (look == 3) | ((look == 1) & (top_k < num_weighing)) | ((look == 2) & (top_p < 1))
        if look == 2:
            target = _share(mass, top_p) - 1
        if look == 3:
            kept = tl.minimum(kept, heavy)
            target = tl.minimum((uniform * kept.to(tl.float64)).to(tl.int64), kept - 1)
        before = tl.where(by_count, count_above, mass_above)
        after = tl.where(by_count, count_above + count, tl.max(reached, 0))
        is_outside = (target < before) | (target >= after)
        if is_needed & ((look == 0) | is_outside):
            if look > 0:
                is_below = (target >= after) & (num_in <= NUM_SORTED)  # or it is among others that are all equal
                high = tl.where(is_below & (low <= best), low - 1, best)
                count_above = tl.where(is_below, count_above + count, 0)
                mass_above = tl.where(is_below, tl.max(reached, 0), 0)
                low, high, count_above, mass_above, num_in = _narrowed(
                    row, vocab_size, greatest, temperature, target, by_count, floor, high, count_above, mass_above,
                    NUM_SORTED, BLOCK,
                )  # fmt: skip
                skipped = low * 0
                if num_in > NUM_SORTED:  # all equal: counted by id
                    weight = weight_of(logit_of(low), greatest, temperature)
                    unit = tl.where(by_count, 1, tl.maximum(weight, 1))
                    skipped = ((target - tl.where(by_count, count_above, mass_above)) // unit).to(tl.int32)
                    count_above += skipped
                    mass_above += skipped * weight
            packed, count = _gathered(row, scratch, vocab_size, low, high, skipped, NUM_SORTED, BLOCK)
            weights = weight_of(logit_of((packed >> 32).to(tl.int32)), greatest, temperature)
            reached = mass_above + tl.cumsum(tl.where(places < count, weights, 0), 0)
        if is_needed & (look > 0):
            sums = tl.where(by_count, count_above + 1 + places, reached)
            place = tl.minimum(tl.sum((sums <= target).to(tl.int32), 0), NUM_SORTED - 1)
            kept = tl.sum(tl.where(places == place, reached, 0), 0)
            token = ((tl.sum(tl.where(places == place, packed, 0), 0) & _LAST_ID) ^ _LAST_ID).to(tl.int32)
            if look == 1:
                mass = kept
                heavy = tl.minimum(heavy, mass)
    return token


@configured(DRAW_CONFIGS, key=["NUM_SORTED", "BLOCK"])
@triton.jit(do_not_specialize=["vocab_size", "row_stride", "num_chunks"])
def draw(
    logits,
    temperatures,  # [m] float32; 0 for the best token
    top_k,  # [m] int32
    top_p,  # [m] float32
    uniform,  # [m] float64
    floats,
    ints,
    masses,
    counts,
    scratch,  # [m, NUM_SORTED] int64
    out_tokens,  # [m] int64
    faults,  # [m] int64
    vocab_size,
    row_stride,
    num_chunks,
    first_z,
    step_z,
    NUM_SORTED: tl.constexpr,
    NUM_BOUNDS: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """Store each row's token and fault, one program a row."""
    row = tl.program_id(0).to(tl.int64)
    greatest, token, fault, mean, deviation = summary_of(floats, ints, row, num_chunks, BLOCK_C)
    temperature = tl.load(temperatures + row)
    fault = tl.where(fault < _NO_TOKEN, fault, tl.where(greatest == float("-inf"), vocab_size, -1))
    tl.store(faults + row, fault.to(tl.int64))
    if (temperature > 0) & (fault < 0):
        chunks = tl.arange(0, BLOCK_C)
        is_chunk = chunks < num_chunks
        of_chunks = masses + row * 2 * num_chunks + chunks
        mass = tl.sum(tl.load(of_chunks, mask=is_chunk, other=0), 0)
        heavy = tl.sum(tl.load(of_chunks + num_chunks, mask=is_chunk, other=0), 0)
        numbers = tl.arange(0, NUM_BOUNDS)
        places = (row * NUM_BOUNDS + numbers)[:, None] * num_chunks + chunks[None, :]
        num_from = tl.sum(tl.load(counts + places, mask=is_chunk[None, :], other=0), 1)
        first = tl.min(tl.where(num_from <= NUM_SORTED, numbers, NUM_BOUNDS), 0)
        bounds = bounds_of(greatest, mean, deviation, temperature, first_z, step_z, NUM_BOUNDS)
        low = key_of(tl.sum(tl.where(numbers == first, bounds, 0.0), 0))
        low = tl.where(first < NUM_BOUNDS, low, key_of(greatest) + 1)  # none: they are too many alike
        num_weighing = tl.sum(tl.where(numbers == 0, num_from, 0), 0)
        token = _sampled(
            logits + row * row_stride, scratch + row * NUM_SORTED, vocab_size, greatest, temperature,
            tl.load(top_k + row), tl.load(top_p + row), tl.load(uniform + row), mass, heavy, low, num_weighing,
            NUM_SORTED, BLOCK,
        )  # fmt: skip
    tl.store(out_tokens + row, token.to(tl.int64))
