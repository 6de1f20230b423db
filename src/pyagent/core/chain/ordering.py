"""Which links a request may go to, and in what order. Pure but for the turns that weighted neighbours take."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import groupby

from pyagent.core.chain.member import Member
from pyagent.core.messages import ChatRequest


def why_not(member: Member, request: ChatRequest, private: Sequence[str]) -> str:
    """Why a link may not see a request; empty when it may."""
    if absence := member.absence():
        return f"not found: {absence}"
    wants_several = request.n > 1 or request.best_of is not None or request.beam is not None
    if wants_several and not getattr(member.backend, "gives_several", False):
        return "it gives one answer to a request"
    if (request.assistant_prefix or request.answer_prefix) and not member.continues:
        return "it cannot go on from an answer's beginning"
    if request.private and not (member.scheme in private or member.name in private):
        return "the request is private, this link is not"
    unmet = next((condition.text for condition in member.settings.when if not condition.holds(request)), "")
    return f"only when {unmet}" if unmet else ""


@dataclass(slots=True)
class Weights:
    """Takes turns among neighbours with weights: each gets its share exactly over time (smooth weighted round robin).

    A conversation stays with one link while that is eligible, chosen by weighted rendezvous hashing, so that what the
    link computed for it is found again.
    """

    _name_to_owed: dict[str, float] = field(default_factory=dict[str, float])

    def order(self, members: Sequence[Member], session: str) -> list[Member]:
        """The members, each run of neighbours with weights put in the order to ask them."""
        if not any(member.settings.weight for member in members):
            return list(members)
        ordered: list[Member] = []
        for has_weight, group in groupby(members, key=lambda member: member.settings.weight is not None):
            run = list(group)
            ordered += self._drawn(run, session) if has_weight and len(run) > 1 else run
        return ordered

    def _drawn(self, run: list[Member], session: str) -> list[Member]:
        if session:
            return sorted(run, key=lambda member: _score(member, session))
        owed = self._name_to_owed
        for member in run:
            owed[member.name] = owed.get(member.name, 0.0) + (member.settings.weight or 0.0)
        ranked = sorted(run, key=lambda member: -owed[member.name])
        owed[ranked[0].name] -= sum(member.settings.weight or 0.0 for member in run)
        return ranked


def _score(member: Member, session: str) -> float:
    """Smallest for the link that a session belongs to; each gets sessions in proportion to its weight."""
    digest = blake2b(f"{session}\0{member.name}".encode(errors="surrogatepass"), digest_size=8).digest()
    part = (int.from_bytes(digest) + 1) / (2**64 + 1)
    return -math.log(part) / (member.settings.weight or 1.0)
