from pyagent_clock import Clock

from pyagent.testing import EvictionPolicyConformance


class TestClock(EvictionPolicyConformance):
    def make(self, num_blocks: int) -> Clock:
        return Clock()


def test_a_block_that_was_hit_has_a_second_chance() -> None:
    """The oldest goes first, but for one that was hit, which goes when its turn comes again."""
    clock = Clock()
    for block in range(3):
        clock.insert(block, key=block, priority=0)
    clock.hit(0)
    for block in range(3):
        clock.release(block)
    assert [clock.evict() for _ in range(4)] == [1, 2, 0, None]
