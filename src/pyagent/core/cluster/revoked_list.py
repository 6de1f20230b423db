"""Who is out of the cluster for ever, on whose word: a bounded list that no member fills alone.

A word about a node that was a member here is taken as long as there is room. Any other may be invented: so many are
taken of one revoker, and none in the last places. A full list is closed: it forgets none, members are still put out,
and from then on none comes in that does not know the current secret.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from pyagent.core.cluster.messages import MAX_REVOKED, Revocation

MAX_UNKNOWN_OF_ONE = 64
_RESERVED = 256


class RevokedList:
    """Revocations by the id that they put out; the first word about an id is kept."""

    def __init__(self, revocations: Iterable[Revocation] = ()) -> None:
        self.id_to_revocation: dict[str, Revocation] = {}
        self._by_to_num = Counter[str]()
        for one in revocations:
            self.add(one)

    def __contains__(self, node_id: object) -> bool:
        return node_id in self.id_to_revocation

    def __iter__(self) -> Iterator[str]:
        return iter(self.id_to_revocation)

    def __len__(self) -> int:
        return len(self.id_to_revocation)

    @property
    def is_full(self) -> bool:
        """Whether it takes no more."""
        return len(self) >= MAX_REVOKED

    def takes_unknown(self, told: Revocation) -> bool:
        """Whether there is room for a word about a node that was never a member here."""
        is_fair = self._by_to_num[told.by] < MAX_UNKNOWN_OF_ONE
        return told.id not in self and is_fair and len(self) < MAX_REVOKED - _RESERVED

    def add(self, revocation: Revocation) -> bool:
        """Keep a revocation; False where it was there, or the list is full."""
        if revocation.id in self or self.is_full:
            return False
        self.id_to_revocation[revocation.id] = revocation
        self._by_to_num[revocation.by] += 1
        return True
