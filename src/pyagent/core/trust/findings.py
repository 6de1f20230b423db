"""What a scan finds: each sign with its quote and place, how much it weighs, and what all together come to. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import msgspec

Level = Literal["none", "low", "medium", "high"]
"""How bad it is: below 0.2, 0.5 and 0.8, and from there on. From `medium` on a text is flagged."""
Group = Literal["injection", "manipulation"]

FLAGGED = 0.5
MAX_QUOTE_CHARACTERS = 120
INJECTION: dict[str, str] = {
    "override": "tells a model to leave its instructions",
    "role": "gives a model another role, or frees it of rules",
    "reveal": "asks for a model's instructions",
    "address": "speaks to a model from within data",
    "secrecy": "asks a model to keep something from its user",
    "command": "tells a model to use tools or to run programs",
    "steering": "tells a model what to say or how to judge",
    "exfiltration": "leads data out by a link, an image or a message",
    "marker": "has role markers or template tokens as a prompt has them",
    "tool-call": "imitates a call of a tool",
    "hidden": "has characters that people do not see",
    "lookalike": "has letters of other alphabets that look alike",
    "encoded": "has instructions in an encoding",
    "concealed": "is written so that people do not see it",
}
MANIPULATION: dict[str, str] = {
    "urgency": "leaves no time to think",
    "scarcity": "says that little is left",
    "authority": "claims an authority",
    "threat": "threatens with a loss or harm",
    "guilt": "makes the reader guilty",
    "flattery": "flatters",
    "isolation": "keeps the reader from asking others",
    "consensus": "says that everybody does it",
    "reward": "promises what is too good",
    "request": "asks for money, codes or access",
}


class Finding(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One sign: characters `start` to `end` of the text, `quote`; `weight` is from 0 to 1.

    `turn` is the number of the message in a conversation, from 1. `inside` names the encoding that it was found in.
    """

    kind: str
    weight: float
    start: int
    end: int
    quote: str
    why: str
    inside: str = ""
    turn: int | None = None

    @property
    def group(self) -> Group:
        """Whether it is to steer a model or to press a person."""
        return "injection" if self.kind in INJECTION else "manipulation"


class Scan(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The findings of one text, the heaviest first, and the scores they come to, from 0 to 1."""

    injection: float = 0.0
    manipulation: float = 0.0
    findings: tuple[Finding, ...] = ()

    @property
    def score(self) -> float:
        """The higher score of the two."""
        return max(self.injection, self.manipulation)

    @property
    def level(self) -> Level:
        """How bad the higher score is."""
        return level_of(self.score)


def level_of(score: float) -> Level:
    """Return the level of a score."""
    if score < 0.2:
        return "none"
    if score < FLAGGED:
        return "low"
    return "medium" if score < 0.8 else "high"


def score_of(findings: Iterable[Finding]) -> float:
    """Return 1 - product of (1 - w) over the heaviest finding of each kind, and the next other one at half its weight.

    So kinds add up, and repetition does not.
    """
    kind_to_weights: dict[str, dict[str, float]] = {}
    for finding in findings:
        weights = kind_to_weights.setdefault(finding.kind, {})
        said = finding.quote.lower()
        weights[said] = max(finding.weight, weights.get(said, 0.0))
    left = 1.0
    for weights in kind_to_weights.values():
        first, second, *_ = [*sorted(weights.values(), reverse=True), 0.0]
        left *= (1.0 - first) * (1.0 - second / 2)
    return round(1.0 - left, 3)


def scan_of(findings: Iterable[Finding]) -> Scan:
    """Return the scan that findings come to."""
    ordered = sorted(findings, key=lambda finding: (-finding.weight, finding.start))
    return Scan(
        injection=score_of(finding for finding in ordered if finding.group == "injection"),
        manipulation=score_of(finding for finding in ordered if finding.group == "manipulation"),
        findings=tuple(ordered),
    )


def why_of(kind: str) -> str:
    """Return what a kind of sign is, for people."""
    return INJECTION.get(kind) or MANIPULATION[kind]


def quoted(text: str, start: int, end: int) -> str:
    """Return a piece of a text on one line, with what cannot be seen written out."""
    piece = text[start : min(end, start + MAX_QUOTE_CHARACTERS)]
    shown = (
        piece
        if piece.isprintable()
        else "".join(character if character.isprintable() else ascii(character)[1:-1] for character in piece)
    )
    return shown + ("..." if end - start > MAX_QUOTE_CHARACTERS else "")
