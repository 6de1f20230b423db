"""A layer's keys and values in pages: numbers as they are, or of 8 bits with a scale for each token and head.

FP8 is e4m3 times a power of two. A scale is of one token's key or value of one head, so that what is written later
changes nothing that was written before, and its exponent fits a byte: 2 bytes beside 2 D.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

FP8 = torch.float8_e4m3fn
_GREATEST = 448.0
_MOST_EXPONENT = 100


class PagedCache(NamedTuple):
    """Keys and values [num_pages, BLOCK_TOKENS, Hkv, D] each.

    Of FP8 numbers `exponents` int8 [num_pages, BLOCK_TOKENS, Hkv, 2] are those of the keys' and the values' scales.
    """

    keys: Tensor
    values: Tensor
    exponents: Tensor | None = None

    @classmethod
    def made(
        cls,
        shape: tuple[int, int, int, int],
        dtype: torch.dtype,
        make: Callable[[tuple[int, ...], torch.dtype], Tensor],
    ) -> PagedCache:
        """Return a cache of tensors that `make` makes of a shape and a type."""
        exponents = make((*shape[:3], 2), torch.int8) if dtype == FP8 else None
        return cls(make(shape, dtype), make(shape, dtype), exponents)

    @property
    def tensors(self) -> list[Tensor]:
        """What there is of them; the first dimension of each is pages."""
        return [tensor for tensor in self if tensor is not None]

    def read(self, pages: Tensor) -> tuple[Tensor, Tensor]:
        """Return the keys and values of pages [...] as [..., BLOCK_TOKENS, Hkv, D]; of FP8 as float32."""
        keys, values = self.keys[pages], self.values[pages]
        if self.exponents is None:
            return keys, values
        scales = power_of_2(self.exponents[pages])
        return keys.float() * scales[..., :1], values.float() * scales[..., 1:]

    def store(self, rows: Tensor, keys: Tensor, values: Tensor) -> None:
        """Write [T, Hkv, D] each to rows int64 [T], page * BLOCK_TOKENS + place in the page."""
        for place, (pages, new) in enumerate(((self.keys, keys), (self.values, values))):
            if self.exponents is None:
                pages.flatten(0, 1).index_copy_(0, rows, new.to(pages.dtype))
                continue
            numbers, exponents = quantised(new)
            pages.flatten(0, 1).view(torch.uint8).index_copy_(0, rows, numbers.view(torch.uint8))
            self.exponents.flatten(0, 1)[..., place].index_copy_(0, rows, exponents)


def quantised(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return FP8 numbers of x [..., D], and the exponents int8 [...] of the least scales at which all are finite."""
    exact = x.float()
    bits = (exact.abs().amax(-1) * (1 / _GREATEST)).view(torch.int32)
    exponents = (bits >> 23) - 127 + ((bits & 0x7FFFFF) != 0).int()  # log2, rounded up
    exponents = exponents.clamp(-_MOST_EXPONENT, _MOST_EXPONENT)
    return (exact * power_of_2(-exponents)[..., None]).to(FP8), exponents.to(torch.int8)


def power_of_2(exponents: Tensor) -> Tensor:
    """Return 2 to the power of whole numbers, exactly, float32."""
    return ((exponents.int() + 127) << 23).view(torch.float32)
