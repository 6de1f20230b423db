"""What every order must do: of waiting requests (a queue policy), and of cached blocks (an eviction policy).

    class TestShortest(QueuePolicyConformance):
        def make(self, options):
            return make_shortest(options)

Nothing is assumed of the order itself. A random walk, the same in each run, does what the scheduler and the pool do.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice

import pytest

from pyagent.core.errors import ConfigError
from pyagent.core.eviction import EvictionPolicy
from pyagent.core.messages import Origin
from pyagent.core.scheduling import PreemptingPolicy, QueuePolicy

_NUM_WALKS = 20
_NUM_MOVES = 200
_MANY = 4_000
_MANY_SECONDS = 5.0


@dataclass(eq=False)
class QueuedRequest:
    """A request as a policy sees it."""

    id: int
    arrived: float = 0.0
    priority: int = 0
    deadline: float | None = None
    origin: Origin = field(default_factory=Origin)
    num_prompt_tokens: int = 10
    num_output_tokens: int = 0
    num_left: int = 10


class QueuePolicyConformance:
    """Derive from it, and define `make`."""

    def make(self, options: Mapping[str, object]) -> QueuePolicy:
        """Return a new policy with these options, as the plugin's factory does."""
        raise NotImplementedError

    def test_each_waiting_request_is_offered_once(self) -> None:
        """Whatever is added, admitted, preempted, served and ended: exactly those that wait are offered, each once."""
        for walk in self._walks():
            for _ in walk.moves():
                offered = [request.id for request in walk.policy.ordered(walk.now)]
                assert sorted(offered) == sorted(walk.waiting), f"{sorted(walk.waiting)} wait, it offers {offered}"

    def test_looking_changes_nothing(self) -> None:
        """The order is the same when asked again, also after it was read only in part."""
        for walk in self._walks():
            for _ in walk.moves():
                first = [request.id for request in walk.policy.ordered(walk.now)]
                list(islice(walk.policy.ordered(walk.now), 1))
                again = [request.id for request in walk.policy.ordered(walk.now)]
                assert again == first, f"asked again, it offers {again} in place of {first}"

    def test_victim_is_one_that_runs(self) -> None:
        """What is to be preempted is one of those that it was given."""
        for walk in self._walks():
            for _ in walk.moves():
                running = [*walk.running.values()]
                if running:
                    victim = walk.policy.victim(running, walk.now)
                    assert victim in running, f"the victim {victim!r:.80} is none of those that run"

    def test_preempting_ends(self) -> None:
        """A request that is preempted for a waiting one comes behind it, so that they do not take turns for ever."""
        if not isinstance(self.make({}), PreemptingPolicy):
            pytest.skip("it does not preempt for waiting requests")
        for walk in self._walks():
            for _ in walk.moves():
                self._check_preemption(walk)

    def _check_preemption(self, walk: _Walk) -> None:
        policy, running = walk.policy, [*walk.running.values()]
        waiting = next(iter(policy.ordered(walk.now)), None)
        if waiting is None or not running or not isinstance(policy, PreemptingPolicy):
            return
        victim = policy.victim_for(waiting, running, walk.now)
        if victim is None:
            return
        assert victim in running, f"the victim {victim!r:.80} is none of those that run"
        policy.add(walk.waiting.setdefault(victim.id, walk.running.pop(victim.id)), walk.now)
        order = [request.id for request in policy.ordered(walk.now)]
        assert order.index(waiting.id) < order.index(victim.id), "the victim comes before what it gave way to"

    def test_unknown_option_is_refused_by_name(self) -> None:
        """An option that nothing reads is a `ConfigError` that names it: most are misspelt."""
        with pytest.raises(ConfigError, match="no_such_option"):
            self.make({"no_such_option": 1})

    def test_many_requests_are_ordered_quickly(self) -> None:
        """With 4,000 that wait, adding, looking at the first and removing take a millisecond each at most."""
        policy = self.make({})
        requests = [QueuedRequest(number, float(number % 7), number % 3) for number in range(_MANY)]
        started = time.perf_counter()
        for request in requests:
            policy.add(request, request.arrived)
        for number in range(0, _MANY, 40):
            next(iter(policy.ordered(8.0)))
            policy.remove(requests[number])
        assert time.perf_counter() - started < _MANY_SECONDS, "its calls take more than a millisecond each"

    def _walks(self) -> Iterator[_Walk]:
        return (_Walk(self.make({}), seed) for seed in range(_NUM_WALKS))


class _Walk:
    """What a scheduler does to a policy, at random."""

    def __init__(self, policy: QueuePolicy, seed: int) -> None:
        self.policy = policy
        self.now = 0.0
        self.waiting: dict[int, QueuedRequest] = {}
        self.running: dict[int, QueuedRequest] = {}
        self._chance = random.Random(seed)  # noqa: S311 - no secret
        self._num_made = 0

    def moves(self) -> Iterator[None]:
        """Do one thing after another."""
        for _ in range(_NUM_MOVES):
            self.now += self._chance.random()
            self._chance.choice(
                [self._add, self._add, self._admit, self._admit, self._leave, self._serve, self._yield]
            )()
            yield

    def _add(self) -> None:
        chance = self._chance
        self._num_made += 1
        deadline = self.now + 5.0 if chance.random() < 0.5 else None
        origin = Origin(client=f"client {chance.randrange(3)}", agent=f"agent {chance.randrange(2)}")
        made = QueuedRequest(self._num_made, self.now, chance.randint(-2, 2), deadline, origin)
        made.num_left = made.num_prompt_tokens = chance.randint(1, 500)
        self.policy.add(self.waiting.setdefault(made.id, made), self.now)

    def _admit(self) -> None:
        if self.waiting:
            request = next(iter(self.policy.ordered(self.now)), None)
            request = self.waiting.get(request.id) if request else None
            request = request or self._chance.choice([*self.waiting.values()])
            self.policy.remove(self.waiting.pop(request.id))
            self.running[request.id] = request

    def _leave(self) -> None:
        from_queue = bool(self.waiting) and self._chance.random() < 0.3
        leaving = self.waiting if from_queue else self.running
        if leaving:
            request = leaving.pop(self._chance.choice([*leaving]))
            if from_queue:
                self.policy.remove(request)
            self.policy.finished(request, self.now)

    def _serve(self) -> None:
        for request in self.running.values():
            done = request.num_left if request.num_left > 1 else 0
            request.num_left, request.num_output_tokens = 1, request.num_output_tokens + 1
            self.policy.served(request, done, 1, self.now)

    def _yield(self) -> None:
        if self.running:
            request = self.running.pop(self._chance.choice([*self.running]))
            request.num_left = request.num_prompt_tokens + request.num_output_tokens
            self.policy.add(self.waiting.setdefault(request.id, request), self.now)


class EvictionPolicyConformance:
    """Derive from it, and define `make`."""

    def make(self, num_blocks: int) -> EvictionPolicy:
        """Return a new policy for so many blocks, as the plugin's factory does."""
        raise NotImplementedError

    def test_only_released_blocks_go(self) -> None:
        """What it gives up was released, and is no longer asked for after that."""
        for pool in self._pools():
            for _ in pool.moves():
                assert not pool.wrong, pool.wrong

    def test_every_released_block_goes_in_the_end(self) -> None:
        """Asked again and again, it gives up each released block once, and then says None."""
        for pool in self._pools():
            for _ in pool.moves():
                continue
            released = set(pool.released)
            given = [pool.policy.evict() for _ in range(len(released))]
            assert set(given) == released, f"{sorted(released)} are released, it gives up {given}"
            assert pool.policy.evict() is None, "it gives up a block when none is released"

    def test_empty_policy_has_nothing(self) -> None:
        """Without a block, or with held ones alone, there is nothing to give up."""
        policy = self.make(4)
        assert policy.evict() is None, "it gives up a block and has none"
        policy.insert(0, 17, 0)
        assert policy.evict() is None, "it gives up a block that is held"

    def test_forgotten_block_is_gone(self) -> None:
        """A block that was forgotten, held or released, is not given up, and may come again with other content."""
        policy = self.make(4)
        for block in (0, 1):
            policy.insert(block, block, 0)
        policy.release(1)
        policy.forget(0)
        policy.forget(1)
        assert policy.evict() is None, "it gives up a block that it was to forget"
        policy.insert(1, 99, 0)
        policy.release(1)
        assert policy.evict() == 1, "a block that came again is not given up"

    def test_blocks_at_most_are_kept(self) -> None:
        """A pool that fills and empties for long leaves nothing behind in the policy: its calls stay quick."""
        policy = self.make(8)
        started = time.perf_counter()
        for key in range(_MANY):
            block = key % 8
            if key >= 8:
                assert policy.evict() is not None, "it gives up nothing though all are released"
            policy.insert(block, key, 0)
            policy.hit(block)
            policy.release(block)
        assert time.perf_counter() - started < _MANY_SECONDS, "its calls take more than a millisecond each"

    def _pools(self) -> Iterator[_Pool]:
        return (_Pool(self.make(16), seed) for seed in range(_NUM_WALKS))


class _Pool:
    """What a pool of blocks does to a policy, at random. `wrong` says what the policy did that it may not."""

    def __init__(self, policy: EvictionPolicy, seed: int) -> None:
        self.policy = policy
        self.held: set[int] = set()
        self.released: set[int] = set()
        self.wrong = ""
        self._chance = random.Random(seed)  # noqa: S311 - no secret
        self._key = 0

    def moves(self) -> Iterator[None]:
        """Do one thing after another."""
        for _ in range(_NUM_MOVES):
            self._chance.choice([self._insert, self._insert, self._release, self._release, self._find, self._forget])()
            yield

    def _insert(self) -> None:
        free = set(range(16)) - self.held - self.released
        if not free:
            block = self.policy.evict()
            if block not in self.released:
                is_wrong = block is not None or bool(self.released)
                self.wrong = f"{sorted(self.released)} are released, it gives up {block}" if is_wrong else ""
                return
            self.released.discard(block)
            free = {block}
        self._key += 1
        block = min(free)
        self.policy.insert(block, self._key, self._chance.randrange(3))
        self.held.add(block)

    def _release(self) -> None:
        if self.held:
            block = self._chance.choice(sorted(self.held))
            self.held.remove(block)
            self.policy.release(block)
            self.released.add(block)

    def _find(self) -> None:
        known = sorted(self.held | self.released)
        if known:
            block = self._chance.choice(known)
            if block in self.released:
                self.policy.hold(block)
                self.released.remove(block)
                self.held.add(block)
            self.policy.hit(block)

    def _forget(self) -> None:
        known = sorted(self.held | self.released)
        if known:
            block = self._chance.choice(known)
            self.policy.forget(block)
            self.held.discard(block)
            self.released.discard(block)
