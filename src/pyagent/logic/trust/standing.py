"""How far a speaker is trusted, turn by turn: a Beta distribution that forgets. Pure.

With the score s of a turn, from 0 to 1, and the share f of what was known that is kept:

    alpha = 1 + f (alpha - 1) + (1 - s  if s < 0.5 else 0)
    beta  = 1 + f (beta  - 1) + (4 s    if s >= 0.2 else 0)
    trust = alpha / (alpha + beta)

as in the beta reputation system (Josang and Ismail, 2002), with bad counting four times what good does. Both grow to at
most 1 + 1 / (1 - f) and 1 + 4 / (1 - f), so trust stays within (0, 1) and can always be lost, and won again.
"""

from __future__ import annotations

import msgspec

from pyagent.core.trust.findings import FLAGGED

KEPT = 0.9
_BAD_COUNTS = 4.0
_CLEAN_BELOW = 0.2


class Standing(msgspec.Struct, frozen=True):
    """What is known of a speaker. Of one that has not spoken: 1 and 1, a trust of a half."""

    speaker: str
    alpha: float = 1.0
    beta: float = 1.0
    num_turns: int = 0

    @property
    def trust(self) -> float:
        """The expected share of what it says that is in good faith."""
        return round(self.alpha / (self.alpha + self.beta), 3)

    def after(self, score: float, kept: float = KEPT) -> Standing:
        """Return what is known after one more turn of this score."""
        good = 1.0 - score if score < FLAGGED else 0.0
        bad = _BAD_COUNTS * score if score >= _CLEAN_BELOW else 0.0
        return Standing(
            speaker=self.speaker,
            alpha=1.0 + kept * (self.alpha - 1.0) + good,
            beta=1.0 + kept * (self.beta - 1.0) + bad,
            num_turns=self.num_turns + 1,
        )
