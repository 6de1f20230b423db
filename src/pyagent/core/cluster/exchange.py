"""Two tables compared: what one lacks is pulled, what the other lacks is pushed. Functions of a roster alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

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
    Update,
)
from pyagent.core.cluster.roster import Roster

_PAGE_BYTES = MAX_MESSAGE_BYTES - 1024
_ENTRY_BYTES = 40
"""An entry without its id: four numbers of at most nine bytes, and what frames them."""


def digests(roster: Roster) -> Iterator[Digest]:
    """Return the whole table's entries and revoked, in as many messages as they need."""
    first, num_bytes = "", 0
    page: list[str] = []
    for one in sorted({*roster.id_to_view, *roster.revoked}):
        size = len(one.encode()) + _ENTRY_BYTES
        if page and (num_bytes + size > _PAGE_BYTES or len(page) == MAX_ENTRIES):
            yield _digest(roster, first, page[-1], page)
            first, num_bytes, page = page[-1], 0, []
        page.append(one)
        num_bytes += size
    yield _digest(roster, first, "", page)


def wanted(roster: Roster, digest: Digest) -> list[str]:
    """Return the ids of which the other table holds something newer; the dead that are unknown here stay unknown."""
    newer = [entry.id for entry in digest.entries if _is_wanted(roster, entry)]
    revoked = [one for one in digest.revoked if one not in roster.revoked]
    if roster.revoked.is_full:
        revoked = [one for one in revoked if one in roster.id_to_view]
    return list(dict.fromkeys((*newer, *revoked)))[:MAX_ENTRIES]


def pulled(roster: Roster, ids: Sequence[str]) -> list[Update]:
    """Return all that is held of these ids."""
    views = [view for one in ids if (view := roster.id_to_view.get(one))]
    return [update for view in views for update in updates_of(view)] + _revocations(roster, ids)


def owed(roster: Roster, digest: Digest) -> list[Update]:
    """Return what the other table lacks, or holds older; members first, whose words the revocations may be."""

    def is_covered(one: str) -> bool:
        return one > digest.first and (not digest.last or one <= digest.last)

    id_to_entry = {entry.id: entry for entry in digest.entries}
    updates: list[Update] = []
    for one in filter(is_covered, roster.id_to_view):
        updates += _newer(roster.id_to_view[one], id_to_entry.get(one))
    known = set(digest.revoked)
    return updates + _revocations(roster, [one for one in roster.revoked if is_covered(one) and one not in known])


def pushes(updates: Sequence[Update]) -> Iterator[Push]:
    """Return updates in as many messages as they need."""
    chunk: list[Update] = []
    num_bytes = 0
    for update in updates:
        size = len(msgspec.msgpack.encode(update))
        if chunk and (num_bytes + size > _PAGE_BYTES or len(chunk) == MAX_UPDATES):
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


def _digest(roster: Roster, first: str, last: str, ids: Sequence[str]) -> Digest:
    entries = tuple(_entry(view) for one in ids if (view := roster.id_to_view.get(one)))
    return Digest(first, last, entries, tuple(one for one in ids if one in roster.revoked))


def _revocations(roster: Roster, ids: Iterable[str]) -> list[Update]:
    known = roster.revoked.id_to_revocation
    return [known[one] for one in ids if one in known]


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
