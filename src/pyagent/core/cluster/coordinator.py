"""Which copy of an engine answers a request: the ranking of nodes (`routing`) over copies on one machine.

Knows no process and no clock; its owner tells it what happens. One client sends every request, so how many each copy
has is counted exactly; what a copy tells of itself (`CopyLoad`) may be a tenth of a second old.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import msgspec

from pyagent.core.cluster.prefixes import WarmPrefixes, num_warm_tokens
from pyagent.core.cluster.routing import LEAST_TOKENS, Balancer, Node

_MAX_SESSIONS = 10_000


class CopyLoad(msgspec.Struct, frozen=True, kw_only=True):
    """What a copy tells of itself while it works: sequences that run, its speed, and pages of KV memory left.

    `max_num_running` sequences may run at once; 0 where that is not told.
    """

    num_running: int = 0
    max_num_running: int = 0
    free_kv_pages: int = 1
    prefill_tokens_per_second: float = 0.0
    first_token_seconds: float = 0.0


_UNKNOWN = CopyLoad()


class Prompt(msgspec.Struct, frozen=True, kw_only=True):
    """What matters of a request: its length in tokens, the keys of its beginning (`prefixes`), whose session it is.

    The keys are those of one tenant and model; `session` names the tenant too, and is None where there is none.
    """

    num_tokens: int = 0
    keys: Sequence[int] = ()
    session: tuple[str, str] | None = None


@dataclass(slots=True)
class _Copy:
    """`num_requests` were sent to it and have not ended, `num_prompt_tokens_left` of those without an output yet.

    `is_down` from its death until it can answer again.
    """

    load: CopyLoad = _UNKNOWN
    warm: WarmPrefixes = field(default_factory=WarmPrefixes)
    num_requests: int = 0
    num_prompt_tokens_left: int = 0
    is_down: bool = False

    def num_warm(self, prompt: Prompt, *, is_home: bool) -> int:
        """Return how many tokens of a prompt it has computed, or will have when its turn comes."""
        return prompt.num_tokens if is_home else num_warm_tokens(prompt.keys, self.warm, prompt.num_tokens)

    def as_node(self, name: str, prompt: Prompt, speed: CopyLoad, *, is_home: bool) -> Node:
        """Return the copy as the ranking sees it. Without KV memory, a request waits for each that runs."""
        has_room = self.load.free_kv_pages > 0
        running = min(self.load.num_running, self.num_requests) if has_room else 0
        places = self.load.max_num_running or self.num_requests
        return Node(
            id=name,
            num_running=running,
            num_waiting=self.num_requests - running,
            num_free=max(0, places - running) if has_room else 0,
            num_prompt_tokens_left=self.num_prompt_tokens_left,
            num_warm_tokens=self.num_warm(prompt, is_home=is_home),
            prefill_tokens_per_second=speed.prefill_tokens_per_second,
            first_token_seconds=speed.first_token_seconds,
        )


class Coordinator:
    """Counts what each copy has, and chooses one for a request."""

    def __init__(self, num_copies: int, balancer: Balancer) -> None:
        self._copies = [_Copy() for _ in range(num_copies)]
        self._balancer = balancer
        self._homes: OrderedDict[tuple[str, str], int] = OrderedDict()

    def num_requests(self, copy: int) -> int:
        """Return how many requests a copy has."""
        return self._copies[copy].num_requests

    def num_prompt_tokens_left(self, copy: int) -> int:
        """Return how many tokens of its requests' prompts a copy has yet to compute."""
        return self._copies[copy].num_prompt_tokens_left

    def choose(self, prompt: Prompt, without: Collection[int] = ()) -> int | None:
        """Return the copy for a request: of those that are up, or of all when none is.

        Copies of `without` are not chosen; None when no other is up.
        """
        others = [index for index in range(len(self._copies)) if index not in without]
        up = [index for index in others if not self._copies[index].is_down]
        if not up and without:
            return None
        home = self._homes.get(prompt.session) if prompt.session else None
        speed = self._speed()
        nodes = [
            self._copies[index].as_node(str(index), prompt, speed, is_home=index == home) for index in up or others
        ]
        return int(self._balancer.order(nodes, prompt.num_tokens)[0].id)

    def _speed(self) -> CopyLoad:
        """Return the best speed of any copy. They are alike: one that seems slower was not measured so well."""
        loads = [one.load for one in self._copies]
        first_tokens = [load.first_token_seconds for load in loads if load.first_token_seconds]
        return CopyLoad(
            prefill_tokens_per_second=max(load.prefill_tokens_per_second for load in loads),
            first_token_seconds=min(first_tokens, default=0.0),
        )

    def began(self, copy: int, prompt: Prompt) -> int:
        """Note that a request is sent to a copy: its prompt will be warm there. Return the tokens to compute of it."""
        one = self._copies[copy]
        num_warm = one.num_warm(prompt, is_home=prompt.session is not None and self._homes.get(prompt.session) == copy)
        num_tokens = max(LEAST_TOKENS, prompt.num_tokens - num_warm)
        one.num_requests += 1
        one.num_prompt_tokens_left += num_tokens
        one.warm.add(prompt.keys)
        if prompt.session:
            self._homes[prompt.session] = copy
            self._homes.move_to_end(prompt.session)
            if len(self._homes) > _MAX_SESSIONS:
                self._homes.popitem(last=False)
        return num_tokens

    def computed(self, copy: int, num_tokens: int) -> None:
        """Note that so many tokens of a prompt are computed: its answer begins."""
        self._copies[copy].num_prompt_tokens_left -= num_tokens

    def ended(self, copy: int, num_tokens_left: int) -> None:
        """Note that a request of a copy ended, or went to another, with so many tokens of its prompt not computed."""
        self._copies[copy].num_requests -= 1
        self.computed(copy, num_tokens_left)

    def told(self, copy: int, load: CopyLoad) -> None:
        """Take what a copy tells of itself."""
        self._copies[copy].load = load

    def died(self, copy: int) -> None:
        """Note that a copy is gone; nothing is warm there any more."""
        one = self._copies[copy]
        one.is_down, one.load = True, _UNKNOWN
        one.warm.clear()
        self._homes = OrderedDict((session, home) for session, home in self._homes.items() if home != copy)

    def is_back(self, copy: int) -> None:
        """Note that a copy answers again."""
        self._copies[copy].is_down = False

    def forget_prompts(self) -> None:
        """Note that all copies gave their KV memory back."""
        self._homes.clear()
        for one in self._copies:
            one.warm.clear()
