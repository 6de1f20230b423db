"""A cluster in simulated time: real memberships, a network and machines that lose, delay, part, stall and restart.

Everything follows from the seed. A message takes `delay` and jitter, or is lost; a node that stands still takes what
waited only afterwards, its timer first, which is the worst order; each node's clock has an offset and a rate of its
own. Connections are a full mesh: when a process is killed, its machine tells the others (`Unreachable`); when the power
is cut, nothing tells them.
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import count

import msgspec

from pyagent.core.cluster.events import (
    Changed,
    Duplicate,
    Effect,
    Event,
    Leave,
    Meet,
    Met,
    Reachable,
    Received,
    Rejoin,
    Revoked,
    Send,
    Tick,
    Unreachable,
    WakeAt,
)
from pyagent.core.cluster.member import Member
from pyagent.core.cluster.membership import Membership
from pyagent.core.cluster.messages import Alive, Push
from pyagent.core.cluster.timing import Timing

Stall = Callable[[random.Random], tuple[float, float]]
"""How a machine stands still: seconds until it does, and for how long."""


def full_load(rng: random.Random) -> tuple[float, float]:
    """As measured on two cores beside four busy loops and a test run: 1 in 100 wake-ups 0.2 s late, the worst 1 s."""
    return rng.expovariate(1 / 0.5), min(1.5, rng.lognormvariate(-3.9, 1.45))


@dataclass
class Conditions:
    """What the network and the machines do to the nodes."""

    delay: float = 0.0003
    jitter: float = 0.0002
    loss: float = 0.0
    stall: Stall | None = None
    skew: float = 0.0
    handshake: float = 0.005


class SimNode:
    """One node: its membership, its clock, and what it has been told."""

    def __init__(self, sim: Simulation, number: int, conditions: Conditions, boot: int) -> None:
        rng = random.Random(f"{sim.seed} {number} {boot}")
        self.id = f"node{number:04}"
        self.rate = 1.0 + rng.uniform(-1, 1) * conditions.skew
        self.offset = rng.uniform(0, 1e6)
        self.rng = rng
        endpoints = (f"tcp://10.0.{number // 250}.{number % 250}:7000",)
        self.member = Member(self.id, self.id, f"key of {self.id}", endpoints)
        self.membership = Membership(self.member, sim.timing, rng)
        self.is_running = True
        self.still_until = 0.0
        self.wake_number = 0
        self.inbox: deque[Event] = deque()
        self.linked: set[str] = set()
        self.told: list[tuple[float, Effect]] = []

    def state_of(self, peer: str) -> str | None:
        view = self.membership.members().get(peer)
        return view.state if view else None

    def live(self) -> set[str]:
        return {one for one, view in self.membership.members().items() if view.is_live}


@dataclass
class Simulation:
    """The world. `run` goes on to a time; `until` to a condition."""

    num_nodes: int
    seed: int = 0
    timing: Timing = field(default_factory=Timing)
    conditions: Conditions = field(default_factory=Conditions)
    count_bytes: bool = False
    links: bool = True

    def __post_init__(self) -> None:
        self.rng = random.Random(f"world {self.seed}")
        self.now = 0.0
        self.nodes: dict[str, SimNode] = {}
        self.num_messages = 0
        self.num_bytes = 0
        self.num_boots = 0
        self.side: dict[str, int] = {}
        self.false_deaths: list[tuple[float, str, str]] = []
        self.duplicates: list[str] = []
        self.on_effect: Callable[[SimNode, Effect], None] = lambda _, __: None
        self._order = count()
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        for number in range(self.num_nodes):
            self.start(number)

    # The world's own events.

    def at(self, time: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._queue, (time, next(self._order), action))

    def run(self, seconds: float) -> None:
        end = self.now + seconds
        while self._queue and self._queue[0][0] <= end:
            self.now, _, action = heapq.heappop(self._queue)
            action()
        self.now = end

    def until(self, condition: Callable[[], bool], seconds: float, step: float = 0.01) -> float:
        """Run until a condition holds; return after how long. Fails when it does not hold in time."""
        began = self.now
        while not condition():
            assert self.now - began < seconds, f"not within {seconds} s of simulated time, seed {self.seed}"
            self.run(step)
        return self.now - began

    # What a test does.

    def start(self, number: int) -> SimNode:
        """Start a node's process, again if it ran before."""
        self.num_boots += 1
        node = SimNode(self, number, self.conditions, self.num_boots)
        self.nodes[node.id] = node
        self.side.setdefault(node.id, 0)
        self.give(node, Tick())
        if self.conditions.stall:
            self._plan_stall(node)
        return node

    def join(self, node: SimNode, seed: SimNode) -> None:
        """Pass the door of a node that is in."""
        self.give(node, Met(seed.member))
        self.give(seed, Met(node.member))
        self.link(node, seed)

    def join_all(self) -> None:
        first, *others = self.nodes.values()
        for node in others:
            self.join(node, first)

    def introduce_all(self) -> None:
        """Let all know each other at once, connected and with nothing to pass on, as if for long."""
        first, *others = self.nodes.values()
        known = Push(tuple(Alive(node.membership.me) for node in self.nodes.values()))
        first.membership.handle(self.now * first.rate + first.offset, Received("introducer", known))
        first.membership._claims.dissemination._waiting.clear()
        for node in others:  # each would find the same table: claim by claim, a thousand nodes take minutes
            self._give_table(node, first)
        linked = set(self.nodes)
        for node in self.nodes.values():
            node.linked = set(linked)
            node.membership._claims.linked = linked - {node.id}

    def _give_table(self, node: SimNode, known: SimNode) -> None:
        claims, table = node.membership._claims, known.membership._claims.roster
        claims.roster.id_to_view = dict(table.id_to_view)
        claims.roster.num_live, claims.roster.checksum = table.num_live, table.checksum
        claims.order._ids = [one for one in table.id_to_view if one != node.id]
        node.rng.shuffle(claims.order._ids)
        claims.dissemination._waiting.clear()

    def kill(self, node: SimNode, *, power: bool = False) -> None:
        """End the process; its machine tells the others, unless its power is cut."""
        node.is_running = False
        if power or not self.links:
            return
        for peer in [peer for peer in self.running() if node.id in peer.linked and self._is_joined(peer.id, node.id)]:
            peer.linked.discard(node.id)
            self._later(peer, Unreachable(node.id))

    def leave(self, node: SimNode) -> None:
        self.give(node, Leave())

        def stop() -> None:
            self.kill(node)

        self.at(self.now + 0.3, stop)

    def part(self, *sides: Iterable[SimNode]) -> None:
        """Let no message through between the sides; nothing tells the nodes."""
        for number, side in enumerate(sides):
            self.side.update({node.id: number for node in side})

    def heal(self) -> None:
        self.side = dict.fromkeys(self.side, 0)

    def cut_link(self, a: SimNode, b: SimNode, seconds: float) -> None:
        """Drop the connection of two nodes, which comes back."""
        for one, other in ((a, b), (b, a)):
            one.linked.discard(other.id)
            self._later(one, Unreachable(other.id))
        self.at(self.now + seconds, lambda: self.link(a, b))

    def link(self, a: SimNode, b: SimNode) -> None:
        if a.is_running and b.is_running and self._is_joined(a.id, b.id):
            for one, other in ((a, b), (b, a)):
                one.linked.add(other.id)
                self._later(one, Reachable(other.id), self.conditions.handshake)

    def stand_still(self, node: SimNode, seconds: float) -> None:
        node.still_until = max(node.still_until, self.now + seconds)
        self.at(node.still_until, lambda: self._drain(node))

    # What a test looks at.

    def running(self) -> list[SimNode]:
        return [node for node in self.nodes.values() if node.is_running]

    def all_agree(self) -> bool:
        """Whether every running node holds exactly the running nodes for alive."""
        ids = {node.id for node in self.running()}
        return all(node.live() == ids for node in self.running())

    def hold(self, peer: str, *states: str | None) -> bool:
        """Whether all running nodes hold one of these states of a node."""
        return all(node.state_of(peer) in states for node in self.running() if node.id != peer)

    # How it works.

    def give(self, node: SimNode, event: Event) -> None:
        """Hand an event to a node, as soon as it does not stand still."""
        if not node.is_running:
            return
        if self.now < node.still_until:
            if isinstance(event, Tick):
                node.inbox.appendleft(event)
            else:
                node.inbox.append(event)
            return
        clock = self.now * node.rate + node.offset
        for effect in node.membership.handle(clock, event):
            self._perform(node, effect)

    def _drain(self, node: SimNode) -> None:
        while node.inbox and self.now >= node.still_until:
            self.give(node, node.inbox.popleft())

    def _perform(self, node: SimNode, effect: Effect) -> None:
        match effect:
            case Send(peer, message):
                self._send(node, peer, message)
            case WakeAt(time):
                self._wake(node, (time - node.offset) / node.rate)
            case Meet(member):
                self._meet(node, member.id)
            case Changed(view, _):
                target = self.nodes.get(view.member.id)
                if view.state == "dead" and target and target.is_running and self._is_joined(node.id, target.id):
                    self.false_deaths.append((self.now, node.id, target.id))
            case Duplicate(id):
                self.duplicates.append(id)
            case Rejoin() | Revoked():
                pass
        if not isinstance(effect, Send | WakeAt):
            node.told.append((self.now, effect))
        self.on_effect(node, effect)

    def _wake(self, node: SimNode, time: float) -> None:
        node.wake_number += 1
        number = node.wake_number

        def tick() -> None:
            if number == node.wake_number:
                self.give(node, Tick())

        self.at(max(time, self.now), tick)

    def _send(self, node: SimNode, peer: str, message: object) -> None:
        target = self.nodes.get(peer)
        if self.links and peer not in node.linked:
            return
        self.num_messages += 1
        if self.count_bytes:
            self.num_bytes += len(msgspec.msgpack.encode(message))
        if target is None or self.rng.random() < self.conditions.loss:
            return
        if self._is_joined(node.id, peer):
            self._later(target, Received(node.id, message))  # type: ignore[arg-type]

    def _later(self, node: SimNode, event: Event, extra: float = 0.0) -> None:
        delay = self.conditions.delay + self.rng.expovariate(1.0) * self.conditions.jitter + extra
        self.at(self.now + delay, lambda: self.give(node, event))

    def _meet(self, node: SimNode, peer: str) -> None:
        target = self.nodes.get(peer)
        if target and target.is_running and self._is_joined(node.id, peer):
            if peer not in node.linked:
                self.link(node, target)
        else:
            node.linked.discard(peer)

    def _is_joined(self, a: str, b: str) -> bool:
        return self.side.get(a) == self.side.get(b)

    def _plan_stall(self, node: SimNode) -> None:
        assert self.conditions.stall
        wait, seconds = self.conditions.stall(node.rng)

        def stall() -> None:
            if node.is_running:
                self.stand_still(node, seconds)
                self._plan_stall(node)

        self.at(self.now + wait, stall)
