"""The probes that are out: a member is pinged, then pinged by others for it, and only then suspected."""

from __future__ import annotations

from collections.abc import Sequence

from pyagent.core.cluster.claims import Claims
from pyagent.core.cluster.messages import Ack, Nack, Ping, PingRequest
from pyagent.core.cluster.timing import Timing

_NEVER = float("inf")
MAX_RELAYS = 256
"""How many probes for others are out at once; more are not taken."""


class Probe:
    """One probe of a member: until `ask_at` by itself, until `ends_at` by helpers too."""

    def __init__(self, seq: int, target: str, ask_at: float, ends_at: float) -> None:
        self.seq = seq
        self.target = target
        self.ask_at: float | None = ask_at
        self.ends_at = ends_at
        self.helpers: Sequence[str] = ()
        self.helper_to_is_cut: dict[str, bool] = {}

    @property
    def due(self) -> float:
        """When something is to be done about it next."""
        return self.ends_at if self.ask_at is None else self.ask_at

    @property
    def num_silent_helpers(self) -> int:
        """How many helpers said nothing at all: the fault may be this node's."""
        return len(self.helpers) - len(self.helper_to_is_cut)


class Relay:
    """A probe for another member: `requester` gets the answer under its own `seq`."""

    def __init__(self, own_seq: int, requester: str, seq: int, target: str, ends_at: float) -> None:
        self.own_seq = own_seq
        self.requester = requester
        self.seq = seq
        self.target = target
        self.ends_at = ends_at


class Prober:
    """All probes that are out, for this node and for others."""

    def __init__(self, claims: Claims, timing: Timing, first_seq: int) -> None:
        self._claims = claims
        self._timing = timing
        self._seq = first_seq
        self._seq_to_probe: dict[int, Probe] = {}
        self._seq_to_relay: dict[int, Relay] = {}
        self._target_to_probe: dict[str, Probe] = {}

    def due(self) -> float:
        """Return when something is to be done next."""
        due = _NEVER
        for probe in self._seq_to_probe.values():
            due = min(due, probe.due)
        for relay in self._seq_to_relay.values():
            due = min(due, relay.ends_at)
        return due

    def start(self, target: str) -> None:
        """Probe a member, unless a probe of it is out."""
        view = self._claims.roster.id_to_view.get(target)
        if target in self._target_to_probe or view is None or not view.is_live:
            return
        self._seq += 1
        is_cut = target in self._claims.cut
        now, factor = self._claims.time, self._claims.health.factor
        ends_at = now + (self._timing.timeout if is_cut else self._timing.probe_seconds * factor)
        probe = Probe(self._seq, target, now + self._timing.timeout * factor, ends_at)
        self._seq_to_probe[probe.seq] = self._target_to_probe[target] = probe
        if is_cut:
            self._ask_others(probe)
        else:
            self._claims.outbox.send(target, Ping(probe.seq))

    def take_cut(self, peer: str) -> None:
        """Ask others at once about a member whose connection broke, and tell those who asked this node."""
        probe = self._target_to_probe.get(peer)
        if probe is None:
            self.start(peer)
        elif probe.ask_at is not None:
            probe.ends_at = min(probe.ends_at, self._claims.time + self._timing.timeout)
            self._ask_others(probe)
        for relay in [relay for relay in self._seq_to_relay.values() if relay.target == peer]:
            self._end_relay(relay, is_cut=True)

    def take_request(self, requester: str, request: PingRequest) -> None:
        """Probe a member for another."""
        outbox, target = self._claims.outbox, request.target
        if target == self._claims.me.id:
            outbox.send(requester, Ack(request.seq))
        elif target in self._claims.cut or target not in self._claims.roster.id_to_view:
            outbox.send(requester, Nack(request.seq, target in self._claims.cut))
        elif len(self._seq_to_relay) < MAX_RELAYS:
            self._seq += 1
            ends_at = self._claims.time + self._timing.timeout * 0.8
            self._seq_to_relay[self._seq] = Relay(self._seq, requester, request.seq, target, ends_at)
            outbox.send(target, Ping(self._seq))

    def take_ack(self, sender: str, ack: Ack) -> None:
        """End a probe well."""
        probe = self._seq_to_probe.get(ack.seq)
        relay = self._seq_to_relay.get(ack.seq)
        if probe and (sender == probe.target or sender in probe.helpers):
            self._drop(probe)
            self._claims.health.note(-1)
        elif relay and sender == relay.target:
            del self._seq_to_relay[relay.own_seq]
            self._claims.outbox.send(relay.requester, Ack(relay.seq))

    def take_nack(self, sender: str, nack: Nack) -> None:
        """Note that a helper reached the target neither; when none did and the connection is broken, that is enough."""
        probe = self._seq_to_probe.get(nack.seq)
        if probe is None or sender not in probe.helpers:
            return
        probe.helper_to_is_cut[sender] = nack.is_cut
        if not probe.num_silent_helpers and probe.target in self._claims.cut:
            self._fail(probe)

    def run(self, now: float) -> None:
        """Do what is due."""
        for probe in [probe for probe in self._seq_to_probe.values() if probe.due <= now]:
            if probe.ask_at is not None:
                self._ask_others(probe)
            else:
                self._fail(probe)
        for relay in [relay for relay in self._seq_to_relay.values() if relay.ends_at <= now]:
            self._end_relay(relay, is_cut=False)

    def _ask_others(self, probe: Probe) -> None:
        cut = self._claims.cut
        probe.ask_at = None
        probe.helpers = self._claims.order.sample(self._timing.num_helpers, {probe.target} | cut)
        for helper in probe.helpers:
            self._claims.outbox.send(helper, PingRequest(probe.seq, probe.target))
        if not probe.helpers and probe.target in cut:
            self._fail(probe)

    def _fail(self, probe: Probe) -> None:
        """Accuse the target; take the blame for helpers that were silent too (Lifeguard, section IV-A)."""
        self._drop(probe)
        claims, target = self._claims, probe.target
        is_cut = target in claims.cut
        if not is_cut:
            claims.health.note(probe.num_silent_helpers if probe.helpers else 1)
        claims.accuse(target, claims.me.id, is_cut=is_cut)
        for helper, is_helper_cut in probe.helper_to_is_cut.items():
            if is_helper_cut:
                claims.accuse(target, helper, is_cut=True)

    def _drop(self, probe: Probe) -> None:
        del self._seq_to_probe[probe.seq]
        del self._target_to_probe[probe.target]

    def _end_relay(self, relay: Relay, *, is_cut: bool) -> None:
        del self._seq_to_relay[relay.own_seq]
        self._claims.outbox.send(relay.requester, Nack(relay.seq, is_cut))
