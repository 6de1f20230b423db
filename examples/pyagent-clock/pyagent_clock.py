"""A PyAgent plugin with an eviction policy: CLOCK, which gives each block that was hit a second chance."""

from collections import OrderedDict
from collections.abc import Mapping

from pyagent.plugin import EvictionPolicy, EvictionPolicyFactory, hookimpl


class Clock:
    """Corbató, A paging experiment with the Multics system (1968). The hand is the front of an ordered dict."""

    def __init__(self) -> None:
        self.was_hit: dict[int, bool] = {}
        self.released: OrderedDict[int, None] = OrderedDict()

    def insert(self, block: int, key: int, priority: int) -> None:
        self.was_hit[block] = False

    def hit(self, block: int) -> None:
        self.was_hit[block] = True

    def release(self, block: int) -> None:
        self.released[block] = None

    def hold(self, block: int) -> None:
        self.released.pop(block, None)

    def evict(self) -> int | None:
        while self.released:
            block, _ = self.released.popitem(last=False)
            if not self.was_hit[block]:
                del self.was_hit[block]
                return block
            self.was_hit[block] = False  # its second chance
            self.released[block] = None
        return None

    def forget(self, block: int) -> None:
        self.was_hit.pop(block, None)
        self.released.pop(block, None)


def make_clock(num_blocks: int) -> EvictionPolicy:
    return Clock()


@hookimpl
def pyagent_register_eviction_policies() -> Mapping[str, EvictionPolicyFactory]:
    return {"clock": make_clock}
