"""Agents that share system prompts, three simulated engines and the real router: times to the first token.

Time is counted in steps of two milliseconds. An engine computes as ours does: decoding requests first, then short
prompts past long ones, 512 tokens of prompts in a step; of prompts that begin alike one is computed, the others wait.
The engines share the machine's cores, measure their steps, and tell their load four times a second.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import cast

from pyagent.core.backends import Backend
from pyagent.core.cluster.adverts import Load, Offer
from pyagent.core.cluster.peers import ClusterRouter, Peer
from pyagent.core.cluster.routing import Balancer, Policy
from pyagent.core.messages import ChatRequest, Message, ModelInfo
from pyagent.infrastructure.engine.scheduler.prefill_budget import StepCosts

TICK = 0.002
TOKENS_PER_SECOND = 800.0
LEAST_STEP_SECONDS = 0.015
WAY_SECONDS = 0.008
LOAD_SECONDS = 0.25
STEP_TOKENS, DECODING_STEP_TOKENS = 512, 96
NUM_CORES, NUM_NODES, NUM_SEATS, NUM_OUTPUT_TOKENS = 2, 3, 64, 4
QUESTION_TOKENS = 30


@dataclass(eq=False)
class Asked:
    """A request on its way."""

    chat: ChatRequest
    prefix: int
    num_tokens: int
    asked: float
    first: float = 0.0
    num_cached: int = 0
    num_left: int = 0
    num_output: int = 0


@dataclass
class Engine:
    """A node's engine: which prefixes it has computed, and what it computes in its present step."""

    warm: dict[int, int] = field(default_factory=dict[int, int])
    waiting: list[Asked] = field(default_factory=list[Asked])
    prefilling: list[Asked] = field(default_factory=list[Asked])
    decoding: list[Asked] = field(default_factory=list[Asked])
    first_tokens: list[float] = field(default_factory=lambda: [0.1])
    left: float = 0.0
    costs: StepCosts = field(default_factory=StepCosts)
    _stepping: list[Asked] = field(default_factory=list[Asked])
    _began: float = 0.0
    _num_tokens: int = 0

    def __post_init__(self) -> None:
        self.costs.note(LEAST_STEP_SECONDS + QUESTION_TOKENS / TOKENS_PER_SECOND, QUESTION_TOKENS, 0)

    @property
    def is_busy(self) -> bool:
        return self.left > 0

    def load(self, sequence: int) -> Load:
        num_running = len(self.prefilling) + len(self.decoding)
        return Load(
            sequence=sequence,
            num_running=num_running,
            num_waiting=len(self.waiting),
            num_free=NUM_SEATS - num_running,
            num_prompt_tokens_left=sum(one.num_left for one in self.prefilling)
            + sum(one.num_tokens for one in self.waiting),
            prefill_tokens_per_second=self.costs.prefill_tokens_per_second,
            first_token_seconds=statistics.median(self.first_tokens),
        )

    def begin_step(self, now: float) -> None:
        arrived = [one for one in self.waiting if one.asked + WAY_SECONDS <= now]
        budget = DECODING_STEP_TOKENS if self.decoding else STEP_TOKENS
        under_way, num_tokens = list(self.prefilling), 0
        if under_way:
            num_tokens = self._admit(arrived, budget // 2, is_short=True)
        for one in under_way:
            num_tokens += self._take(one, budget - num_tokens)
        num_tokens += self._admit(arrived, budget - num_tokens, is_short=False)
        if num_tokens or self.decoding:
            self._stepping = list(self.decoding)
            self.left = LEAST_STEP_SECONDS + num_tokens / TOKENS_PER_SECOND
            self._began, self._num_tokens = now, num_tokens

    def _admit(self, arrived: Sequence[Asked], budget: int, *, is_short: bool) -> int:
        used = 0
        for one in arrived:
            num_cached = self.warm.get(one.prefix, 0)
            if one not in self.waiting or any(other.prefix == one.prefix for other in self.prefilling):
                continue
            if used >= budget or (is_short and one.num_tokens - num_cached > budget - used):
                break
            one.num_cached, one.num_left = num_cached, one.num_tokens - num_cached
            self.waiting.remove(one)
            self.prefilling.append(one)
            used += self._take(one, budget - used)
        return used

    def _take(self, one: Asked, budget: int) -> int:
        taken = min(one.num_left, budget)
        one.num_left -= taken
        return taken

    def end_step(self, now: float) -> tuple[list[Asked], list[Asked]]:
        """Return the requests whose answers began, and those that ended."""
        self.costs.note(now - self._began, self._num_tokens, len(self._stepping))
        for one in self._stepping:
            one.num_output += 1
        ended = [one for one in self.decoding if one.num_output >= NUM_OUTPUT_TOKENS]
        begun = [one for one in self.prefilling if not one.num_left]
        for one in begun:
            one.first, one.num_output = now, 1
            self.warm[one.prefix] = one.num_tokens - QUESTION_TOKENS
            self.first_tokens.append(now - one.asked)
        self.decoding = [one for one in self.decoding if one not in ended] + begun
        self.prefilling = [one for one in self.prefilling if one not in begun]
        return begun, ended


class Link:
    """A peer's backend, of which the router wants no more than a name."""

    def __init__(self, name: str) -> None:
        self.name = name


@dataclass
class Outcome:
    """Of all requests: seconds to the first token, how many found nothing cached, how many each node got."""

    first_tokens: list[float]
    num_missed: int
    num_requests: list[int]

    @property
    def mean(self) -> float:
        return statistics.fmean(self.first_tokens)


class Simulation:
    """`num_clients` ask one after another until all agents have asked once, each through the first node."""

    def __init__(self, policy: Policy, num_clients: int, seed: int) -> None:
        names = [f"n{number}" for number in range(1, NUM_NODES)]
        self.router = ClusterRouter(
            Balancer(policy, random.Random(seed)), engine_names=["native:m"], offered_names=["native:m"]
        )
        self.router.own.offer = offer = Offer(models=(ModelInfo(id="m"),))
        for name in names:
            peer = Peer(id=name, called=name, backend=cast("Backend", Link(name)), round_trip_seconds=0.0003)
            peer.connected()
            peer.offer = offer
            self.router.add(peer)
        self.engines = {name: Engine() for name in ("native:m", *(f"peer:{name}" for name in names))}
        self.num_requests = dict.fromkeys(self.engines, 0)
        self._free = [0.0] * num_clients
        """When each client that waits for no answer asks again."""

    def run(self, agents: Sequence[tuple[int, ChatRequest]], num_tokens: int) -> Outcome:
        """Return what the clients saw."""
        waiting, done, tick = list(agents), list[Asked](), 0
        while len(done) < len(agents):
            now = tick * TICK
            while waiting and self._free and min(self._free) <= now:
                self._free.remove(min(self._free))
                prefix, chat = waiting.pop()
                self._ask(Asked(chat, prefix, num_tokens, now))
            if tick % round(LOAD_SECONDS / TICK) == 0:
                self._tell_loads(tick + 1)
            done += self._compute(now)
            tick += 1
        missed = sum(not one.num_cached for one in done)
        return Outcome([one.first - one.asked for one in done], missed, list(self.num_requests.values()))

    def _ask(self, one: Asked) -> None:
        name = self.router.order(one.chat, list(self.engines))[0]
        self.router.asked(one.chat, name)
        self.engines[name].waiting.append(one)
        self.num_requests[name] += 1

    def _tell_loads(self, sequence: int) -> None:
        own, *others = self.engines.values()
        self.router.own.tell(own.load(sequence))
        for peer, engine in zip(self.router, others, strict=True):
            peer.take(engine.load(sequence))

    def _compute(self, now: float) -> list[Asked]:
        for engine in self.engines.values():
            if not engine.is_busy:
                engine.begin_step(now)
        busy = {name: engine for name, engine in self.engines.items() if engine.is_busy}
        done: list[Asked] = []
        for name, engine in busy.items():
            engine.left -= TICK * min(1.0, NUM_CORES / len(busy))
            if not engine.is_busy:
                begun, ended = engine.end_step(now + TICK)
                for one in begun:
                    self.router.began(one.chat, name)
                self._free += [now + TICK + WAY_SECONDS] * len(ended)
                done += ended
        return done


def simulate(
    policy: Policy, *, num_prefixes: int = 10, num_clients: int = 3, num_tokens: int = 1500, seed: int = 5
) -> Outcome:
    """Return what a hundred agents see whose system prompts have so many tokens."""
    rng = random.Random(seed)
    systems = [f"Rule book {number}. " + "care about dates " * (num_tokens // 3) for number in range(num_prefixes)]
    agents = [
        (
            agent % num_prefixes,
            ChatRequest(
                model="m",
                messages=[
                    Message("system", systems[agent % num_prefixes]),
                    Message("user", f"Agent {agent}: what matters most?"),
                ],
            ),
        )
        for agent in range(100)
    ]
    rng.shuffle(agents)
    return Simulation(policy, num_clients, seed).run(agents, num_tokens + QUESTION_TOKENS)
