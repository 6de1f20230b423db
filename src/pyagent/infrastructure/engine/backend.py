"""The embedded engine as a `Backend`: what agents, the server and chains talk to.

Says which models there are and chooses the one a request is for; the engine does the rest.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path

import msgspec

from pyagent.core.abilities import ABILITIES, Abilities, needs
from pyagent.core.adapter_stacks import JOINT, stack_fault
from pyagent.core.capabilities import Capabilities
from pyagent.core.emulation.fulfil import first_asked, fulfil
from pyagent.core.errors import PyAgentError, RequestError
from pyagent.core.messages import (
    ChatDelta,
    ChatRequest,
    ClassifyRequest,
    ClassifyResult,
    EmbedRequest,
    EmbedResult,
    Health,
    Hint,
    ModelInfo,
    ModelTask,
    RankRequest,
    RankResult,
    TokenEmbedRequest,
    TokenEmbedResult,
    Unsupported,
)
from pyagent.core.nearest import did_you_mean
from pyagent.core.prompt_cache import CacheQuery, CacheQueryResult, ExplainPrompt, PinPrompt
from pyagent.core.runners.kv_connector import KvConnector
from pyagent.core.withdrawal import Withdrawal
from pyagent.infrastructure.engine.client import EngineClient, EngineState, LocalEngine
from pyagent.infrastructure.engine.kv_moves.moves import KvMoves
from pyagent.infrastructure.engine.lifecycle import GRACE_SECONDS, State
from pyagent.infrastructure.engine.memory.ledger import Ledger
from pyagent.infrastructure.engine.memory.process import resident_bytes
from pyagent.infrastructure.engine.memory.system import total_for
from pyagent.infrastructure.engine.models.adapter_names import TRIAL, names_of, split_name
from pyagent.infrastructure.engine.models.model_pool import ModelPool, answers_nothing
from pyagent.infrastructure.engine.options import EngineOptions
from pyagent.infrastructure.models.names import place_of

_SCHEME = "native:"
_EXAMPLES: Mapping[ModelTask, str] = {
    "embed": "native:all-minilm:l6-v2",
    "rank": "native:PATH of a cross-encoder's folder, or native:all-minilm:l6-v2",
    "classify": "native:PATH of a folder whose config.json says `...ForSequenceClassification`",
    "token_classify": "native:PATH of a folder whose config.json says `...ForTokenClassification`",
}
_ANSWERING = (None, "generate")
"""Tasks of models that answer, and of those of which it is not known."""
logger = logging.getLogger(__name__)
_ABILITIES: Abilities = ABILITIES - {"images"}
_NOT_READY = {State.DRAINING.value, State.STOPPED.value}
_AWAKE = {State.STARTING.value, State.READY.value}


class NativeBackend:
    """Answers with models run by the embedded engine; the first is the one a request gets that names none."""

    def __init__(  # noqa: PLR0913 - each is a part of its own
        self,
        model_names: Sequence[str],
        engine: EngineClient,
        *,
        look: Callable[[str], str],
        identity: str = "",
        aliases: Mapping[str, str] | None = None,
        size_of: Callable[[str], int] = lambda _: 0,
        task_of: Callable[[str], ModelTask | None] = lambda _: None,
        unsupported: Unsupported = "emulate",
        trusts_request_templates: bool = False,
    ) -> None:
        """`look` says in words what loading a model would do, or raises `ModelError`; it fetches nothing.

        `size_of` returns the bytes of a model's file, 0 where they are not known; `task_of` what a model is
        for, None where that is not known before it is loaded. `aliases` are models by
        other names that requests may use: the paths of their files. `identity` is the backend as the settings write
        it, where its name is another.

        The backend closes its share of the engine when it is closed.
        """
        self._unsupported: Unsupported = unsupported
        self._abilities = _ABILITIES if trusts_request_templates else _ABILITIES - {"chat_template"}
        self.name = f"{_SCHEME}{model_names[0]}" if len(model_names) == 1 else "native"
        self.identity = identity or self.name
        self.capabilities = Capabilities(
            abilities=self._abilities,
            abilities_of=self.abilities_of,
            gives_several=True,
            assistant_prefix="continued",
            load=self.load,
            hint=self.hint,
            query_cache=self.query_cache,
            rank=self.rank,
            classify=self.classify,
            token_embed=self.token_embed,
        )
        self.engine = engine
        self._look = look
        self._size_of = size_of
        self._model_task_of = task_of
        self._naming = asyncio.Lock()  # one adapter's name at a time is given or taken back
        self._own_names = tuple(model_names)
        self._aliases = aliases or {}
        self._adapted = [name for name in model_names if self._base(name) == name and self._task_of(name) in _ANSWERING]
        self._is_closed = False
        self._mending: dict[str, asyncio.Task[object]] = {}

    @classmethod
    def of(
        cls,
        model_name: str,
        locate: Callable[[], Path],
        options: EngineOptions | None = None,
        *,
        look: Callable[[], str] | None = None,
    ) -> NativeBackend:
        """Return a backend of one model with an engine of its own. `locate` finds the file; it may block."""
        ledger, options = Ledger(total_for(None)), options or EngineOptions()
        pool = ModelPool(lambda _: locate(), options, ledger, measure_process=resident_bytes)
        look = look or (lambda: "loads on first use")
        return cls(
            [model_name],
            LocalEngine(pool, KvMoves.of(options)),
            look=lambda _: look(),
            trusts_request_templates=options.trusts_request_templates,
        )

    @property
    def model_names(self) -> tuple[str, ...]:
        """The names that requests may name: the models', and those of their adapters."""
        return (*self._own_names, *names_of(self._adapted, self.engine.adapters.all))

    async def load(self) -> object:
        """Load the first model, unless it is. Raises `ModelError` naming what is wrong with its file."""
        if self._task_of(self.model_names[0]) not in _ANSWERING:
            return await self.engine.embed(EmbedRequest(model=self.model_names[0], input=[]))
        return await self.engine.load(self.model_names[0])

    def chat(self, request: ChatRequest) -> AsyncIterator[ChatDelta]:
        """Answer as a stream; closing the iterator aborts the request."""
        unsupported = request.unsupported or self._unsupported
        request = msgspec.structs.replace(request, model=self._chosen_to_chat(request.model), unsupported=unsupported)
        if needs(request) <= self._abilities:
            return self.engine.stream(request)
        return fulfil(
            request,
            self._answer,
            self._abilities,
            backend=self.name,
            unsupported=self._unsupported,
            checks_schemas=True,
        )

    async def _answer(self, request: ChatRequest) -> AsyncGenerator[ChatDelta, None]:
        stream = self.engine.stream(request)
        try:
            async for delta in stream:
                yield delta
        finally:
            if isinstance(stream, AsyncGenerator):
                await stream.aclose()

    def _chosen_to_chat(self, asked: str) -> str:
        """Return the model that answers. Raises `UnsupportedError`, which a chain passes by, for one that embeds."""
        able = [name for name in self.model_names if self._task_of(name) in _ANSWERING]
        if asked in {"", self.name} and able:
            return able[0]
        name = self._chosen(asked)
        if (task := self._task_of(name)) is None or task in _ANSWERING:
            return name
        raise answers_nothing(name, task)

    def _base(self, name: str) -> str:
        """Return the model that a name is of, without its adapters."""
        return split_name(name, self.engine.adapters.all)[0]

    def _task_of(self, name: str) -> ModelTask | None:
        return self._model_task_of(self._base(name))

    def _chosen_for(self, tasks: Sequence[ModelTask], asked: str, does: str) -> str:
        """Return the model for a task, the first of `tasks` that there is one for, else one that may turn out to be.

        Raises `RequestError` where there is none.
        """
        named = self.model_names if asked in {"", self.name} else [self._chosen(asked)]
        for task in (*tasks, None):
            able = [name for name in named if self._task_of(name) == task]
            if able:
                return able[0]
        text = f"{self.name} cannot {does}; use a backend with a model for that, such as {_EXAMPLES[tasks[0]]}"
        if any(self._task_of(name) == "token_classify" for name in named):
            text += '; for labels of tokens, ask /pooling with "task": "token_classify"'
        raise RequestError(text, param="model")

    def _chosen(self, asked: str) -> str:
        if asked in {"", self.name}:
            return self.model_names[0]
        for name in (asked, asked.removeprefix(_SCHEME)):
            fault = stack_fault(own := self._own_name(name), self.model_names)
            if fault == "" or own in self.model_names:
                return own
            if fault:
                raise RequestError(f"{self.name}: {fault}", param="model", code="model_not_found")
        hint = did_you_mean(asked, self.model_names, f"it offers {', '.join(self.model_names)} (engine.models)")
        raise RequestError(f"{self.name} does not offer model {asked!r}; {hint}", param="model", code="model_not_found")

    def _own_name(self, name: str) -> str:
        """Return the name that a model, or one with an adapter, has here, where it is named by its file's path."""
        model, colon, adapter = name.rpartition(":")
        if model in self._aliases:
            return f"{self._aliases[model]}{colon}{adapter}"
        return self._aliases.get(name, name)

    async def models(self) -> list[ModelInfo]:
        """Return the models offered, with their sizes once they are loaded."""
        loaded = {model.id: model for model in (await self.engine.state()).models}
        return [self._info(name, loaded.get(name)) for name in self.model_names]

    def _info(self, name: str, loaded: ModelInfo | None) -> ModelInfo:
        info = loaded or ModelInfo(id=name, backend=_SCHEME + name, is_loaded=False, task=self._task_of(name))
        paths = [f"{path}{name[len(own) :]}" for path, own in self._aliases.items() if f"{name}:".startswith(f"{own}:")]
        if not paths:
            return info
        return msgspec.structs.replace(info, aliases=(*paths, *(_SCHEME + path for path in paths)))

    async def abilities_of(self, model: str) -> Abilities:
        """What a model can be asked for: effort where it is loaded, and its chat template has a variable for that."""
        loaded = {info.id: info for info in (await self.engine.state()).models}
        takes_effort = model in loaded and loaded[model].takes_effort
        return self._abilities if takes_effort else self._abilities - {"reasoning_effort"}

    async def embed(self, request: EmbedRequest) -> EmbedResult:
        """Return one vector a text, of length 1. Raises `RequestError` where no model of this backend embeds."""
        model = self._chosen_for(["embed"], request.model, "embed")
        return await self.engine.embed(msgspec.structs.replace(request, model=model))

    async def rank(self, request: RankRequest) -> RankResult:
        """Return each pair's relevance, from a model that ranks, or one that embeds. Raises `RequestError` without."""
        model = self._chosen_for(["rank", "embed"], request.model, "rank documents")
        return await self.engine.rank(msgspec.structs.replace(request, model=model))

    async def classify(self, request: ClassifyRequest) -> ClassifyResult:
        """Return a number for each label of each text. Raises `RequestError` where no model here classifies."""
        model = self._chosen_for(["classify", "rank"], request.model, "classify texts")
        return await self.engine.classify(msgspec.structs.replace(request, model=model))

    async def token_embed(self, request: TokenEmbedRequest) -> TokenEmbedResult:
        """Return a vector for each token of each text, or its labels. Raises `RequestError` where no model here can."""
        if request.task == "token_classify":
            model = self._chosen_for(["token_classify"], request.model, "label tokens")
        else:
            model = self._chosen_for(["embed", "rank"], request.model, "embed")
        return await self.engine.token_embed(msgspec.structs.replace(request, model=model))

    async def health(self) -> Health:
        """Ready when a model is loaded or can be, and requests are taken; fetches nothing."""
        try:
            state = await self.engine.state()
        except PyAgentError as error:
            return Health(is_ready=False, detail=str(error))
        if state.state in _NOT_READY:
            return Health(is_ready=False, detail=f"the engine is {state.state}")
        loaded = {model.id for model in state.models}
        states = [(name, *await asyncio.to_thread(self._state, name, loaded, state)) for name in self.model_names]
        self._mend(state.faults)
        ready = [name for name, is_ready, _ in states if is_ready]
        is_alone = len(states) == 1
        detail = "; ".join(text if is_alone else f"{name} {text}" for name, _, text in states)
        if state.copies and any(copy.process_id for copy in state.copies):
            num_ready = sum(copy.process_id is not None for copy in state.copies)
            detail += f"; {num_ready} of {len(state.copies)} copies are ready"
        return Health(is_ready=bool(ready), detail=detail, models=ready)

    def _mend(self, faults: Mapping[str, str]) -> None:
        """Load models again whose loops failed, as their next requests would: with this answer none may come."""
        for name in faults.keys() - self._mending.keys():
            self._mending[name] = task = asyncio.create_task(self.engine.load(name))
            task.add_done_callback(partial(self._mended, name))

    def _mended(self, name: str, task: asyncio.Task[object]) -> None:
        del self._mending[name]
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("%s cannot be loaded again: %s", name, error)

    def _state(self, name: str, loaded: set[str], state: EngineState) -> tuple[bool, str]:
        if name in state.faults:
            return False, f"its engine failed and is loaded again: {state.faults[name]}"
        if name in loaded:
            fault = state.draft_models.get(name)
            return True, f"loaded, and goes on without a draft model: {fault}" if fault else "loaded"
        adapters = self.engine.adapters.all
        base, keys = split_name(name, adapters)
        for path in (adapters[key] for key in keys):
            if not os.path.exists(place_of(path)):
                return False, f"cannot answer: there is nothing at {path}"
        if (load := state.load_progress.get(base)) is not None:
            return True, f"is loading: {load.told}"
        try:
            return True, self._look(base)
        except PyAgentError as error:
            return False, str(error)

    async def engine_state(self) -> EngineState:
        """Return what the engine is doing. Starts nothing."""
        return await self.engine.state()

    def hint(self, hint: Hint) -> None:
        """Take what the fleet knows of a prompt's future."""
        self.engine.hint(hint)

    async def query_cache(self, query: CacheQuery) -> CacheQueryResult:
        """Look into the prompt caches of the models, or keep a prompt there."""
        if isinstance(query, ExplainPrompt | PinPrompt):
            asked = first_asked(
                query.request, self._abilities, backend=self.name, unsupported=self._unsupported
            )  # what is emulated is a part of the prompt
            asked = msgspec.structs.replace(asked, model=self._chosen_to_chat(asked.model))
            query = msgspec.structs.replace(query, request=asked)
        return await self.engine.query_cache(query)

    async def placeable(self, models: Collection[str]) -> dict[str, int]:
        """Return which of these models are not loaded, and can be, with the bytes of their files, 0 where not known.

        None while the engine sleeps or drains.
        """
        state = await self.engine.state()
        if state.state not in _AWAKE:
            return {}
        able = {name for name in self.model_names if self._task_of(name) in _ANSWERING}
        absent = set(models) & able - {model.id for model in state.models}
        found = [(name, *await asyncio.to_thread(self._state, name, set[str](), state)) for name in absent]
        ready = sorted(name for name, is_ready, _ in found if is_ready)
        return {name: await asyncio.to_thread(self._size_of, self._base(name)) for name in ready}

    async def place(self, model: str) -> None:
        """Load a model beside those that are loaded. Raises `CapacityError` where it does not fit."""
        await self.engine.load(self._own_name(model), beside=True)

    def connect_kv(self, connector: KvConnector) -> bool:
        """Have KV moved by a cluster's connector; False where the engine runs in a process of its own, or may not."""
        return isinstance(self.engine, LocalEngine) and self.engine.kv.use(connector)

    def disconnect_kv(self, connector: KvConnector) -> None:
        """Have KV moved no more: the cluster's node ends."""
        if isinstance(self.engine, LocalEngine):
            self.engine.kv.drop(connector)

    async def withdraw(self, wanted: Withdrawal) -> int:
        """Give requests back that have not begun, to a chain that can ask elsewhere; return how many."""
        return await self.engine.withdraw(wanted)

    async def use_attention(self, name: str) -> None:
        """Have the loaded models compute attention by another backend. Raises `ConfigError` where one cannot."""
        await self.engine.use_attention(name)

    async def load_adapter(self, name: str, path: str, *, replaces: bool = False) -> str:
        """Offer an adapter from now on, checked by loading it; return the name by which requests name it.

        `name` is its own, for this backend's first model that chats, or `MODEL:NAME`. Raises `RequestError` for a name
        that will not do or is taken, unless it `replaces` what has it; `AdapterError` for what cannot be used.
        """
        key = self._adapter_key(self._own_name(name))
        async with self._naming:
            if key in self.model_names:
                if not (replaces and key in self.engine.adapters.all):
                    text = f"the adapter {key!r} is there already; unload it first, or load it with load_inplace"
                    raise RequestError(text, param="lora_name")
                await self._try_adapter(key + TRIAL, path)  # requests have the one before meanwhile
                await self.engine.name_adapter(key + TRIAL, "")
            await self._try_adapter(key, path)
        return key

    async def _try_adapter(self, key: str, path: str) -> None:
        await self.engine.name_adapter(key, path)
        try:
            await self.engine.load(key)
        except BaseException:
            await self.engine.name_adapter(key, "")
            raise

    async def unload_adapter(self, name: str) -> None:
        """Offer an adapter no longer; what runs with it ends as it began. Raises `RequestError` for one not offered."""
        adapters = self.engine.adapters.all
        named = (*(f"{model}:{name}" for model in self._adapted), self._own_name(name))
        keys = [keys for one in named if len(keys := split_name(one, adapters)[1]) == 1]
        key = keys[0][0] if keys else ""
        if not key:
            text = f"there is no adapter {name!r}; there are {', '.join(sorted(adapters)) or 'none'}"
            raise RequestError(text, param="lora_name", code="adapter_not_found")
        async with self._naming:
            await self.engine.name_adapter(key, "")

    def _adapter_key(self, name: str) -> str:
        model = next((model for model in self._adapted if name.startswith(f"{model}:")), "")
        adapter = name.removeprefix(f"{model}:") if model else name
        model = model or next(iter(self._adapted), "")
        if not model:
            raise RequestError(f"{self.name} has no model that chats, to which an adapter could add", param="lora_name")
        if not adapter.strip() or not adapter.isprintable() or set(adapter) & {"/", ":", JOINT}:
            text = (
                f"expected a name without '/', ':' and '+', or MODEL:NAME of a model that {self.name} has, got {name!r}"
            )
            raise RequestError(text, param="lora_name")
        return f"{model}:{adapter}"

    async def drain(self, grace_seconds: float = GRACE_SECONDS) -> int:
        """Take no more requests and let the running ones finish; returns how many did not in time."""
        return await self.engine.drain(grace_seconds)

    async def sleep(self, level: int = 1) -> None:
        """Let running requests finish, then give KV memory back (1), and unload the models (2)."""
        await self.engine.sleep(level)

    async def wake(self) -> None:
        """Take requests again. The next request wakes a sleeping engine by itself, not a draining one."""
        await self.engine.wake()

    async def close(self) -> None:
        """Give up this share of the engine; the last one ends it. Safe to call twice."""
        if not self._is_closed:
            self._is_closed = True
            await self.engine.close()
