"""Sample a step's rows on the device: only tokens come back, and the log probabilities that were asked for.

A row whose parameters are not plain (`SamplerState.plain_params`), or that logits processors change, is sampled by the
CPU's kernels: its logits alone come to the host. What rows have in common from step to step is kept on the device until
the samplers change: parameters, biases, and for penalties the tokens seen. The row after a draft has seen those before
it; of what was sampled after drafts, only what is right is counted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from pyagent import _rust
from pyagent.core.runners.batch import Batch, Likelihood, StepOutput
from pyagent.infrastructure.engine.runners.torch import sampling
from pyagent.infrastructure.engine.runners.torch.draft_rows import by_rows, draft_tokens
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

    The batch's samplers in `counting` are to `observe` their tokens once these are known. All else is by rows.
    """

    tokens: Tensor
    faults: Tensor
    report: Report | None
    vocab_size: int
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
        plan, rows = self._plan, by_rows(batch)
        counting = [segment for segment in plan.counting if batch.process is None]
        if batch.num_drafts:
            plan = plan.verifying(rows, draft_tokens(batch))
        host_rows = list(range(len(rows.samplers))) if batch.process is not None else plan.host_rows
        host_logits = logits[host_rows].cpu() if host_rows else None
        tokens, faults = plan.sample(logits, rows)
        sampled = Sampled(tokens, faults, None, self._vocab_size, counting)
        if host_logits is not None:
            found = _sample_on_host(host_logits, host_rows, rows, batch)
            places = to_device(np.array(host_rows), self._device)
            on_host = np.array([found.tokens[row] for row in host_rows])
            sampled.tokens.index_copy_(0, places, to_device(on_host, self._device))
            sampled.faults.index_fill_(0, places, -1)
            sampled.likelihoods, sampled.errors = found.likelihoods, found.errors
        plan.note(sampled.tokens)
        sampled.report = plan.report(logits, sampled.tokens)
        return sampled


def _sample_on_host(logits: Tensor, host_rows: Sequence[int], rows: Batch, batch: Batch) -> StepOutput:
    """Sample rows by the CPU's kernels, of which `rows` has all: those after drafts where these are right.

    Samplers take in what they sample, so that a row comes after those before it. Tokens are for all rows, any for
    those that are not sampled.
    """
    output, drafts = StepOutput([0] * len(rows.samplers)), draft_tokens(batch)
    places = {row: place for place, row in enumerate(host_rows)}
    asked, process = [row for row in host_rows if drafts[row] is None], batch.process
    while asked:
        values = logits if len(asked) == len(logits) else logits[[places[row] for row in asked]]
        tokens, likelihoods, errors = _rust.sample_logits(
            values.numpy().data,
            [rows.samplers[row] for row in asked],
            [rows.steps[row] for row in asked],
            {place: rows.masks[row] for place, row in enumerate(asked) if row in rows.masks},
            process=process,
            processed=batch.processed if process is not None else frozenset(),
        )
        for row, token in zip(asked, tokens, strict=True):
            output.tokens[row] = token
        output.likelihoods |= {asked[place]: Likelihood(*found) for place, found in likelihoods.items()}
        output.errors |= {asked[place]: text for place, text in errors.items()}
        right = (row for row in asked if row not in output.errors and row + 1 < len(drafts))
        asked, process = [row + 1 for row in right if drafts[row + 1] == output.tokens[row]], None
    return output


class _Plan:
    """How the rows of a batch with these samplers are sampled."""

    def __init__(
        self,
        samplers: list[SamplerState],
        sequence_ids: list[int],
        seen: _Seen,
        kernel: SampleRows | None,
        known: dict[int, Params | None] | None = None,
        drafts: Sequence[int | None] = (),
    ) -> None:
        """With `drafts`, these are the rows of a step that verifies some: what each row computes, None for no draft."""
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
        first = [row for row in self.counting if not drafts or drafts[row] is None]
        tallies = seen.tallies([(sequence_ids[row], samplers[row]) for row in first])
        self._verified = None
        if drafts:
            self._verified = _Verified(seen, drafts, dict(zip(first, tallies, strict=True)), self.counting)
            tallies = self._verified.tallies
        self._tallies = to_device(np.array(tallies, np.int64), device)
        of_rows = dict(zip(self.counting, tallies, strict=True))
        self._fused = None if kernel is None else FusedRows(kernel, len(samplers), params, of_rows, device)
        self._reported = [row for row, one in params.items() if one.num_logprobs]
        self._num_logprobs = [params[row].num_logprobs for row in self._reported]
        self._has_entropy = [params[row].has_entropy for row in self._reported]

    def followed_by(self, samplers: list[SamplerState], sequence_ids: list[int]) -> _Plan:
        """Return the plan of the next step's samplers."""
        return _Plan(list(samplers), sequence_ids, self._seen, self._kernel, self._known)

    def verifying(self, rows: Batch, drafts: Sequence[int | None]) -> _Plan:
        """Return the plan of a step of these samplers and sequences that verifies drafts, by its rows."""
        ids = rows.sequence_ids[: len(rows.samplers)]
        return _Plan(rows.samplers, ids, self._seen, self._kernel, self._known, drafts)

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
            counted = tokens.index_select(0, self._places)
            if self._verified is None:
                self._seen.count(self._tallies, counted)
            else:
                self._seen.add(self._verified.counting(tokens), counted)

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


class _Verified:
    """Which tallies the rows in `counting` have in a step that verifies drafts.

    That of a row after drafts is its sequence's, with these: for this step alone, as what it samples is counted in its
    sequence's only where all of its drafts are right.
    """

    def __init__(
        self, seen: _Seen, drafts: Sequence[int | None], of_first: Mapping[int, int], counting: Sequence[int]
    ) -> None:
        """`of_first` are the tallies of sequences, by their first rows."""
        spare = seen.spare(len(counting) - len(of_first))
        self.tallies = [of_first[row] if row in of_first else spare.pop() for row in counting]
        firsts = [row if draft is None else -1 for row, draft in enumerate(drafts)]
        firsts = np.maximum.accumulate(np.array(firsts, np.int64))
        own = np.array([of_first[firsts[row]] for row in counting], np.int64)
        after = [
            (tally, row, first) for tally, row, first in zip(self.tallies, counting, firsts[counting], strict=True)
        ]
        copied = [(tally, of_first[first]) for tally, row, first in after if row != first]
        seen_drafts = [(tally, drafts[place]) for tally, row, first in after for place in range(first + 1, row + 1)]
        device = seen.device
        if copied:
            seen.copy(*to_device(np.array(copied, np.int64).T.copy(), device))
            seen.add(*to_device(np.array(seen_drafts, np.int64).T.copy(), device))
        self._drafts = to_device(np.array([-1 if draft is None else draft for draft in drafts], np.int64), device)
        self._firsts = to_device(firsts, device)
        self._places = to_device(np.array(counting, np.int64), device)
        self._own = to_device(np.array([self.tallies, own], np.int64), device)

    def counting(self, tokens: Tensor) -> Tensor:
        """Return the tallies in which rows' tokens count: after a wrong draft, in one that is no sequence's."""
        is_wrong = (self._drafts >= 0) & (tokens.roll(1) != self._drafts)
        num_wrong = is_wrong.cumsum(0)
        is_right = num_wrong == num_wrong.index_select(0, self._firsts)
        spare, own = self._own
        return torch.where(is_right.index_select(0, self._places), own, spare)


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
        free = self.spare(len(set(keys)) - len(self._tallies))
        for key, (_, sampler) in zip(keys, wanted, strict=True):
            if key not in self._tallies:
                self._tallies[key] = free.pop()
                self._fill(self._tallies[key], sampler.seen_tokens())
        return [self._tallies[key] for key in keys]

    def spare(self, number: int) -> list[int]:
        """Return so many tallies that are no sequence's, with anything in them."""
        least = number + len(self._tallies)
        if least > len(self.counts):
            grown = self.counts.new_zeros(2 * least, self.counts.shape[1])
            grown[: len(self.counts)] = self.counts
            self.counts = grown
        free = sorted(set(range(least)).difference(self._tallies.values()), reverse=True)
        return free[len(free) - number :]

    def copy(self, tallies: Tensor, of: Tensor) -> None:
        """Fill tallies with what is in others."""
        self.counts.index_copy_(0, tallies, self.rows(of))

    def add(self, tallies: Tensor, tokens: Tensor) -> None:
        """Count tokens, of which a tally may have several."""
        seen = self.counts[tallies, tokens] | sampling.SEEN
        self.counts.index_put_((tallies, tokens), seen)
        self.counts.index_put_((tallies, tokens), torch.ones_like(seen), accumulate=True)

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
