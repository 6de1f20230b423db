"""The processes of an engine: one, or copies of each other that answer as one.

Which copy gets a request the coordinator decides (`core/cluster/coordinator`); here its decisions are carried out.
Safe from any thread; the supervisors' threads call `started`, `died`, `sent`, `ended`, `told`, `loading` and `move`.
Lock order: this lock, then a supervisor's.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future

import msgspec

from pyagent.core.cluster.coordinator import Coordinator, CopyLoad, Prompt
from pyagent.core.cluster.prefixes import prefix_keys
from pyagent.core.cluster.routing import Balancer
from pyagent.core.cluster.waves import Waves
from pyagent.core.load_progress import LoadProgress
from pyagent.core.messages import ChatRequest
from pyagent.core.token_estimate import estimated_request_tokens
from pyagent.infrastructure.engine.load_watch import LoadLog
from pyagent.infrastructure.engine.sessions.replay import ReplayStore
from pyagent.infrastructure.engine.subprocess.in_flight import InFlightRequest
from pyagent.infrastructure.engine.subprocess.pins import Pins
from pyagent.infrastructure.engine.subprocess.protocol import Command, LoadModel, Start, UnloadModel
from pyagent.infrastructure.engine.subprocess.supervisor import Supervisor

logger = logging.getLogger(__name__)


class Copies:
    """The supervisors of an engine's processes, and which of them has what."""

    def __init__(self, starts: Sequence[Start], hang_seconds: float | None, on_change: Callable[[bool], None]) -> None:
        """`on_change` is called with whether there is a process that answers."""
        turns = ReplayStore()  # of all copies: a conversation goes on with the same tokens at any
        self.supervisors = [
            Supervisor(index, start, self, turns, hang_seconds, is_alone=len(starts) == 1)
            for index, start in enumerate(starts)
        ]
        self._on_change = on_change
        self._coordinator = Coordinator(len(starts), Balancer())
        self._waves = Waves()
        self._models: list[str] = []  # that every copy has, or loads
        self.pins = Pins()
        self._loads: dict[tuple[int, str], LoadProgress] = {}
        self._load_log = LoadLog()
        self._changed = threading.Condition()

    def __len__(self) -> int:
        return len(self.supervisors)

    @property
    def is_started(self) -> bool:
        """Whether there was a request or a call yet."""
        return any(one.is_started for one in self.supervisors)

    @property
    def num_requests(self) -> int:
        """Return how many requests have not ended."""
        return sum(one.num_requests for one in self.supervisors)

    @property
    def num_waves(self) -> int:
        """Return the number of waves so far, the present one included."""
        return self._waves.number

    def num_requests_of(self, copy: int) -> int:
        """Return how many requests a copy has."""
        return self._coordinator.num_requests(copy)

    def num_prompt_tokens_left_of(self, copy: int) -> int:
        """Return how many tokens of its requests' prompts a copy has yet to compute."""
        return self._coordinator.num_prompt_tokens_left(copy)

    # -- requests -----------------------------------------------------------------------------------------------------

    def submit(self, request: InFlightRequest) -> None:
        """Send a request to the copy that will answer it soonest."""
        prompt = self._prompt(request.request)
        with self._changed:
            copy = self._coordinator.choose(prompt) or 0
            request.num_tokens_left = self._coordinator.began(copy, prompt)
            request.copy = copy
        self._load_elsewhere(request.request.model, copy)
        self.supervisors[copy].submit(request)

    def leave(self, request: InFlightRequest, *, has_end: bool) -> None:
        """Note that a request's reader has its end, or wants no more of it: then it is aborted."""
        with self._changed:
            if request.is_over or request.copy is None:
                return
            request.is_over, copy = True, request.copy
            self._coordinator.ended(copy, request.num_tokens_left)
        if not has_end:
            self.supervisors[copy].abort(request)

    def chosen(self, request: ChatRequest) -> int:
        """Return the copy that a request would go to."""
        prompt = self._prompt(request)
        with self._changed:
            return self._coordinator.choose(prompt) or 0

    def _prompt(self, request: ChatRequest) -> Prompt:
        if len(self) == 1:
            return Prompt(num_tokens=estimated_request_tokens(request))
        session = (request.origin.tenant, request.session) if request.session else None
        return Prompt(num_tokens=estimated_request_tokens(request), keys=prefix_keys(request), session=session)

    def _load_elsewhere(self, model: str, copy: int) -> None:
        """Have the other copies load a model that was not asked for before; they start with that."""
        with self._changed:
            if model in self._models:
                return
            self._models.append(model)
        for index, one in enumerate(self.supervisors):
            if index != copy:
                one.call(LoadModel(model)).add_done_callback(_log_fault)

    # -- commands -----------------------------------------------------------------------------------------------------

    def call(self, copy: int, command: Command) -> Future[msgspec.Raw]:
        """Send a command to a copy. Raises `RequestError` for one that cannot be sent."""
        return self.supervisors[copy].call(command)

    async def call_all(self, command: Command) -> list[msgspec.Raw]:
        """Send a command to every copy; return their results. Raises the first error, once all have answered."""
        results = await self._results(command)
        _raise_first(results)
        return [result for result in results if not isinstance(result, BaseException)]

    async def _results(self, command: Command) -> list[msgspec.Raw | BaseException]:
        """Return the result of each copy, or its error, once all have answered."""
        waiting = [asyncio.wrap_future(future) for future in self.tell_all(command)]
        return await asyncio.gather(*waiting, return_exceptions=True)

    def tell_all(self, command: Command) -> list[Future[msgspec.Raw]]:
        """Send a command to every copy; return the futures of their results."""
        return [one.call(command) for one in self.supervisors]

    async def load(self, model: str, *, beside: bool = False) -> None:
        """Have every copy load a model; with `beside`, no other is unloaded for it: all copies have it, or none."""
        results = await self._results(LoadModel(model, beside))
        if beside and any(isinstance(result, BaseException) for result in results):
            await self._give_up(model, results)
        _raise_first(results)
        with self._changed:
            self._models += [model] if model not in self._models else []

    async def _give_up(self, model: str, results: Sequence[object]) -> None:
        """Have the copies that took a model unload it, as others did not; not where a client asked for it meanwhile."""
        with self._changed:
            if model in self._models:
                return
        took = [one for one, result in zip(self.supervisors, results, strict=True) if not isinstance(result, Exception)]
        unloading = [asyncio.wrap_future(one.call(UnloadModel(model))) for one in took]
        await asyncio.gather(*unloading, return_exceptions=True)

    def name_adapters(self, adapters: Mapping[str, str], changed: str) -> None:
        """Have processes that start from now on begin with these adapters, but not load the one that `changed`."""
        with self._changed:
            self._models = [name for name in self._models if not f":{name}".endswith(f":{changed}")]
        for one in self.supervisors:
            one.begin_with(adapters)

    def forget_models(self, level: int) -> None:
        """Note that the copies gave back their KV memory (level 1), or their models (2)."""
        with self._changed:
            self._coordinator.forget_prompts()
            if level > 1:
                self._models.clear()
        self.pins.forget()

    def wait_for_wave(self, seconds: float) -> int:
        """Block until no copy has anything to do, or so long; return how many requests they have."""
        with self._changed:
            self._changed.wait_for(lambda: not self._waves.is_running, seconds)
            return self._waves.num_open

    async def close(self) -> None:
        """End the processes; what runs fails."""
        await asyncio.gather(*(asyncio.to_thread(one.close) for one in self.supervisors))

    # -- what the supervisors tell ------------------------------------------------------------------------------------

    def started(self, copy: int) -> None:
        """Take a process that answers: it gets requests once it has the models again."""
        self._on_change(True)
        with self._changed:
            models = list(self._models) if len(self) > 1 else []
        loading = [self.supervisors[copy].call(LoadModel(model)) for model in models]
        for future in loading:
            future.add_done_callback(_log_fault)
        if loading:
            loading[-1].add_done_callback(lambda _: self._is_back(copy))
        else:
            self._is_back(copy)

    def _is_back(self, copy: int) -> None:
        if self.supervisors[copy].status.process_id is not None:  # it may have died over the models
            with self._changed:
                self._coordinator.is_back(copy)
            self.pins.restore(self.supervisors[copy].call)

    def died(self, copy: int) -> None:
        """Note that a process is gone."""
        with self._changed:
            self._coordinator.died(copy)
            if self._waves.died(copy):
                self._changed.notify_all()
            ended = [load for (of_copy, _), load in self._loads.items() if of_copy == copy]
        for load in ended:
            self.loading(copy, msgspec.structs.replace(load, is_over=True))
        self._on_change(any(one.status.process_id is not None for one in self.supervisors))

    def sent(self, copy: int, wire_id: int) -> None:
        """Note that a process is sent a request."""
        with self._changed:
            self._waves.sent(copy, wire_id)

    def ended(self, copy: int, wire_id: int) -> None:
        """Note that a process said the end of a request."""
        with self._changed:
            if self._waves.ended(copy, wire_id):
                self._changed.notify_all()

    def computed(self, request: InFlightRequest) -> None:
        """Note that a request's first output came: its prompt is computed."""
        with self._changed:
            if not request.is_over and request.copy is not None:
                self._coordinator.computed(request.copy, request.num_tokens_left)
                request.num_tokens_left = 0

    def told(self, copy: int, load: CopyLoad) -> None:
        """Take what a process tells of itself."""
        with self._changed:
            self._coordinator.told(copy, load)

    def loading(self, copy: int, load: LoadProgress) -> None:
        """Take how far a process is with loading a model, and have it shown or logged here."""
        load = msgspec.structs.replace(load, engine=copy if len(self) > 1 else None)
        with self._changed:
            self._loads.pop((copy, load.model), None)
            if not load.is_over:
                self._loads[copy, load.model] = load
            self._load_log.watch(load)

    def move(self, request: InFlightRequest) -> bool:
        """Have another copy go on with a request; return False where no other is up."""
        prompt = self._prompt(request.request)
        with self._changed:
            if request.is_over or request.copy is None:
                return True
            copy = self._coordinator.choose(prompt, without={request.copy})
            if copy is None:
                return False
            self._coordinator.ended(request.copy, request.num_tokens_left)
            request.num_tokens_left = self._coordinator.began(copy, prompt)
            request.copy = copy
        self.supervisors[copy].submit(request)
        return True


def _raise_first(results: Sequence[object]) -> None:
    for result in results:
        if isinstance(result, BaseException):
            raise result


def _log_fault(loading: Future[msgspec.Raw]) -> None:
    """Log why a copy cannot load a model ahead of its first request there, which is told the same."""
    if (error := loading.exception()) is not None:
        logger.info("a model is not loaded ahead: %s", error)
