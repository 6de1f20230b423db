"""A queue that takes the request with the least left to do first; a second of waiting makes up for 100 tokens."""

from collections.abc import Iterator, Mapping, Sequence

from pyagent.plugin import ConfigError, Queued, QueuePolicy, QueuePolicyFactory, hookimpl

TOKENS_PER_SECOND = 100.0


class Shortest:
    def __init__(self) -> None:
        self.waiting: dict[int, Queued] = {}

    def add(self, request: Queued, now: float) -> None:
        self.waiting[request.id] = request

    def remove(self, request: Queued) -> None:
        del self.waiting[request.id]

    def ordered(self, now: float) -> Iterator[Queued]:
        # Everybody ages alike, so the order does not depend on `now`: nobody starves.
        yield from sorted(self.waiting.values(), key=lambda one: one.num_left + TOKENS_PER_SECOND * one.arrived)

    def served(self, request: Queued, num_prompt: int, num_output_tokens: int, now: float) -> None:
        pass

    def finished(self, request: Queued, now: float) -> None:
        pass

    def victim(self, running: Sequence[Queued], now: float) -> Queued:
        return max(running, key=lambda one: (one.arrived, one.id))


def make_shortest(options: Mapping[str, object]) -> QueuePolicy:
    if options:
        raise ConfigError(f"the queue policy shortest has no options, got {', '.join(options)}", key="engine.queues")
    return Shortest()


@hookimpl
def pyagent_register_queue_policies() -> Mapping[str, QueuePolicyFactory]:
    return {"shortest": make_shortest}
