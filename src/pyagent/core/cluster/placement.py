"""Which node loads a model that too few nodes have, and when: pure functions of what the nodes tell of themselves.

Every node reckons alone and does only its own part. The nodes that may load a model are ranked by weighted rendezvous
hashing, so that all who know the same nodes agree, and who is late to hear of a load does not load too: the one that
loaded was ranked before it. Nothing is unloaded here, in a partition neither: a copy too many is what the engine gives
up when it needs the memory. So a cluster comes to rest: each load makes one more copy, and a node begins each model at
most once in `REST_SECONDS`.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence

import msgspec

MAX_WISHES = 32
MAX_COPIES = 1000
REST_SECONDS = 300.0
"""How long a node leaves a model to others once it has begun to load it, whether it failed or was unloaded again."""
UNHEARD_SECONDS = 30.0
"""How long a node plans nothing for a peer's sake that has not told yet what it has."""


class Holder(msgspec.Struct, frozen=True, kw_only=True):
    """A living node that takes requests: the models it has loaded, is loading, and could load.

    `memory_bytes` is what its engine may use, in all; 0 where that is not known. One that is not `is_heard` has told
    nothing yet: it may have anything.
    """

    id: str
    loaded: frozenset[str] = frozenset()
    loading: frozenset[str] = frozenset()
    placeable: frozenset[str] = frozenset()
    memory_bytes: int = 0
    is_heard: bool = True

    @property
    def coming(self) -> frozenset[str]:
        """The models it has, or will have."""
        return self.loaded | self.loading


def wanted_copies(wishes: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Return how many nodes shall have each model: of differing wishes the largest holds."""
    wanted: dict[str, int] = {}
    for wish in wishes:
        for model, copies in wish.items():
            wanted[model] = max(wanted.get(model, 0), copies)
    return wanted


def plan(me: str, holders: Iterable[Holder], wanted: Mapping[str, int]) -> list[str]:
    """Return the models that fall to this node, by name; none while it loads one."""
    by_id = {holder.id: holder for holder in holders}
    own = by_id.get(me)
    if own is None or own.loading:
        return []
    return [model for model in sorted(own.placeable) if me in _takers(model, by_id, wanted)]


class Reconciler:
    """When a node does its part of the plan: once a model has fallen to it for a while, all others being heard."""

    def __init__(self, me: str, delay_seconds: float) -> None:
        """`me` is the node's id; it acts on what has been so for `delay_seconds`."""
        self._me = me
        self._delay_seconds = delay_seconds
        self._due_since: dict[str, float] = {}
        self._unheard_since: dict[str, float] = {}
        self._rests_until: dict[str, float] = {}

    def resting(self, now: float) -> set[str]:
        """Return the models that this node has begun lately, and leaves to others."""
        self._rests_until = {model: until for model, until in self._rests_until.items() if until > now}
        return set(self._rests_until)

    def begin(self, now: float, holders: Sequence[Holder], wanted: Mapping[str, int]) -> str:
        """Return the model that the node shall begin to load, mostly none: the one that waits longest."""
        due = [] if self._awaits_word(now, holders) else plan(self._me, holders, wanted)
        resting = self.resting(now)
        self._due_since = {model: self._due_since.get(model, now) for model in due if model not in resting}
        model = min(self._due_since, key=self._due_since.__getitem__, default="")
        if not model or now - self._due_since[model] < self._delay_seconds:
            return ""
        self._due_since.clear()
        self._rests_until[model] = now + REST_SECONDS
        return model

    def _awaits_word(self, now: float, holders: Sequence[Holder]) -> bool:
        unheard = [holder.id for holder in holders if not holder.is_heard]
        self._unheard_since = {peer: self._unheard_since.get(peer, now) for peer in unheard}
        return any(now - since < UNHEARD_SECONDS for since in self._unheard_since.values())


def _takers(model: str, by_id: Mapping[str, Holder], wanted: Mapping[str, int]) -> list[str]:
    """Return the nodes that are to load a model, as many as copies are missing."""
    missing = wanted.get(model, 0) - sum(model in holder.coming for holder in by_id.values())
    able = [holder for holder in by_id.values() if model in holder.placeable and model not in holder.coming]
    ranked = sorted(able, key=lambda holder: (-_score(model, holder), holder.id))
    return [holder.id for holder in ranked[: max(0, missing)]]


def _score(model: str, holder: Holder) -> float:
    """Return a node's rank for a model: it is the first for a share of all models that grows with its memory."""
    digest = hashlib.blake2b(f"{model}\0{holder.id}".encode(), digest_size=8).digest()
    return max(1, holder.memory_bytes) / -math.log((int.from_bytes(digest) + 0.5) / 2**64)
