"""Ties: told as such, or broken by an order of the options that is fixed before anything is counted.

A random order is by the SHA-256 of `seed:option`, the smallest first: everyone can draw it again, on any machine.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from fractions import Fraction
from hashlib import sha256
from typing import Literal

TieRule = Literal["all", "order", "random"]


def tie_order(rule: TieRule, options: Sequence[str], seed: int) -> tuple[str, ...] | None:
    """Return the order in which tied options go, the best first; None when ties stay."""
    if rule == "all":
        return None
    if rule == "order":
        return tuple(options)
    return tuple(sorted(options, key=lambda option: sha256(f"{seed}:{option}".encode()).digest()))


def broken(tied: Collection[str], order: Sequence[str] | None) -> list[str]:
    """Return who of the tied is left: the first of the order, or all without one."""
    return [min(tied, key=order.index)] if order is not None and tied else list(tied)


def grouped(scores: Mapping[str, int | Fraction] | Mapping[str, Fraction]) -> list[list[str]]:
    """Return the options, the highest score first; those of one score are a group."""
    values = sorted(set(scores.values()), reverse=True)
    return [[name for name, score in scores.items() if score == value] for value in values]
