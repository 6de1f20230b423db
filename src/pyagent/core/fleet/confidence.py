"""How sure an answer is: by its words, by the model's probabilities, by how far several answers agree. Pure.

`Confidence` is what was seen, `ConfidencePolicy` says what of it is doubt, and what is done about it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import msgspec

from pyagent.core.fleet.doubt_words import doubt_words
from pyagent.core.messages import TokenLogprob

DoubtAct = Literal["off", "mark", "retry", "escalate"]
"""What is done about a doubtful answer: nothing is even looked at; it is said; it is asked again; another model is."""
TOP_LOGPROBS = 20
"""Likeliest tokens that are asked for at each place: from a backend that does not tell the entropy, a bound of it."""


_MOST_ENTROPY = 20.0
"""No vocabulary has e^20 tokens; what a peer tells may be anything."""


class Confidence(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What an answer shows of how sure it is. What could not be seen is None.

    `phrases` of doubt, `num_strong` of them strong; `mean_logprob` of its tokens in nats, `entropy` on average over
    them: as the backend told it, or, where `is_entropy_bound`, at least so much, by the likeliest tokens and the rest
    as one; `agreement`, the part of several answers that say the same.
    """

    phrases: tuple[str, ...] = ()
    num_strong: int = 0
    num_words: int = 0
    mean_logprob: float | None = None
    entropy: float | None = None
    is_entropy_bound: bool = False
    agreement: float | None = None


class ConfidencePolicy(msgspec.Struct, frozen=True, kw_only=True):
    """When an answer is doubtful, and what to do then.

    One strong phrase is doubt, and more than `max_phrases` others for 100 words; tokens of less probability than
    `min_probability` on average, an entropy above `max_entropy`, an agreement below `min_agreement`.
    With `asks_logprobs` the model is asked for probabilities.
    """

    act: DoubtAct = "mark"
    languages: tuple[str, ...] = ("en",)
    max_phrases: float = 2.0
    min_probability: float = 0.35
    max_entropy: float = 2.0
    min_agreement: float = 0.5
    asks_logprobs: bool = False

    def doubt(self, seen: Confidence | None) -> str:
        """Return why an answer is doubtful, in words; empty when it is not."""
        if seen is None or self.act == "off":
            return ""
        told = ", ".join(repr(phrase) for phrase in dict.fromkeys(seen.phrases[:5]))
        if seen.num_strong or 100 * len(seen.phrases) > self.max_phrases * max(1, seen.num_words):
            return f"it says {told}"
        if seen.agreement is not None and seen.agreement < self.min_agreement:
            return f"{seen.agreement:.0%} of the answers agree"
        if seen.mean_logprob is not None and math.exp(seen.mean_logprob) < self.min_probability:
            return f"its tokens have a probability of {math.exp(seen.mean_logprob):.0%} on average"
        if seen.entropy is not None and seen.entropy > self.max_entropy:
            least = "at least " if seen.is_entropy_bound else ""
            return f"the model hesitates between {least}{math.exp(seen.entropy):.0f} tokens on average"
        return ""

    def seen_in(self, text: str, *, is_prose: bool, tokens: TokenStats) -> Confidence:
        """Return what an answer shows; words count in prose only, and not in JSON or one of several choices."""
        words = doubt_words(text, self.languages) if is_prose else doubt_words("")
        return Confidence(
            phrases=words.phrases,
            num_strong=words.num_strong,
            num_words=words.num_words,
            mean_logprob=tokens.mean_logprob,
            entropy=tokens.mean_entropy,
            is_entropy_bound=tokens.is_bounded,
        )


class TokenStats(msgspec.Struct):
    """Sums over the tokens of an answer, as they come."""

    num_tokens: int = 0
    logprobs: float = 0.0
    num_entropies: int = 0
    entropies: float = 0.0
    is_bounded: bool = False

    def add(self, entries: Sequence[TokenLogprob]) -> None:
        """Count tokens; those without a number are passed over."""
        for entry in entries:
            if entry.logprob is not None and math.isfinite(entry.logprob):
                self.num_tokens += 1
                self.logprobs += min(0.0, entry.logprob)  # some servers' are above, and of one far above is no exp
            if entry.entropy is not None and math.isfinite(entry.entropy):
                self.num_entropies += 1
                self.entropies += min(max(0.0, entry.entropy), _MOST_ENTROPY)
            elif entry.top_logprobs:
                self.num_entropies += 1
                self.entropies += entropy([logprob for _, logprob in entry.top_logprobs])
                self.is_bounded = True

    @property
    def mean_logprob(self) -> float | None:
        """The tokens' log probability on average."""
        return self.logprobs / self.num_tokens if self.num_tokens else None

    @property
    def mean_entropy(self) -> float | None:
        """The places' entropy on average."""
        return self.entropies / self.num_entropies if self.num_entropies else None


def entropy(logprobs: Sequence[float]) -> float:
    """Return the entropy, in nats, of tokens with these log probabilities and of all the rest as one token.

    Of all tokens it is exact; of some it is at most that of all.
    """
    known = [min(0.0, logprob) for logprob in logprobs if math.isfinite(logprob)]
    probabilities = [math.exp(logprob) for logprob in known]
    rest = 1.0 - math.fsum(probabilities)
    total = -math.fsum(one * logprob for one, logprob in zip(probabilities, known, strict=True))
    return max(0.0, total - (rest * math.log(rest) if rest > 1e-12 else 0.0))


def agreement(votes: Sequence[int]) -> float:
    """Return the part of answers that say what most say."""
    return max(votes) / sum(votes)
