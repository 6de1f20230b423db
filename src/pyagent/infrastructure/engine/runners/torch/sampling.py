"""From rows of logits to tokens on the device, by the CPU kernels' rules and with their random numbers.

A token weighs `e^((logit - greatest) / temperature)`, as a whole number of `2**-44`: sums of whole numbers are the same
in any order, so that a sample depends on its own row alone, not on the batch or on how a kernel adds up. Tokens rank by
logit, ties by the lower id; filters cut the ranking, and the sample is the first token at which the weights exceed
`uniform` times what is kept. Nothing here waits for the device.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

WEIGHT_BITS = 44
"""With vocabularies of up to `2**18` tokens, no sum of weights exceeds 63 bits."""
MOST_VOCABULARY = 1 << 18
MOST_RANKED = 256
"""Where all rows keep so few tokens (top-k), these are ranked; else none are."""
_DIGITS = ((21, 11), (10, 11), (0, 10))
"""The shift and bits of a 32-bit rank's digits, the first first."""


class Cuts(NamedTuple):
    """What is kept of each row, [m] each: float32 `temperature` above 0, `top_p`, `min_p`; int64 `top_k` from 1 on."""

    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    min_p: Tensor


class Adjusting(NamedTuple):
    """What is changed of m rows before a draw.

    Penalties [m, 3] float32 (repetition, frequency, presence) for what is `seen` (int32 [t, V], as `penalise` has it)
    in the tally of each row, int32 [m], below 0 for none; and the bits of allowed tokens, `words` int32 [p, W], of
    which `mask_rows` int32 [m] has each row's, below 0 for none.
    """

    penalties: Tensor
    tallies: Tensor
    seen: Tensor
    mask_rows: Tensor
    words: Tensor


class _Found(NamedTuple):
    """A token of each row's ranking: its id, and the sum of the weights up to its own, that included."""

    token: Tensor
    reached: Tensor


def weights_of(logits: Tensor, temperature: Tensor) -> Tensor:
    """Return the weights int64 [m, V] of rows that have a greatest logit; the best token's is `2**WEIGHT_BITS`."""
    below = (logits - logits.amax(1, keepdim=True)) / temperature[:, None]
    return below.exp().mul_(2.0**WEIGHT_BITS).round_().long()


def ranks_of(logits: Tensor) -> Tensor:
    """Return int64 [m, V] numbers of 32 bits, the greater the higher the logit."""
    bits = (logits + 0.0).view(torch.int32)  # -0 and 0 are equal logits
    return torch.where(bits < 0, ~bits, bits | -(1 << 31)).long() & 0xFFFFFFFF


def sample_ranked(logits: Tensor, cuts: Cuts, uniform: Tensor, most_kept: int) -> Tensor:
    """Return tokens int64 [m], of rows that keep `most_kept` tokens at most."""
    order = best_tokens(logits, most_kept)  # [m, K]
    weights = weights_of(logits, cuts.temperature).gather(1, order)
    places = torch.arange(most_kept, device=logits.device)
    weights = weights.masked_fill(places >= cuts.top_k[:, None], 0)
    reached = weights.cumsum(1)
    mass = reached[:, -1]
    is_last = reached >= _share(mass, cuts.top_p)[:, None]
    kept = reached.gather(1, is_last.int().argmax(1, keepdim=True))[:, 0]
    kept = torch.minimum(kept, _heavy(weights, cuts.min_p))
    place = (reached > _target(uniform, kept)[:, None]).int().argmax(1, keepdim=True)
    return order.gather(1, place)[:, 0]


def sample_unranked(logits: Tensor, cuts: Cuts, uniform: Tensor, *, has_top_k: bool) -> Tensor:
    """Return tokens int64 [m], of rows that may keep all. Digit by digit of the ranks, instead of sorting."""
    ranks, weights = ranks_of(logits), weights_of(logits, cuts.temperature)
    if has_top_k:
        last = _find(ranks, torch.ones_like(weights), cuts.top_k.clamp(max=logits.shape[1]) - 1).token
        ids = torch.arange(logits.shape[1], device=logits.device)
        last_rank = ranks.gather(1, last[:, None])
        is_kept = (ranks > last_rank) | ((ranks == last_rank) & (ids <= last[:, None]))
        weights = weights.masked_fill(~is_kept, 0)
    mass = weights.sum(1)
    kept = _find(ranks, weights, _share(mass, cuts.top_p) - 1).reached
    kept = torch.minimum(kept, _heavy(weights, cuts.min_p))
    return _find(ranks, weights, _target(uniform, kept)).token


def best_tokens(logits: Tensor, count: int) -> Tensor:
    """Return the ids int64 [m, count] of the best tokens, best first, of equals the lower id."""
    last = (1 << 31) - 1
    ids = torch.arange(logits.shape[1], device=logits.device)
    keys = (ranks_of(logits) - (1 << 31) << 31) + (last - ids)  # all different
    return last - (keys.topk(count, 1).values & last)


def log_sums(logits: Tensor) -> Tensor:
    """Return float64 [m]: the logarithm of the sum of `e^logit`, of rows that have a greatest logit.

    A sum of whole numbers, the same in any order: to 2^-27, and a row's does not depend on the rows beside it.
    """
    sums = weights_of(logits, logits.new_ones(len(logits))).sum(1).double() * 2.0**-WEIGHT_BITS
    return sums.log() + logits.amax(1).double()


def entropies(logits: Tensor, log_sums: Tensor) -> Tensor:
    """Return float64 [m]: the entropy in nats of rows that have a greatest logit, by the `log_sums` of these."""
    greatest = logits.amax(1, keepdim=True)
    # The two numbers are large where the logits are, their difference is not.
    log_masses = (log_sums[:, None] - greatest.double()).float()
    return torch.special.entr((logits - greatest - log_masses).exp_()).sum(1, dtype=torch.float64)


def faults_of(logits: Tensor) -> Tensor:
    """Return int64 [m]: -1 for rows that can be sampled, else a token that has no number, or V without any."""
    greatest, token = logits.max(1)  # NaN counts as the greatest
    is_broken = greatest.isnan() | (greatest == torch.inf)
    return torch.where(greatest == -torch.inf, logits.shape[1], torch.where(is_broken, token, -1))


def penalise(logits: Tensor, seen: Tensor, repetition: Tensor, frequency: Tensor, presence: Tensor) -> Tensor:
    """Return rows [p, V] with penalties [p] for what was `seen` [p, V]: times in the output, plus `SEEN`."""
    counts = (seen & (SEEN - 1)).float()
    repeated = torch.where(logits > 0, logits / repetition[:, None], logits * repetition[:, None])
    logits = torch.where(seen > 0, repeated, logits)
    logits = logits - frequency[:, None] * counts
    return logits - presence[:, None] * (counts > 0)


SEEN = 1 << 24
"""In what was seen: the token is in prompt or output."""


def allow_only(logits: Tensor, words: Tensor) -> Tensor:
    """Return rows [p, V] without the tokens whose bit is not set in `words` int32 [p, W]; those beyond are excluded."""
    bits = torch.arange(32, device=logits.device, dtype=torch.int32)
    is_allowed = (words[:, :, None] >> bits & 1).bool().flatten(1)[:, : logits.shape[1]]
    return logits.masked_fill(~is_allowed, -torch.inf)


def _share(mass: Tensor, part: Tensor) -> Tensor:
    """Return the least whole number that is this part of each mass, from 1 to the mass itself."""
    share = (mass.double() * part.double()).ceil().long()
    return torch.minimum(torch.where(part >= 1, mass, share), mass).clamp(min=1)


def _heavy(weights: Tensor, min_p: Tensor) -> Tensor:
    """Return the mass of the tokens that are at least `min_p` times as likely as the likeliest."""
    least = (min_p.double() * 2.0**WEIGHT_BITS).ceil().long()
    return weights.masked_fill(weights < least[:, None], 0).sum(1)


def _target(uniform: Tensor, kept: Tensor) -> Tensor:
    return torch.minimum((uniform * kept.double()).long(), kept - 1)


def _find(ranks: Tensor, weights: Tensor, target: Tensor) -> _Found:
    """Return the first token of each ranking at which the sum of the weights exceeds `target`, which is below it."""
    prefix, left = torch.zeros_like(target), target
    for shift, num_bits in _DIGITS:
        num_digits = 1 << num_bits
        is_within = ranks >> (shift + num_bits) == prefix[:, None]
        digits = (ranks >> shift) & (num_digits - 1)
        masses = weights.new_zeros(len(weights), num_digits).scatter_add_(1, digits, weights.masked_fill(~is_within, 0))
        reached = masses.flip(1).cumsum(1)
        passed = (reached <= left[:, None]).sum(1, keepdim=True)
        before = reached.gather(1, (passed - 1).clamp(min=0)).masked_fill(passed == 0, 0)
        left = left - before[:, 0]
        prefix = (prefix << num_bits) + (num_digits - 1 - passed[:, 0])
    is_equal = (ranks == prefix[:, None]) & (weights > 0)
    weight = weights.masked_fill(~is_equal, 0).amax(1)
    number = left // weight.clamp(min=1)  # of those with equal logits
    token = (is_equal.cumsum(1) > number[:, None]).int().argmax(1)
    return _Found(token, target - left + (number + 1) * weight)
