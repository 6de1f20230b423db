"""Which node loads a model that too few nodes have, and when: pure functions of what the nodes tell of themselves.

Every node reckons alone and does only its own part. The nodes that may load a model are ranked by weighted rendezvous
hashing, so that all who know the same nodes agree, and who is late to hear of a load does not load too: the one that
loaded was ranked before it. Nothing is unloaded here, in a partition neither: a copy too many is what the engine gives
up when it needs the memory. So a cluster comes to rest: each load makes one more copy, and a node begins each model at
most once in `REST_SECONDS`, more seldom each time that a load did not end well.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec

MAX_WISHES = 32
MAX_COPIES = 1000
MAX_NAME = 200
REST_SECONDS = 300.0
"""How long a node leaves a model to others once it has begun to load it, whether it failed or was unloaded again."""
LONGEST_REST_SECONDS = 3600.0
"""Each load that did not end well doubles the rest after the next one, up to this."""
UNHEARD_SECONDS = 30.0
"""How long a node begins nothing for a peer's sake that has not told yet what it has."""
LATE_SECONDS = 60.0
"""A node that could load a model, and has not begun so long after this one's delay, is passed by."""


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


class Begun(msgspec.Struct, frozen=True):
    """A model that a node has begun to load and does not have: how often, and until when it leaves it to others."""

    times: int
    rests_until: float


def is_wish(model: str) -> bool:
    """Whether a name may be that of a model to be placed: logs and metrics show it as it is."""
    return 0 < len(model) <= MAX_NAME and model.isprintable()


def wanted_copies(wishes: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Return how many nodes shall have each model: of differing wishes the largest holds."""
    wanted: dict[str, int] = {}
    for wish in wishes:
        for model, copies in wish.items():
            wanted[model] = max(wanted.get(model, 0), copies)
    return wanted


def plan(
    me: str, holders: Iterable[Holder], wanted: Mapping[str, int], late: Collection[tuple[str, str]] = ()
) -> list[str]:
    """Return the models that fall to this node, by name; none while it loads one.

    `late` are models and the nodes that are passed by for them.
    """
    by_id = {holder.id: holder for holder in holders}
    own = by_id.get(me)
    if own is None or own.loading:
        return []
    return [model for model in sorted(own.placeable) if me in _takers(model, by_id, wanted, late)]


class Reconciler:
    """When a node does its part of the plan: once a model has fallen to it for a while, all others being heard."""

    def __init__(self, me: str, delay_seconds: float, begun: Mapping[str, Begun] | None = None) -> None:
        """`me` is the node's id; it acts on what has been so for `delay_seconds`.

        `begun` is what it had begun before it was started, and not ended well.
        """
        self._me = me
        self._delay_seconds = delay_seconds
        self._due_since: dict[str, float] = {}
        self._unheard_since: dict[str, float] = {}
        self._taking_since: dict[tuple[str, str], float] = {}
        self._begun: dict[str, Begun] = dict(begun or {})

    def resting(self, now: float) -> set[str]:
        """Return the models that this node has begun lately, and leaves to others."""
        return {model for model, begun in self._begun.items() if begun.rests_until > now}

    def begun(self) -> dict[str, Begun]:
        """Return the models that were begun, and have not been seen loaded since."""
        return {model: begun for model, begun in self._begun.items() if begun.times}

    def forget(self, model: str) -> None:
        """Take a load as not begun: nothing is known of how it would have ended."""
        self._begun.pop(model, None)

    def note_loaded(self, now: float, models: Iterable[str]) -> None:
        """Note that loads ended well, for a client, too: what is unloaded again rests as after a first load."""
        for model in self._begun.keys() & set(models):
            self._begun[model] = Begun(0, min(self._begun[model].rests_until, now + REST_SECONDS))

    def begin(self, now: float, holders: Sequence[Holder], wanted: Mapping[str, int]) -> str:
        """Return the model that the node shall begin to load, mostly none: the one that waits longest."""
        self.note_loaded(now, next((holder.loaded for holder in holders if holder.id == self._me), ()))
        due = plan(self._me, holders, wanted, self._late(now, holders, wanted))
        resting = self.resting(now)
        self._due_since = {model: self._due_since.get(model, now) for model in due if model not in resting}
        model = min(self._due_since, key=self._due_since.__getitem__, default="")
        if self._awaits_word(now, holders) or not model or now - self._due_since[model] < self._delay_seconds:
            return ""
        self._due_since.clear()
        times = self._begun[model].times if model in self._begun else 0
        rest_seconds = min(REST_SECONDS * 2.0 ** min(times, 16), LONGEST_REST_SECONDS)
        self._begun[model] = Begun(times + 1, now + rest_seconds)
        return model

    def _awaits_word(self, now: float, holders: Sequence[Holder]) -> bool:
        unheard = [holder.id for holder in holders if not holder.is_heard]
        self._unheard_since = {peer: self._unheard_since.get(peer, now) for peer in unheard}
        return any(now - since < UNHEARD_SECONDS for since in self._unheard_since.values())

    def _late(self, now: float, holders: Sequence[Holder], wanted: Mapping[str, int]) -> set[tuple[str, str]]:
        """Return the models and nodes to which they fell long ago, and who began nothing: they may not know of it."""
        by_id = {holder.id: holder for holder in holders}
        own = by_id.get(self._me)
        short = [model for model in (own.placeable if own else ()) if _missing(model, by_id, wanted) > 0]
        late = self._passed_by(now)
        taking = {(model, one) for model in short for one in _takers(model, by_id, wanted, late)}
        still = {(model, one) for model, one in late if model in short and _could(by_id.get(one), model)}
        since = self._taking_since
        self._taking_since = {
            one: now if by_id[one[1]].loading else since.get(one, now) for one in taking | still if one[1] != self._me
        }
        return self._passed_by(now)

    def _passed_by(self, now: float) -> set[tuple[str, str]]:
        patience = self._delay_seconds + LATE_SECONDS
        return {one for one, since in self._taking_since.items() if now - since >= patience}


def _takers(
    model: str, by_id: Mapping[str, Holder], wanted: Mapping[str, int], late: Collection[tuple[str, str]] = ()
) -> list[str]:
    """Return the nodes that are to load a model, as many as copies are missing."""
    missing = _missing(model, by_id, wanted)
    if missing <= 0:
        return []
    able = [holder for holder in by_id.values() if _could(holder, model) and (model, holder.id) not in late]
    ranked = sorted(able, key=lambda holder: (-_score(model, holder), holder.id))
    return [holder.id for holder in ranked[:missing]]


def _missing(model: str, by_id: Mapping[str, Holder], wanted: Mapping[str, int]) -> int:
    return wanted.get(model, 0) - sum(model in holder.coming for holder in by_id.values())


def _could(holder: Holder | None, model: str) -> bool:
    return holder is not None and model in holder.placeable and model not in holder.coming


def _score(model: str, holder: Holder) -> float:
    """Return a node's rank for a model: it is the first for a share of all models that grows with its memory."""
    digest = hashlib.blake2b(f"{model}\0{holder.id}".encode(), digest_size=8).digest()
    share = ((int.from_bytes(digest) >> 11) + 0.5) / 2**53  # a float's digits: never 1
    return max(1, holder.memory_bytes) / -math.log(share)
