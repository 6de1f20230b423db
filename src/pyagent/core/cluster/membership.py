"""Which nodes the cluster has: SWIM's gossip with Lifeguard's local health, as a function of events.

`handle` takes what happened and returns what is to be done; it reads no clock and sends nothing itself. A member is
probed each period, by others when it does not answer, then suspected, and dead when it does not contradict. Claims
spread with the probes and by rounds of gossip, and whole tables are compared now and then, so that what was lost is
made good and the halves of a healed partition find each other again.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType

from msgspec.structs import replace

from pyagent.core.cluster import exchange
from pyagent.core.cluster.claims import Claims
from pyagent.core.cluster.events import (
    Advertise,
    Effect,
    Event,
    Forget,
    Leave,
    Meet,
    Met,
    Moved,
    Reachable,
    Received,
    Revoke,
    Tick,
    Unreachable,
    WakeAt,
)
from pyagent.core.cluster.local_health import OwnClock
from pyagent.core.cluster.member import MAX_ADVERT_BYTES, Member, MemberView
from pyagent.core.cluster.messages import (
    Ack,
    Alive,
    Digest,
    Gossip,
    Left,
    Message,
    Nack,
    Ping,
    PingRequest,
    Pull,
    Push,
    Revocation,
    Sync,
)
from pyagent.core.cluster.probing import Prober
from pyagent.core.cluster.timing import Timing
from pyagent.core.errors import ClusterError

_MAX_FAREWELLS = 16
_NEVER = float("inf")
_MOMENT = 1e-6
"""A timer that goes off so much early is on time: adding and subtracting clocks rounds."""


class Membership:
    """One node's part, for one thread.

    `rng` decides whom it asks, and `me.boot` where it is 0. `is_genuine` says whether an id belongs to its key, and
    a revocation is the word of a member: what is told of others is not believed. Those `revoked` were so before this
    start.
    """

    def __init__(
        self,
        me: Member,
        timing: Timing | None = None,
        rng: random.Random | None = None,
        *,
        is_genuine: Callable[[Member | Revocation], bool] = lambda _: True,
        revoked: Iterable[Revocation] = (),
    ) -> None:
        self._timing = timing = timing or Timing()
        self._rng = rng = rng or random.Random()  # noqa: S311 - whom to ask is no secret
        me = me if me.boot else replace(me, boot=rng.getrandbits(48) + 1)
        self._claims = Claims(me, timing, rng, is_genuine)
        for one in revoked:
            self._claims.roster.revoke(one)
        self._outbox = self._claims.outbox
        self._prober = Prober(self._claims, timing, rng.getrandbits(16))
        self._clock = OwnClock(timing)
        self._period_at = rng.random() * timing.period
        self._sync_at = rng.random() * timing.sync_seconds
        self._retry_at = rng.random() * timing.retry_seconds
        self._gossiped_at = -_NEVER
        self._due = 0.0
        self._woken_at = -_NEVER

    @property
    def me(self) -> Member:
        """This node, as it now tells of itself."""
        return self._claims.me

    def members(self) -> Mapping[str, MemberView]:
        """Return all known members by id, this node, the dead and those who left included."""
        return MappingProxyType(self._claims.roster.id_to_view)

    def revoked(self) -> frozenset[str]:
        """Return the ids that never come back."""
        return frozenset(self._claims.roster.revoked)

    @property
    def health(self) -> int:
        """How slow this node finds itself: 0 is healthy, each point stretches its probes by one."""
        return self._claims.health.score

    def handle(self, now: float, event: Event) -> list[Effect]:
        """Take an event at a time of a clock that never goes back; return what is to be done, in order."""
        claims = self._claims
        effects: list[Effect] = []
        self._outbox.effects = effects
        claims.now, claims.time = now, self._clock.read(now, self._due)
        if self._clock.stood_still:
            claims.health.note(1)
        self._take(event)
        self._run()
        self._due = self._next_due()
        wake = self._clock.wall(self._due)
        if wake != _NEVER and (wake != self._woken_at or isinstance(event, Tick)):
            effects.append(WakeAt(wake))
        self._woken_at = wake
        return effects

    def _take(self, event: Event) -> None:
        claims = self._claims
        match event:
            case Received(sender, message):
                self._receive(sender, message)
            case Met(member):
                claims.alive(member, is_met=True)
                self._greet(member.id)
            case Unreachable(peer):
                self._lose(peer)
            case Reachable(peer):
                claims.linked.add(peer)
                claims.cut.discard(peer)
                self._greet(peer)
            case Advertise(advert):
                if len(advert) > MAX_ADVERT_BYTES:
                    raise ClusterError(f"an advert has {len(advert)} bytes, the most is {MAX_ADVERT_BYTES}")
                claims.advertise(advert)
            case Moved(endpoints):
                claims.restate(replace(self.me, endpoints=endpoints, incarnation=self.me.incarnation + 1))
            case Leave():
                self._leave()
            case Revoke(revocation):
                self._outbox.send_bare(revocation.id, Gossip((revocation,)))
                claims.revoke(revocation)
            case Forget(id):
                claims.drop(id)
            case Tick():
                pass

    def _receive(self, sender: str, message: Message) -> None:
        claims = self._claims
        if sender in claims.roster.revoked or sender == self.me.id:
            return
        for update in () if isinstance(message, Digest | Pull) else message.updates:
            claims.hear(update, sender, is_old=isinstance(message, Push))
        self._answer(sender, message)
        self._outbox.accuse(sender)

    def _answer(self, sender: str, message: Message) -> None:
        match message:
            case Ping(seq):
                self._outbox.send(sender, Ack(seq))
                if sender not in self._claims.roster.id_to_view:
                    self._greet(sender)
            case PingRequest():
                self._prober.take_request(sender, message)
            case Ack():
                self._prober.take_ack(sender, message)
            case Nack():
                self._prober.take_nack(sender, message)
            case Sync(checksum):
                if checksum != self._claims.roster.checksum:
                    self._show_table(sender)
            case Digest():
                self._compare(sender, message)
            case Pull(ids):
                for push in exchange.pushes(exchange.pulled(self._claims.roster, ids)):
                    self._outbox.send_bare(sender, push)
            case Gossip() | Push():
                pass

    def _greet(self, peer: str) -> None:
        """Tell a peer who this node is, and compare tables with it."""
        if peer != self.me.id and peer not in self._claims.roster.revoked and not self._claims.is_out:
            self._outbox.send(peer, Sync(self._claims.roster.checksum), Alive(self.me))

    def _lose(self, peer: str) -> None:
        """Ask at once about a member that was connected; one that never was may not have let this node in yet."""
        if peer in self._claims.linked:
            self._claims.linked.discard(peer)
            self._claims.cut.add(peer)
            self._prober.take_cut(peer)

    def _show_table(self, peer: str) -> None:
        for digest in exchange.digests(self._claims.roster):
            self._outbox.send_bare(peer, digest)

    def _compare(self, sender: str, digest: Digest) -> None:
        roster = self._claims.roster
        for entry in digest.entries:
            if entry.id == self.me.id:
                self._claims.outbid(entry.incarnation, entry.boot)
        for push in exchange.pushes(exchange.owed(roster, digest)):
            self._outbox.send_bare(sender, push)
        wanted = exchange.wanted(roster, digest)
        if wanted:
            self._outbox.send_bare(sender, Pull(tuple(wanted)))

    def _leave(self) -> None:
        claims = self._claims
        claims.is_out = True
        left = Left(self.me.id, self.me.incarnation)
        claims.dissemination.add(left)
        for peer in claims.order.sample(_MAX_FAREWELLS, claims.cut):
            self._outbox.send(peer, Gossip(), left)

    def _run(self) -> None:
        """Do what is due, and pass on what is new."""
        claims = self._claims
        time = claims.time + _MOMENT
        if not claims.is_out:
            self._run_probes(time)
            self._run_exchange(time)
        if claims.dissemination and time >= self._gossip_at():
            self._gossiped_at = claims.time
            for peer in claims.order.some(self._timing.fanout, claims.cut | claims.suspicions.keys()):
                self._outbox.send(peer, Gossip())

    def _run_probes(self, time: float) -> None:
        claims = self._claims
        self._prober.run(time)
        if claims.suspicions:
            for one in [one for one, deadline in self._deadlines() if deadline <= time]:
                claims.bury(one)
        checks, claims.to_check = claims.to_check, []
        if time >= self._period_at:
            self._period_at = claims.time + self._timing.period * claims.health.factor
            checks += filter(None, [claims.order.next()])
        for one in checks:
            self._prober.start(one)

    def _run_exchange(self, time: float) -> None:
        claims = self._claims
        if time >= self._sync_at:
            claims.forget()
            interval = self._timing.sync_interval(claims.roster.num_live)
            self._sync_at = claims.time + interval * (0.5 + self._rng.random())
            for peer in claims.order.sample(1, claims.cut):
                self._outbox.send(peer, Sync(claims.roster.checksum))
        if time >= self._retry_at:
            self._retry_at = claims.time + self._timing.retry_seconds * (0.5 + self._rng.random())
            self._retry()

    def _retry(self) -> None:
        """Try a dead member again: it may run behind a partition that has healed."""
        dead = [view for view in self._claims.roster.id_to_view.values() if view.state == "dead"]
        if dead:
            member = self._rng.choice(dead).member
            self._outbox.effects.append(Meet(member))
            self._greet(member.id)

    def _deadlines(self) -> list[tuple[str, float]]:
        num_live = self._claims.roster.num_live
        suspicions = self._claims.suspicions.items()
        return [(one, suspicion.deadline(self._timing, num_live)) for one, suspicion in suspicions]

    def _gossip_at(self) -> float:
        """Return when the next round is: at once, if the last one is long enough ago."""
        return self._gossiped_at + self._timing.gossip_seconds

    def _next_due(self) -> float:
        claims = self._claims
        gossip = max(claims.time, self._gossip_at()) if claims.dissemination and claims.order else _NEVER
        if claims.is_out:
            return gossip
        deadline = min((deadline for _, deadline in self._deadlines()), default=_NEVER) if claims.suspicions else _NEVER
        return min(gossip, self._period_at, self._sync_at, self._retry_at, self._prober.due(), deadline)
