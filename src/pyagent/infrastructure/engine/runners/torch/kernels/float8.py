"""Numbers of 8 bits with a sign, four bits of exponent and three of fraction, as Triton's kernels write them."""

# pyright: reportMissingParameterType=false, reportUnknownParameterType=false

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def rounded_to_float8(x, ROUNDS: tl.constexpr):
    """Round to what FP8 has, for Triton's interpreter, which loses the carry into the next power of two."""
    if ROUNDS:
        bits = x.to(tl.int32, bitcast=True)
        normal = ((bits + 0x7FFFF + ((bits >> 20) & 1)) & -0x100000).to(tl.float32, bitcast=True)
        x = tl.where(tl.abs(x) < 0.015625, (x + 24576.0) - 24576.0, normal)
    return x
