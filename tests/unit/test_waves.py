"""Waves of engine copies: a simulator in which messages are late and copies die."""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from pyagent.core.cluster.waves import Waves


@dataclass
class Copy:
    """A copy and the two ways of its socket: requests on their way to it, and ends on their way back."""

    sent: deque[int] = field(default_factory=deque)
    working: list[int] = field(default_factory=list)
    ends: deque[int] = field(default_factory=deque)

    @property
    def has_something(self) -> bool:
        return bool(self.sent or self.working or self.ends)


class World:
    """Copies whose messages arrive when the simulator says so, and the account of them."""

    def __init__(self, num_copies: int, rng: random.Random) -> None:
        self.copies = [Copy() for _ in range(num_copies)]
        self.waves, self.rng, self.num_requests = Waves(), rng, 0

    def step(self, kind: str) -> None:
        number = self.rng.randrange(len(self.copies))
        copy = self.copies[number]
        was_running, was = self.waves.is_running, self.waves.number
        match kind:
            case "send":
                self.num_requests += 1
                self.waves.sent(number, self.num_requests)
                copy.sent.append(self.num_requests)
            case "arrive" if copy.sent:
                copy.working.append(copy.sent.popleft())
            case "finish" if copy.working:
                copy.ends.append(copy.working.pop(self.rng.randrange(len(copy.working))))
            case "hear" if copy.ends:
                is_complete = self.waves.ended(number, copy.ends.popleft())
                assert is_complete == (not any(one.has_something for one in self.copies))
            case "die":
                had = copy.has_something
                old = [*copy.sent, *copy.working, *copy.ends]
                self.copies[number] = Copy()
                is_complete = self.waves.died(number)
                assert is_complete == (had and not any(one.has_something for one in self.copies))
                assert not any(self.waves.ended(number, request) for request in old), "ends of a former life"
            case _:
                pass
        assert self.waves.is_running == any(one.has_something for one in self.copies)
        assert self.waves.number - was == (not was_running and self.waves.is_running)
        assert self.waves.num_open == sum(len(one.sent) + len(one.working) + len(one.ends) for one in self.copies)


KINDS = st.lists(st.sampled_from(["send", "send", "arrive", "finish", "hear", "die"]), max_size=120)


@given(KINDS, st.integers(1, 5), st.integers(0, 1 << 32))
def test_wave_runs_exactly_while_a_copy_has_something(kinds: list[str], num_copies: int, seed: int) -> None:
    """Whatever is late or dies: no wave completes early, each completes once, and none hangs when sending stops."""
    world = World(num_copies, random.Random(seed))
    for kind in kinds:
        world.step(kind)
    while any(one.has_something for one in world.copies):
        world.step(world.rng.choice(["arrive", "finish", "hear"]))
    assert not world.waves.is_running
