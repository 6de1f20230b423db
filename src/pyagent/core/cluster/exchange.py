"""Two tables compared: what one lacks is pulled, what the other lacks is pushed. Functions of a roster alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from pyagent.core.cluster.member import RANK, MemberView
from pyagent.core.cluster.messages import (
    MAX_ENTRIES,
    MAX_MESSAGE_BYTES,
    MAX_UPDATES,
    Advert,
    Alive,
    Dead,
    Digest,
    Entry,
    Left,
    Push,
    Revocation,
    Update,
)
from pyagent.core.cluster.roster import Roster

_PUSH_BYTES = MAX_MESSAGE_BYTES - 1024


def digests(roster: Roster) -> Iterator[Digest]:
    """Return the whole table's entries, in as many messages as they need."""
    ids = sorted(roster.id_to_view)
    revoked = tuple(sorted(roster.revoked))
    first = ""
    for start in range(0, len(ids), MAX_ENTRIES):
        chunk = ids[start : start + MAX_ENTRIES]
        last = chunk[-1] if start + MAX_ENTRIES < len(ids) else ""
        yield Digest(first, last, tuple(_entry(roster.id_to_view[one]) for one in chunk), revoked)
        first, revoked = last, ()


def wanted(roster: Roster, digest: Digest) -> list[str]:
    """Return the ids of which the other table holds something newer; the dead that are unknown here stay unknown."""
    return [entry.id for entry in digest.entries if _is_wanted(roster, entry)]


def owed(roster: Roster, digest: Digest) -> list[Update]:
    """Return what the other table lacks, or holds older."""
    id_to_entry = {entry.id: entry for entry in digest.entries}
    ids = [one for one in roster.id_to_view if one > digest.first and (not digest.last or one <= digest.last)]
    updates: list[Update] = [Revocation(one) for one in roster.revoked.intersection(id_to_entry)]
    if not digest.first:
        updates += [Revocation(one) for one in roster.revoked.difference(digest.revoked, id_to_entry)]
    for one in ids:
        updates += _newer(roster.id_to_view[one], id_to_entry.get(one))
    return updates


def pushes(updates: Sequence[Update]) -> Iterator[Push]:
    """Return updates in as many messages as they need."""
    chunk: list[Update] = []
    num_bytes = 0
    for update in updates:
        size = len(msgspec.msgpack.encode(update))
        if chunk and (num_bytes + size > _PUSH_BYTES or len(chunk) == MAX_UPDATES):
            yield Push(tuple(chunk))
            chunk, num_bytes = [], 0
        chunk.append(update)
        num_bytes += size
    if chunk:
        yield Push(tuple(chunk))


def updates_of(view: MemberView) -> list[Update]:
    """Return all that is held of a member: who it is, what is claimed of it, its advert."""
    updates: list[Update] = [Alive(view.member)]
    if not view.is_live:
        updates.append(_claim(view))
    elif view.advert_version:
        updates.append(_advert(view))
    return updates


def _entry(view: MemberView) -> Entry:
    return Entry(view.member.id, view.member.incarnation, RANK[view.state], view.advert_version, view.member.boot)


def _is_wanted(roster: Roster, entry: Entry) -> bool:
    view = roster.id_to_view.get(entry.id)
    if entry.id in roster.revoked:
        return False
    if view is None:
        return entry.rank <= RANK["suspect"]
    ours, theirs = view.member.incarnation, entry.incarnation
    if theirs == ours and entry.rank <= RANK["suspect"] and view.is_live:
        return entry.advert_version > view.advert_version
    return (theirs, entry.rank) > (ours, RANK[view.state])


def _newer(view: MemberView, entry: Entry | None) -> list[Update]:
    """Return what a table with this entry lacks of a member."""
    if entry is None:
        return updates_of(view) if view.is_live else []
    if view.member.incarnation > entry.incarnation:
        return updates_of(view)
    if view.member.incarnation < entry.incarnation:
        return []
    if not view.is_live:
        return [_claim(view)] if RANK[view.state] > entry.rank else []
    return [_advert(view)] if view.advert_version > entry.advert_version else []


def _claim(view: MemberView) -> Update:
    kind = Left if view.state == "left" else Dead
    return kind(view.member.id, view.member.incarnation)


def _advert(view: MemberView) -> Advert:
    return Advert(view.member.id, view.member.boot, view.advert_version, view.advert)
