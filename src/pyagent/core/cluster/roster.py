"""The table of members, and the order of claims about them.

Of two claims about a member the one with the higher incarnation is taken, of equal ones that of the higher rank (alive,
suspect, dead, left): in whatever order claims come, and however often, tables end up alike. The table is bounded.
"""

from __future__ import annotations

from functools import lru_cache
from hashlib import blake2b

from pyagent.core.cluster.member import RANK, MemberView, State
from pyagent.core.cluster.messages import Revocation
from pyagent.core.cluster.revoked_list import RevokedList

_MASK = (1 << 61) - 1


class Roster:
    """What a node holds of every member, itself included, and of the revoked."""

    def __init__(self, my_id: str, max_members: int) -> None:
        self._max_members = max_members
        self.id_to_view: dict[str, MemberView] = {}
        self.revoked = RevokedList()
        self.num_live = 0
        self.checksum = 0
        self.my_id = my_id

    @property
    def me(self) -> MemberView:
        """This node."""
        return self.id_to_view[self.my_id]

    def is_claimed(self, id: str, incarnation: int, state: State) -> bool:  # noqa: A002 - the field's name
        """Return whether a claim about a known member is taken."""
        view = self.id_to_view.get(id)
        return view is not None and (incarnation, RANK[state]) > (view.member.incarnation, RANK[view.state])

    def has_room(self) -> bool:
        """Return whether one more member can be taken, forgetting the oldest of the dead if need be."""
        if len(self.id_to_view) < self._max_members:
            return True
        gone = min((view for view in self.id_to_view.values() if not view.is_live), key=_since, default=None)
        if gone is None:
            return False
        self.remove(gone.member.id)
        return True

    def put(self, view: MemberView) -> None:
        """Hold this of a member from now on."""
        self.remove(view.member.id)
        self.id_to_view[view.member.id] = view
        self._count(view, 1)

    def remove(self, id: str) -> MemberView | None:  # noqa: A002
        """Forget a member; return what was held of it."""
        view = self.id_to_view.pop(id, None)
        if view is not None:
            self._count(view, -1)
        return view

    def revoke(self, revocation: Revocation) -> None:
        """Keep that a node is out for ever, where the list has room."""
        if self.revoked.add(revocation):
            self._add(f"revoked {revocation.id}", 1)

    def forget(self, before: float) -> None:
        """Forget those who died or left before a time."""
        gone = [one for one, view in self.id_to_view.items() if not view.is_live and view.since < before]
        for one in gone:
            self.remove(one)

    def _count(self, view: MemberView, sign: int) -> None:
        """Keep the checksum: of what tables must agree on, which is who is live, and how new."""
        if view.is_live:
            self.num_live += sign
            member = view.member
            self._add(f"{member.id} {member.incarnation} {member.boot} {view.advert_version}", sign)

    def _add(self, text: str, sign: int) -> None:
        self.checksum = (self.checksum + sign * _hashed(text)) & _MASK


@lru_cache(8_192)
def _hashed(text: str) -> int:
    """Return a hash; kept, as a claim is counted when it comes and again when it goes."""
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big")


def _since(view: MemberView) -> float:
    return view.since
