"""The waiting requests: one queue for each request class, each in its policy's order, sharing the engine by weight.

Classes share by stride: each has a clock that its tokens move on, slower the larger its share, and the class whose
clock is behind is asked first. A class that comes back after a pause starts at the clock of those at work. A class
with waiting requests runs: a share limits none while others are idle.

A policy may come from a plugin. One that raises, hangs or leaves out requests that wait is replaced by first come,
first served, and named in the log.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from pyagent.core.errors import ConfigError, PyAgentError, RequestError
from pyagent.core.nearest import did_you_mean
from pyagent.core.scheduling import PreemptingPolicy, QueuePolicy, QueuePolicyFactory
from pyagent.infrastructure.engine.scheduler.policies import BUILT_IN
from pyagent.infrastructure.engine.scheduler.policies.guarded import answer_in_time, guarded
from pyagent.infrastructure.engine.scheduler.policies.ordered import make_fcfs

if TYPE_CHECKING:
    from pyagent.infrastructure.engine.request import Request

logger = logging.getLogger(__name__)

T = TypeVar("T")

DEFAULT_CLASS = "default"


@dataclass(frozen=True, slots=True)
class QueueOptions:
    """A class's policy by name, the policy's options, and the class's share of the engine."""

    policy: str = "fcfs"
    options: Mapping[str, object] = field(default_factory=dict[str, object])
    share: float = 1.0


class ClassQueue:
    """The requests of one class: those that wait, in order, and those that run."""

    def __init__(self, name: str, policy: QueuePolicy, share: float, policy_name: str = "") -> None:
        self.name = name
        self.clock = 0.0
        self.waiting: dict[int, Request] = {}
        self.running: dict[int, Request] = {}
        self._share = share
        self._policy_name = policy_name or type(policy).__name__
        self._use(policy)

    @property
    def is_active(self) -> bool:
        """Whether it has any request."""
        return bool(self.waiting or self.running)

    def add(self, request: Request, now: float) -> None:
        """Enqueue a waiting request, new or preempted."""
        self.running.pop(request.id, None)
        self._ask(lambda policy: policy.add(request, now), now)
        self.waiting[request.id] = request

    def start(self, request: Request, now: float) -> None:
        """Note that a waiting request starts."""
        self._leave(request, now)
        self.running[request.id] = request

    def remove(self, request: Request, now: float) -> None:
        """Remove a request that ended, waiting or running; do nothing when it is removed already."""
        if request.id not in self.waiting and request.id not in self.running:
            return
        self.settle(request, now)
        if request.id in self.waiting:
            self._leave(request, now)
        self.running.pop(request.id, None)
        self._ask(lambda policy: policy.finished(request, now), now)

    def ordered(self, now: float) -> Iterator[Request]:
        """Waiting requests in the policy's order, from the start again when the policy fails."""
        for request in self.running.values():
            self.settle(request, now)
        try:
            yield from self._checked_order(now)
        except Exception as error:  # noqa: BLE001 - a plugin's failure must not end the engine
            self._replace_policy(error, now)
            yield from self.ordered(now)

    def _checked_order(self, now: float) -> Iterator[Request]:
        """The policy's order; raises when it has a request twice, one that does not wait, or not all that do."""
        seen: set[int] = set()
        for request in self._policy.ordered(now):
            if request.id in seen:
                raise RuntimeError(f"it gave the request {request.id} twice")
            seen.add(request.id)
            yield self.waiting[request.id]
        if num_missing := sum(request_id not in seen for request_id in self.waiting):
            raise RuntimeError(f"it left out {num_missing} of {len(self.waiting)} waiting requests")

    def settle(self, request: Request, now: float) -> None:
        """Charge what the request was served since the last time; what is computed again costs nothing."""
        reached = len(request.tokens) if request.num_output_tokens else request.num_computed
        served = reached - request.num_charged
        if served <= 0:
            return
        num_prompt = max(0, min(reached, request.num_prompt_tokens) - request.num_charged)
        request.num_charged += served
        self.clock += served / self._share
        self._ask(lambda policy: policy.served(request, num_prompt, served - num_prompt, now), now)

    def victim(self, running: Sequence[Request], now: float) -> Request:
        """Who of these yields; never empty."""
        for request in running:
            self.settle(request, now)
        chosen = self._ask(lambda policy: policy.victim(running, now), now)
        return next((request for request in running if request is chosen), running[-1])

    def victim_for(self, waiting: Request, running: Sequence[Request], now: float) -> Request | None:
        """Return which of these the waiting request preempts; None when it has to wait."""

        def ask(_: QueuePolicy) -> object:  # the policy that replaces it preempts none
            return None if self._preempting is None else self._preempting.victim_for(waiting, running, now)

        chosen = self._ask(ask, now)
        return next((request for request in running if request is chosen), None)

    def _use(self, policy: QueuePolicy) -> None:
        self._policy = policy
        self._preempting = policy if isinstance(policy, PreemptingPolicy) else None

    @property
    def is_preempting(self) -> bool:
        """Whether a waiting request may preempt a running one."""
        return self._preempting is not None

    def _leave(self, request: Request, now: float) -> None:
        self._ask(lambda policy: policy.remove(request), now)
        del self.waiting[request.id]

    def _ask(self, call: Callable[[QueuePolicy], T], now: float) -> T:
        try:
            return call(self._policy)
        except Exception as error:  # noqa: BLE001 - as above
            self._replace_policy(error, now)
        return call(self._policy)

    def _replace_policy(self, error: Exception, now: float) -> None:
        why = f"{type(error).__name__}: {error}"
        text = "queue %s is first come, first served from now on: its policy %s failed: %s"
        logger.error(text, self.name, self._policy_name, why, exc_info=error)
        self._use(make_fcfs({}))
        for request in self.waiting.values():
            self._policy.add(request, now)


class RequestQueues:
    """All classes. Requests come in by their class and are offered in the order they should run."""

    def __init__(self, queues: Sequence[ClassQueue]) -> None:
        self._queues = {queue.name: queue for queue in queues}

    @property
    def num_waiting(self) -> int:
        """How many wait."""
        return sum(len(queue.waiting) for queue in self._queues.values())

    @property
    def waiting(self) -> list[Request]:
        """Those that wait, in no order; may be asked from any thread."""
        return [request for queue in self._queues.values() for request in list(queue.waiting.values())]

    def depths(self) -> dict[str, int]:
        """Return how many wait, by class."""
        return {name: len(queue.waiting) for name, queue in self._queues.items()}

    def check(self, request_class: str) -> str:
        """Return the class's name; raises `RequestError` naming the classes when there is no such one."""
        name = request_class or DEFAULT_CLASS
        if name not in self._queues:
            known = ", ".join(self._queues)
            raise RequestError(f"there is no request class {name!r}; the classes are {known}", param="request_class")
        return name

    def add(self, request: Request, now: float) -> None:
        """Let a request wait its turn: new or put back."""
        queue = self._queues[request.request_class]
        if not queue.is_active:
            clocks = [other.clock for other in self._queues.values() if other.is_active]
            queue.clock = max(queue.clock, min(clocks, default=queue.clock))
        queue.add(request, now)

    def start(self, request: Request, now: float) -> None:
        """Note that a waiting request starts."""
        self._queues[request.request_class].start(request, now)

    def remove(self, request: Request, now: float) -> None:
        """Remove a request that ended, waiting or running."""
        self._queues[request.request_class].remove(request, now)

    def settle(self, request: Request, now: float) -> None:
        """Charge what the request was served since the last time."""
        self._queues[request.request_class].settle(request, now)

    def ordered(self, now: float) -> Iterator[Request]:
        """Waiting requests, those of the class that is furthest behind first."""
        for queue in sorted(self._queues.values(), key=lambda queue: queue.clock):
            if queue.waiting:
                yield from queue.ordered(now)

    def preempting(self) -> list[ClassQueue]:
        """Return the classes with waiting requests that may preempt a running one."""
        return [queue for queue in self._queues.values() if queue.waiting and queue.running and queue.is_preempting]

    def victim(self, running: Sequence[Request], now: float) -> Request:
        """Who of these yields: of the class that is furthest ahead, whom its policy names."""
        for request in running:
            self.settle(request, now)
        ahead = max({request.request_class for request in running}, key=lambda name: self._queues[name].clock)
        return self._queues[ahead].victim([request for request in running if request.request_class == ahead], now)


def make_queues(
    options: Mapping[str, QueueOptions], factories: Mapping[str, QueuePolicyFactory] = BUILT_IN
) -> RequestQueues:
    """Return the queues of the settings, and the class `default` when they do not name it. Raises `ConfigError`.

    First come, first served is there even when the plugin that brings the policies is disabled.
    """
    wanted = dict(options)
    wanted.setdefault(DEFAULT_CLASS, QueueOptions())
    factories = {"fcfs": make_fcfs, **factories}
    return RequestQueues([_make_queue(name, queue, factories) for name, queue in wanted.items()])


def _make_queue(name: str, options: QueueOptions, factories: Mapping[str, QueuePolicyFactory]) -> ClassQueue:
    factory = factories.get(options.policy)
    if factory is None:
        hint = did_you_mean(options.policy, factories, f"there are {', '.join(sorted(factories))}")
        raise ConfigError(
            f"engine.queues.{name}: no plugin brings the policy {options.policy!r}; {hint}", key="engine.queues"
        )
    if factory in BUILT_IN.values():
        return ClassQueue(name, factory(options.options), options.share, options.policy)
    try:
        policy = guarded(answer_in_time(f"the queue policy {options.policy}", lambda: factory(options.options)))
    except PyAgentError:
        raise
    except Exception as error:  # noqa: BLE001 - a plugin's failure must not end the engine
        text = "queue %s is first come, first served: its policy %s cannot be made: %s: %s"
        logger.error(text, name, options.policy, type(error).__name__, error)  # noqa: TRY400 - the sentence says it
        policy = make_fcfs({})
    return ClassQueue(name, policy, options.share, options.policy)
