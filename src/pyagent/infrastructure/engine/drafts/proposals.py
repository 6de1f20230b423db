"""What may come next in a request's answer: copied from its own text, from a predicted one, or from earlier answers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pyagent.infrastructure.engine.drafts.acceptance import Acceptance, bucket_of
from pyagent.infrastructure.engine.drafts.texts import OwnText

if TYPE_CHECKING:
    from pyagent._rust import TokenIndex

_SEEN = 64
"""Tokens of a text's end that are looked for."""
_PREDICTED = "predicted"


@dataclass(frozen=True, slots=True)
class Proposal:
    """Tokens, and how likely each is sampled, with all before it; where they are from, and the class of their match."""

    tokens: list[int]
    chances: list[float]
    source: str
    bucket: int

    def after_first(self) -> Proposal:
        """Return what it proposes after its first token."""
        return Proposal(self.tokens[1:], self.chances[1:], self.source, self.bucket)

    def learn(self, acceptance: Acceptance, num_right: int, num_seen: int) -> None:
        """Record that of the `num_seen` first tokens so many were right, up to the first wrong one."""
        acceptance.note(self.source, self.bucket, num_right, min(num_right + 1, num_seen))


@dataclass(frozen=True, slots=True)
class DraftedTokens(Proposal):
    """What a draft model proposes; each token has a class of its own, by the probability that the model gave it."""

    buckets: list[int]

    def learn(self, acceptance: Acceptance, num_right: int, num_seen: int) -> None:
        """Record it by token."""
        for place, bucket in enumerate(self.buckets[: min(num_right + 1, num_seen)]):
            for kind in (bucket, self.bucket):
                acceptance.note(self.source, kind, int(place < num_right), 1)


@dataclass(slots=True)
class RequestDrafts:
    """What is known for a request's drafts: its texts, its record, and what was proposed last.

    Without `text` there was no memory for it, or the request has ended: nothing is proposed. Of its drafts
    `num_drafted` were verified, `num_accepted` of them right; `source` is where the last ones verified were from.
    """

    text: OwnText | None
    acceptance: Acceptance
    predicted: tuple[int, ...] = ()
    num_drafted: int = 0
    num_accepted: int = 0
    source: str = ""
    _expected: list[Proposal] = field(default_factory=list[Proposal], init=False)
    _num_then: int = field(default=0, init=False)
    _num_as_predicted: int = field(default=0, init=False)

    def propose(
        self, tokens: list[int], num_prompt_tokens: int, most: int, shared: TokenIndex | None
    ) -> Proposal | None:
        """Learn from what the log has more than before, and propose what may come next, at most so many tokens."""
        self._learn(tokens)
        text = self.text
        if text is None:
            return None
        text.read(tokens)
        found = self._from_prediction(tokens, num_prompt_tokens, most)
        found = found or self._found(text.index, tokens[-_SEEN:], most, shared)
        if found is not None:
            self.expect(found, len(tokens))
        return found

    def expect(self, proposal: Proposal, num_tokens: int) -> None:
        """Have what follows a log of so many tokens compared with a proposal, beside others of the same step."""
        self._expected.append(proposal)
        self._num_then = num_tokens

    def _learn(self, tokens: list[int]) -> None:
        for proposal in self._expected:
            new = tokens[self._num_then : self._num_then + len(proposal.tokens)]
            num_right = next((at for at, token in enumerate(new) if token != proposal.tokens[at]), len(new))
            proposal.learn(self.acceptance, num_right, len(new))
        self._expected.clear()

    def _from_prediction(self, tokens: list[int], num_prompt_tokens: int, most: int) -> Proposal | None:
        """Go on with the prediction while the answer is as predicted from its beginning."""
        if not self.predicted:
            return None
        num_output, begun = len(tokens) - num_prompt_tokens, self._num_as_predicted
        if tuple(tokens[num_prompt_tokens + begun :]) != self.predicted[begun:num_output]:
            self.predicted = ()
        self._num_as_predicted = num_output
        if num_output >= len(self.predicted):
            return None
        coming = list(self.predicted[num_output : num_output + most])
        return self._rated(coming, [1.0] * len(coming), _PREDICTED, 32)

    def _found(self, own: TokenIndex, end: list[int], most: int, shared: TokenIndex | None) -> Proposal | None:
        """Return what the longer match proposes, of equals that of the request's own text."""
        found, source = own.propose(end, most), "own"
        if shared is not None:
            other = shared.propose(end, most)
            found, source = (other, "shared") if other[2] > found[2] else (found, source)
        tokens, shares, num_matched = found
        return self._rated(tokens, shares, source, num_matched) if tokens else None

    def _rated(self, tokens: list[int], shares: list[float], source: str, num_matched: int) -> Proposal:
        bucket = bucket_of(num_matched)
        rate = self.acceptance.rate(source, bucket)
        chances = [share * rate**place for place, share in enumerate(shares, 1)]
        return Proposal(tokens, chances, source, bucket)
