"""The updates a node still has to pass on: each a limited number of times, those sent least first."""

from __future__ import annotations

import msgspec

from pyagent.core.cluster.messages import MAX_UPDATES, Advert, Alive, Revocation, Suspect, Update

_Key = tuple[str, str]
"""A member's id, and what the update is about: an update takes the place of an older one about the same."""


class _Waiting:
    __slots__ = ("num_bytes", "num_sends", "update")

    def __init__(self, update: Update) -> None:
        self.update = update
        self.num_bytes = len(msgspec.msgpack.encode(update))
        self.num_sends = 0


class Dissemination:
    """The queue. It holds at most one update of each kind about each member, and the first few accusations."""

    def __init__(self) -> None:
        self._waiting: dict[_Key, _Waiting] = {}
        self._id_to_accusations: dict[str, set[_Key]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, update: Update) -> None:
        """Pass an update on, in place of what it makes out of date."""
        key = _key(update)
        if isinstance(update, Suspect):
            self._id_to_accusations.setdefault(update.id, set()).add(key)
        elif not isinstance(update, Advert):
            for accusation in self._id_to_accusations.pop(key[0], ()):
                self._waiting.pop(accusation, None)
        if isinstance(update, Revocation):
            self._waiting.pop((update.id, "state"), None)
            self._waiting.pop((update.id, "advert"), None)
        self._waiting.pop(key, None)
        self._waiting[key] = _Waiting(update)

    def take(self, max_bytes: int, num_sends: int, at_most: int = MAX_UPDATES) -> tuple[Update, ...]:
        """Return updates for one message, and count them as sent once more; each goes out `num_sends` times."""
        if not self._waiting:
            return ()
        chosen: list[Update] = []
        for key, waiting in sorted(self._waiting.items(), key=_num_sends):
            if waiting.num_bytes > max_bytes:
                continue
            if len(chosen) == at_most:
                break
            max_bytes -= waiting.num_bytes
            chosen.append(waiting.update)
            waiting.num_sends += 1
            if waiting.num_sends >= num_sends:
                del self._waiting[key]
        return tuple(chosen)


def _num_sends(item: tuple[_Key, _Waiting]) -> int:
    return item[1].num_sends


def _key(update: Update) -> _Key:
    match update:
        case Alive(member):
            return member.id, "state"
        case Suspect(id, _, by):
            return id, f"by {by}"
        case Advert(id):
            return id, "advert"
        case Revocation(id):
            return id, "revoked"
        case _:
            return update.id, "state"
