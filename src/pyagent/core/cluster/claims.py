"""What becomes of a claim: it is taken, contradicted, passed on, or ignored as old.

Only a member itself contradicts what is said of it, by a higher incarnation. Nothing here knows of probes or time-outs:
`to_check` names the members that this node should probe at once.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from msgspec.structs import replace

from pyagent.core.cluster.dissemination import Dissemination
from pyagent.core.cluster.events import Changed, Duplicate, Meet, Rejoin, Revoked
from pyagent.core.cluster.local_health import LocalHealth
from pyagent.core.cluster.member import MAX_ADVERT_BYTES, MAX_INCARNATION, Member, MemberView
from pyagent.core.cluster.messages import Advert, Alive, Dead, Gossip, Left, Revocation, Suspect, Update
from pyagent.core.cluster.outbox import Outbox
from pyagent.core.cluster.probe_order import ProbeOrder
from pyagent.core.cluster.roster import Roster
from pyagent.core.cluster.suspicion import Suspicion
from pyagent.core.cluster.timing import Timing

_MAX_FORMER_BOOTS = 64
_MAX_TRIES = 3


class Claims:
    """Judges claims; `now` is the time of the event, `time` the node's own."""

    def __init__(
        self,
        me: Member,
        timing: Timing,
        rng: random.Random,
        is_genuine: Callable[[Member | Revocation], bool],
    ) -> None:
        self._is_genuine = is_genuine
        self._timing = timing
        self._rng = rng
        self.roster = Roster(me.id, timing.max_members)
        self.roster.put(MemberView(me, "alive", 0.0))
        self.suspicions: dict[str, Suspicion] = {}
        self.dissemination = Dissemination()
        self.outbox = Outbox(self.roster, self.suspicions, self.dissemination, timing)
        self.order = ProbeOrder(rng)
        self.health = LocalHealth(timing.max_health)
        self.linked: set[str] = set()
        self.cut: set[str] = set()
        self.to_check: list[str] = []
        self.now = 0.0
        self.time = 0.0
        self.is_out = False
        self._id_to_past_boot: dict[str, int] = {}
        self._boot_to_tries: dict[int, int] = {}

    @property
    def me(self) -> Member:
        """This node as it is known to the others."""
        return self.roster.me.member

    def hear(self, update: Update, sender: str, *, is_old: bool = False) -> None:
        """Judge a claim that a member passed on; `is_old` when it comes from a table, not from fresh gossip."""
        match update:
            case Alive(member):
                self.alive(member)
            case Suspect():
                self._suspect(update, sender)
            case Dead(id, incarnation):
                self._dead(id, incarnation, sender, is_old=is_old)
            case Left(id, incarnation):
                self._left(id, incarnation, sender)
            case Revocation():
                self.revoke(update)
            case Advert():
                self._advert(update)

    def alive(self, member: Member, *, is_met: bool = False) -> None:
        """Take a member in, or what is newer of it; `is_met` when it passed the door.

        Where the list of the revoked is full, a stranger may be one that found no room: hearsay lets none in.
        """
        view = self.roster.id_to_view.get(member.id)
        if member.id in self.roster.revoked:
            return
        if view is None:
            if is_met or not self.roster.revoked.is_full:
                self._take_in(member)
        elif member.key != view.member.key:
            if self._is_genuine(member):
                self.outbox.effects.append(Duplicate(member.id))
        elif member.id == self.me.id:
            self.outbid(member.incarnation, member.boot, member.endpoints)
        elif member.incarnation > view.member.incarnation:
            self._renew(view, member)
        elif member.incarnation == view.member.incarnation and member.boot not in {0, view.member.boot}:
            self._tie(view, member)

    def accuse(self, id: str, by: str, *, is_cut: bool) -> None:  # noqa: A002 - the field's name
        """Accuse a member: of this node's own knowledge, or in the name of one that was asked."""
        view = self.roster.id_to_view.get(id)
        if view is not None and view.is_live:
            self._suspect(Suspect(id, view.member.incarnation, by, is_cut), by)

    def bury(self, id: str) -> None:  # noqa: A002
        """Declare a member dead whose time to contradict is over."""
        view = self.roster.id_to_view[id]
        self._dead(id, view.member.incarnation, self.me.id, is_old=False)

    def revoke(self, told: Revocation) -> None:
        """Put a node out for ever, where the word for it counts."""
        roster = self.roster
        if told.id in roster.revoked or (told.id == self.me.id and self.is_out):
            return
        if (told.id in roster.id_to_view or roster.revoked.takes_unknown(told)) and self._is_genuine(told):
            self._put_out(told)

    def _put_out(self, told: Revocation) -> None:
        self.roster.revoke(told)
        self.dissemination.add(told)
        self.is_out = self.is_out or told.id == self.me.id
        if told.id != self.me.id and (view := self._remove(told.id)):
            self.outbox.effects.append(Changed(replace(view, state="left", since=self.now), view.state))
        self.outbox.effects.append(Revoked(told))

    def forget(self) -> None:
        """Forget those who have been dead or gone for long."""
        self.roster.forget(self.now - self._timing.forget_seconds)
        known = self.roster.id_to_view
        self.cut.intersection_update(known)
        self.linked.intersection_update(known)
        self._id_to_past_boot = {one: boot for one, boot in self._id_to_past_boot.items() if one in known}

    def drop(self, id: str) -> None:  # noqa: A002
        """Forget a member that is dead or gone."""
        view = self.roster.id_to_view.get(id)
        if view is not None and not view.is_live:
            self.roster.remove(id)

    def restate(self, member: Member) -> None:
        """Tell all what this node is from now on."""
        self.roster.put(replace(self.roster.me, member=member))
        self.dissemination.add(Alive(member))

    def advertise(self, data: bytes) -> None:
        """Tell all what this node says of itself from now on."""
        view = self.roster.me
        self._take_advert(view, Advert(self.me.id, self.me.boot, view.advert_version + 1, data))

    def _take_in(self, member: Member) -> None:
        if not self._is_genuine(member) or not self.roster.has_room():
            return
        self.order.add(member.id)
        self._put(MemberView(member, "alive", self.now), None)

    def _renew(self, view: MemberView, member: Member) -> None:
        """Take a higher incarnation of a member: it contradicted, moved or restarted."""
        is_restart = bool(view.member.boot) and member.boot != view.member.boot
        if is_restart:
            if self._id_to_past_boot.get(member.id) == member.boot:
                self.outbox.effects.append(Duplicate(member.id))
            self._id_to_past_boot[member.id] = view.member.boot
            view = replace(view, advert=b"", advert_version=0)
        if not view.is_live:
            self.order.add(member.id)
        self.suspicions.pop(member.id, None)
        since = view.since if view.state == "alive" else self.now
        self._put(replace(view, member=member, state="alive", since=since), view)

    def _tie(self, view: MemberView, member: Member) -> None:
        """Take what the door could not tell of a member; let one that restarted unnoticed outbid its former self."""
        if view.member.boot:
            self.outbox.send(member.id, Gossip(), Alive(view.member))
        elif view.is_live:
            self._put(replace(view, member=member), view)

    def _put(self, view: MemberView, was: MemberView | None) -> None:
        """Hold a live member as it now is, and tell it to the others and to the node."""
        self.roster.put(view)
        self.dissemination.add(Alive(view.member))
        is_elsewhere = was is None or not was.is_live or _address(was.member) != _address(view.member)
        if is_elsewhere:
            self.cut.discard(view.member.id)
            self.outbox.effects.append(Meet(view.member))
        if is_elsewhere or was is None or was.state != view.state:
            self.outbox.effects.append(Changed(view, was.state if was else None))

    def outbid(self, incarnation: int, boot: int, endpoints: tuple[str, ...] = ()) -> None:
        """Raise this node's incarnation above one that is told of it: of an earlier start, or of a second node.

        What an earlier start said stays below one bid or two: where it rises further, a second node runs.
        """
        if not self.me.incarnation <= incarnation < MAX_INCARNATION or boot == self.me.boot:
            return
        tries = self._boot_to_tries.get(boot, 0)
        if tries >= _MAX_TRIES - 1:
            self.outbox.effects.append(Duplicate(self.me.id, endpoints))
        if tries < _MAX_TRIES and (tries or len(self._boot_to_tries) < _MAX_FORMER_BOOTS):
            self._boot_to_tries[boot] = tries + 1
            self.restate(replace(self.me, incarnation=incarnation + 1))

    def _suspect(self, claim: Suspect, sender: str) -> None:
        if claim.id == self.me.id:
            self._contradict(claim.incarnation, sender, is_dead=False)
            return
        view = self.roster.id_to_view.get(claim.id)
        if view is None:
            return
        if self.roster.is_claimed(claim.id, claim.incarnation, "suspect"):
            self._begin_suspicion(view, claim)
        elif view.state != "suspect" or claim.incarnation < view.member.incarnation:
            return
        suspicion = self.suspicions[claim.id]
        is_more = suspicion.accuse(claim.by, is_cut=claim.is_cut)
        if is_more and suspicion.num_accusers <= 1 + self._timing.num_confirmations:
            self.dissemination.add(claim)

    def _begin_suspicion(self, view: MemberView, claim: Suspect) -> None:
        member = replace(view.member, incarnation=claim.incarnation)
        suspected = replace(view, member=member, state="suspect", since=self.now)
        self.suspicions[claim.id] = Suspicion(self.time)
        self.roster.put(suspected)
        if view.state != "suspect":
            self.outbox.effects.append(Changed(suspected, view.state))
        if not view.is_live:
            self.order.add(claim.id)
        if claim.by != self.me.id and self._rng.random() * self.roster.num_live < self._timing.num_checkers:
            self.to_check.append(claim.id)

    def _dead(self, id: str, incarnation: int, sender: str, *, is_old: bool) -> None:  # noqa: A002
        if id == self.me.id:
            self._contradict(incarnation, sender, is_dead=True)
        elif self.roster.is_claimed(id, incarnation, "dead"):
            if is_old and self.roster.id_to_view[id].is_live:
                self._suspect(Suspect(id, incarnation, sender), sender)
                self.suspicions[id].found_dead()
            else:
                self._end(id, Dead(id, incarnation))

    def _left(self, id: str, incarnation: int, sender: str) -> None:  # noqa: A002
        if id == self.me.id:
            self._contradict(incarnation, sender, is_dead=True)
        elif self.roster.is_claimed(id, incarnation, "left"):
            self._end(id, Left(id, incarnation))

    def _end(self, id: str, claim: Dead | Left) -> None:  # noqa: A002
        """Hold a member for dead or gone."""
        view = self.roster.id_to_view[id]
        self._remove(id)
        member = replace(view.member, incarnation=claim.incarnation)
        ended = replace(view, member=member, state="left" if isinstance(claim, Left) else "dead", since=self.now)
        self.roster.put(ended)
        self.dissemination.add(claim)
        self.outbox.effects.append(Changed(ended, view.state))

    def _remove(self, id: str) -> MemberView | None:  # noqa: A002
        view = self.roster.remove(id)
        self.suspicions.pop(id, None)
        if view is not None and view.is_live:
            self.order.remove(id)
        return view

    def _contradict(self, incarnation: int, sender: str, *, is_dead: bool) -> None:
        """Answer what is held against this node; an old claim gets the present incarnation again."""
        if self.is_out or incarnation >= MAX_INCARNATION:
            return
        if incarnation >= self.me.incarnation:
            self.health.note(1)
            self.restate(replace(self.me, incarnation=incarnation + 1))
            if is_dead:
                self.outbox.effects.append(Rejoin(self.me))
        if sender != self.me.id:
            self.outbox.send(sender, Gossip(), Alive(self.me))

    def _advert(self, advert: Advert) -> None:
        view = self.roster.id_to_view.get(advert.id)
        if view is None or not view.is_live or advert.id == self.me.id or advert.boot != view.member.boot:
            return
        if advert.version > view.advert_version and len(advert.data) <= MAX_ADVERT_BYTES:
            self._take_advert(view, advert)

    def _take_advert(self, view: MemberView, advert: Advert) -> None:
        view = replace(view, advert=advert.data, advert_version=advert.version)
        self.roster.put(view)
        self.dissemination.add(advert)
        self.outbox.effects.append(Changed(view, view.state))


def _address(member: Member) -> tuple[object, ...]:
    """Return what the node must know to reach a member, and shows of it."""
    return member.endpoints, member.boot, member.name, member.version
