"""A link that answers so many requests at once, and lets the others wait where they can be withdrawn."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from support.server import Model, words

from pyagent.core.errors import CapacityError, MovedError, RequestError
from pyagent.core.messages import ChatDelta, ChatRequest, ModelInfo
from pyagent.core.token_estimate import estimated_request_tokens
from pyagent.core.withdrawal import Withdrawal
from pyagent.infrastructure.engine.client import EngineState
from pyagent.infrastructure.engine.stats import EngineStats, Percentiles


class Queueing(Model):
    """Model `m`, unless named. A request that has begun says "from NAME", one word, and goes on when `gate` is open.

    `begun` are those that began here, in order; `num_arriving` it says that it has besides. With `num_waiting_max`
    further ones are refused, as an engine does.
    """

    def __init__(
        self, name: str, slots: int = 1, *, is_open: bool = False, num_waiting_max: int = 1000, model: str = "m"
    ) -> None:
        super().__init__(models=[model])
        self.name, self.slots, self.num_waiting_max = f"native:{name}", slots, num_waiting_max
        self.num_arriving = 0
        self.gate = asyncio.Event()
        if is_open:
            self.gate.set()
        self.begun: list[ChatRequest] = []
        self.waiting: list[tuple[ChatRequest, asyncio.Future[None]]] = []

    async def models(self) -> list[ModelInfo]:
        return [ModelInfo(id=model, backend=self.name, is_loaded=True) for model in self.model_ids]

    async def chat(self, request: ChatRequest) -> AsyncIterator[ChatDelta]:
        self.requests.append(request)
        if request.model not in {"", self.name, *self.model_ids}:
            raise RequestError(f"there is no model {request.model!r}", param="model", code="model_not_found")
        await self._enter(request)
        try:
            self.begun.append(request)
            yield ChatDelta(content="from ")
            await self.gate.wait()
            for delta in words(self.name.removeprefix("native:")):
                yield delta
        finally:
            self.num_running -= 1
            if self.waiting and self.num_running < self.slots:
                self.num_running += 1
                self.waiting.pop(0)[1].set_result(None)

    async def _enter(self, request: ChatRequest) -> None:
        if self.num_running < self.slots:
            self.num_running += 1
            return
        if len(self.waiting) >= self.num_waiting_max:
            raise CapacityError("full", retry_after_seconds=0.3)
        turn = request, asyncio.get_running_loop().create_future()
        self.waiting.append(turn)
        try:
            await turn[1]
        except asyncio.CancelledError:
            if turn in self.waiting:
                self.waiting.remove(turn)
            else:
                self.num_running -= 1
            raise

    async def withdraw(self, wanted: Withdrawal) -> int:
        taken = [
            (request, turn)
            for request, turn in self.waiting
            if request.is_movable and (request.origin.node or not wanted.of_peers)
        ][: wanted.at_most]
        for one in taken:
            self.waiting.remove(one)
            one[1].set_exception(MovedError("it had not begun", to=wanted.to))
        return len(taken)

    async def engine_state(self) -> EngineState:
        stats = EngineStats(
            num_running=self.num_running,
            max_num_running=self.slots,
            waiting={"default": len(self.waiting)},
            num_prompt_tokens_left=sum(estimated_request_tokens(request) for request, _ in self.waiting),
            first_token_seconds=Percentiles(0.2, 0.2, 0.2),
        )
        return EngineState(
            state="ready",
            num_running=self.num_running + len(self.waiting),
            num_arriving=self.num_arriving,
            num_arriving_tokens=100 * self.num_arriving,
            stats={self.model_ids[0]: stats},
        )
