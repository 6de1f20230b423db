"""Sample a step's rows on the device: only tokens come back, and the log probabilities that were asked for.

A row whose parameters are not plain (`SamplerState.plain_params`), or that logits processors change, is sampled by the
CPU's kernels: its logits alone come to the host. What rows have in common from step to step is kept on the device until
the samplers change: parameters, biases, and for penalties the tokens seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from pyagent import _rust
from pyagent.core.runners.batch import Batch, Likelihood
from pyagent.infrastructure.engine.runners.torch import sampling
from pyagent.infrastructure.engine.runners.torch.fused_sampling import FusedRows, SampleRows
from pyagent.infrastructure.engine.runners.torch.row_params import Params, RowGroup, to_device

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pyagent._rust import SamplerState


class Report(NamedTuple):
    """Log probabilities of rows: of the token sampled [r], and of the likeliest [r, K], of which `counts` count.

    `entropies` [r] count where `has_entropy`; there are none [0] where no row has.
    """

    rows: list[int]
    counts: list[int]
    has_entropy: list[bool]
    logprobs: Tensor
    top_tokens: Tensor
    top_logprobs: Tensor
    entropies: Tensor


@dataclass(slots=True)
class Sampled:
    """A step's tokens int64 [m] and `faults` as in `faults_of`; on the host, what the CPU's kernels found.

    The samplers of the rows in `counting` are to `observe` their tokens once these are known.
    """

    tokens: Tensor
    faults: Tensor
    report: Report | None
    vocab_size: int
    host_rows: Sequence[int] = ()
    counting: Sequence[int] = ()
    likelihoods: dict[int, Likelihood] = field(default_factory=dict[int, Likelihood])
    errors: dict[int, str] = field(default_factory=dict[int, str])


class Sampler:
    """Samples rows of `vocab_size` logits. One step after the other."""

    def __init__(self, vocab_size: int, device: torch.device, kernel: SampleRows | None = None) -> None:
        """By torch's operations, or by a kernel that computes the same."""
        self._vocab_size = vocab_size
        self._device = device
        self._plan = _Plan([], [], _Seen(vocab_size, device), kernel)

    def sample(self, logits: Tensor, batch: Batch) -> Sampled:
        """Sample a batch's rows of float32 logits [m, V], which are changed."""
        sequence_ids = batch.sequence_ids[: len(batch.samplers)]
        if batch.samplers != self._plan.samplers or sequence_ids != self._plan.sequence_ids:
            self._plan = self._plan.followed_by(batch.samplers, sequence_ids)
        plan = self._plan
        host_rows = list(range(len(batch.samplers))) if batch.process is not None else plan.host_rows
        host_logits = logits[host_rows].cpu() if host_rows else None
        tokens, faults = plan.sample(logits, batch)
        sampled = Sampled(tokens, faults, None, self._vocab_size, host_rows)
        if host_logits is not None:
            self._sample_on_host(host_logits, batch, sampled)
        sampled.counting = [row for row in plan.counting if batch.process is None]
        plan.note(sampled.tokens)
        sampled.report = plan.report(logits, sampled.tokens)
        return sampled

    def _sample_on_host(self, logits: Tensor, batch: Batch, sampled: Sampled) -> None:
        rows = sampled.host_rows
        tokens, likelihoods, errors = _rust.sample_logits(
            logits.numpy().data,
            [batch.samplers[row] for row in rows],
            [batch.steps[row] for row in rows],
            {place: batch.masks[row] for place, row in enumerate(rows) if row in batch.masks},
            process=batch.process,
            processed=batch.processed,
        )
        places = to_device(np.array(rows), self._device)
        sampled.tokens.index_copy_(0, places, to_device(np.array(tokens), self._device))
        sampled.faults.index_fill_(0, places, -1)
        sampled.likelihoods = {rows[place]: Likelihood(*found) for place, found in likelihoods.items()}
        sampled.errors = {rows[place]: text for place, text in errors.items()}


class _Plan:
    """How the rows of a batch with these samplers are sampled."""

    def __init__(
        self,
        samplers: list[SamplerState],
        sequence_ids: list[int],
        seen: _Seen,
        kernel: SampleRows | None,
        known: dict[int, Params | None] | None = None,
    ) -> None:
        self.samplers, self.sequence_ids = samplers, sequence_ids
        self._seen, self._kernel, known = seen, kernel, known or {}
        self._device, self._vocab_size = device, vocab_size = seen.device, seen.vocab_size
        self._known = {id(one): known[id(one)] if id(one) in known else _params(one, vocab_size) for one in samplers}
        params = {row: one for row, sampler in enumerate(samplers) if (one := self._known[id(sampler)]) is not None}
        self.host_rows = [row for row in range(len(samplers)) if row not in params]
        is_ranked = {row: 0 < one.top_k <= sampling.MOST_RANKED for row, one in params.items()}
        warm = [row for row, one in params.items() if one.temperature > 0] if kernel is None else []
        ranked, unranked = [row for row in warm if is_ranked[row]], [row for row in warm if not is_ranked[row]]
        self._ranked = RowGroup(ranked, [params[row] for row in ranked], device)
        self._unranked = RowGroup(unranked, [params[row] for row in unranked], device)
        biases = [(row, token, bias) for row, one in params.items() for token, bias in one.logit_bias]
        self._biases = to_device(np.array(biases, np.float64).reshape(-1, 3).T.copy(), device)
        allowed = {row: one.allowed_tokens for row, one in params.items() if one.allowed_tokens is not None}
        self._allowed = {row: _bits(tokens) for row, tokens in allowed.items()}
        self.counting = [row for row, one in params.items() if one.has_penalties]
        self._places = to_device(np.array(self.counting, np.int64), device)
        rates = [params[row][4:7] for row in self.counting]
        self._penalties = to_device(np.array(rates, np.float64).reshape(-1, 3).T.copy(), device).float()
        tallies = seen.tallies([(sequence_ids[row], samplers[row]) for row in self.counting])
        self._tallies = to_device(np.array(tallies, np.int64), device)
        of_rows = dict(zip(self.counting, tallies, strict=True))
        self._fused = None if kernel is None else FusedRows(kernel, len(samplers), params, of_rows, device)
        self._reported = [row for row, one in params.items() if one.num_logprobs]
        self._num_logprobs = [params[row].num_logprobs for row in self._reported]
        self._has_entropy = [params[row].has_entropy for row in self._reported]

    def followed_by(self, samplers: list[SamplerState], sequence_ids: list[int]) -> _Plan:
        """Return the plan of the next step's samplers."""
        return _Plan(list(samplers), sequence_ids, self._seen, self._kernel, self._known)

    def sample(self, logits: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """Adjust the logits; return a token for each row, any for the host's, and `faults_of`."""
        if self._biases.shape[1]:
            rows, tokens = self._biases[:2].long()
            logits.index_put_((rows, tokens), self._biases[2].float(), accumulate=True)
        masked, words = self._masks(batch.masks)
        if self._fused is not None:
            return self._fused.sample(logits, self._seen.counts, masked, words, batch.steps)
        if self.counting:
            penalised = sampling.penalise(
                logits.index_select(0, self._places), self._seen.rows(self._tallies), *self._penalties
            )
            logits.index_copy_(0, self._places, penalised)
        if masked:
            places = to_device(np.array(masked, np.int64), self._device)
            kept = sampling.allow_only(logits.index_select(0, places), to_device(words, self._device))
            logits.index_copy_(0, places, kept)
        return self.draw(logits, batch.steps), sampling.faults_of(logits)

    def _masks(self, masks: dict[int, bytes]) -> tuple[list[int], NDArray[np.int32]]:
        """Return the rows that may have some tokens only, and the bits of these [p, W]."""
        masks = {row: mask for row, mask in masks.items() if row not in self.host_rows}
        masked = sorted(masks.keys() | self._allowed)
        words = np.full((len(masked), -(-self._vocab_size // 32)), -1, np.int32)
        for row, bits in zip(masked, words.view(np.uint8), strict=True):
            for mask in (masks.get(row), self._allowed.get(row)):
                if mask is not None:
                    given = np.frombuffer(mask, np.uint8)[: len(bits)]
                    bits[: len(given)] &= given
                    bits[len(given) :] = 0
        return masked, words

    def draw(self, logits: Tensor, steps: Sequence[int]) -> Tensor:
        """Return a token for each row [m]; any for the host's."""
        tokens = logits.argmax(1)
        for group, is_ranked in ((self._ranked, True), (self._unranked, False)):
            if len(group.rows):
                uniform = to_device(group.uniform(steps), self._device)
                rows = logits if len(group.rows) == len(logits) else logits.index_select(0, group.places)
                if is_ranked:
                    found = sampling.sample_ranked(rows, group.cuts, uniform, min(group.most_kept, self._vocab_size))
                else:
                    found = sampling.sample_unranked(rows, group.cuts, uniform, has_top_k=group.has_top_k)
                tokens.index_copy_(0, group.places, found)
        return tokens

    def note(self, tokens: Tensor) -> None:
        """Count the tokens sampled."""
        if self.counting:
            self._seen.count(self._tallies, tokens.index_select(0, self._places))

    def report(self, logits: Tensor, tokens: Tensor) -> Report | None:
        """Return the log probabilities that are asked for, at temperature 1."""
        if not self._reported:
            return None
        places = to_device(np.array(self._reported, np.int64), self._device)
        rows = logits.index_select(0, places)
        log_sums = sampling.log_sums(rows)
        best = sampling.best_tokens(rows, min(max(self._num_logprobs), self._vocab_size))
        own = tokens.index_select(0, places)[:, None]
        logprobs = [(rows.gather(1, ids).double() - log_sums[:, None]).float() for ids in (own, best)]
        entropies = sampling.entropies(rows, log_sums) if any(self._has_entropy) else log_sums[:0]
        found = logprobs[0][:, 0], best, logprobs[1], entropies
        return Report(self._reported, self._num_logprobs, self._has_entropy, *found)


class _Seen:
    """The tokens seen by samplers with penalties, on the device: a tally of the vocabulary's length each."""

    def __init__(self, vocab_size: int, device: torch.device) -> None:
        self._tallies: dict[tuple[int, int], int] = {}
        self.counts = torch.zeros(0, vocab_size, dtype=torch.int32, device=device)
        self.vocab_size, self.device = vocab_size, device

    def tallies(self, wanted: Sequence[tuple[int, SamplerState]]) -> list[int]:
        """Give each sequence and its sampler a tally, a row of `counts`; those that had one keep it."""
        keys = [(sequence_id, id(sampler)) for sequence_id, sampler in wanted]
        self._tallies = {key: self._tallies[key] for key in keys if key in self._tallies}
        free = sorted(set(range(max(len(self.counts), len(wanted)))).difference(self._tallies.values()), reverse=True)
        if len(wanted) > len(self.counts):
            grown = self.counts.new_zeros(2 * len(wanted), self.counts.shape[1])
            grown[: len(self.counts)] = self.counts
            self.counts = grown
        for key, (_, sampler) in zip(keys, wanted, strict=True):
            if key not in self._tallies:
                self._tallies[key] = free.pop()
                self._fill(self._tallies[key], sampler.seen_tokens())
        return [self._tallies[key] for key in keys]

    def _fill(self, tally: int, seen: Sequence[tuple[int, int]]) -> None:
        self.counts[tally].zero_()
        if seen:
            tokens, counts = to_device(np.array(seen, np.int64).T.copy(), self.counts.device)
            self.counts[tally].index_copy_(0, tokens, (counts + sampling.SEEN).int())

    def rows(self, tallies: Tensor) -> Tensor:
        """Return tallies [p, V]."""
        return self.counts.index_select(0, tallies)

    def count(self, tallies: Tensor, tokens: Tensor) -> None:
        """Count a token [p] in each tally."""
        seen = self.counts[tallies, tokens]
        self.counts.index_put_((tallies, tokens), (seen | sampling.SEEN) + 1)


def _params(sampler: SamplerState, vocab_size: int) -> Params | None:
    """Return a sampler's parameters where the device can follow them."""
    found = sampler.plain_params()
    return None if found is None or vocab_size > sampling.MOST_VOCABULARY else Params(*found)


def _bits(tokens: Sequence[int]) -> bytes:
    bits = np.zeros(max(tokens, default=-1) + 1, np.uint8)
    bits[list(tokens)] = 1
    return np.packbits(bits, bitorder="little").tobytes()
