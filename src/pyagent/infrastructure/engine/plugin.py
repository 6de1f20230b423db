"""Brings the embedded engine in as backend scheme `native`.

The links of one host share one engine: one ledger, one set of threads, each model in memory once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from threading import Thread
from typing import TYPE_CHECKING

import msgspec

from pyagent.core.backends import Backend, BackendFactory, LinkSpec
from pyagent.core.errors import ConfigError
from pyagent.core.hooks import Parts, hookimpl
from pyagent.core.nearest import did_you_mean
from pyagent.core.settings import Settings
from pyagent.infrastructure.engine.setting_faults import draft_faults, missing_adapters, unknown_models
from pyagent.infrastructure.models.names import by_model_name, configured_names

if TYPE_CHECKING:
    from pyagent.core.dialects.dialect import Dialect
    from pyagent.core.runners.kv_connector import KvConnectorFactory
    from pyagent.core.runners.rank_executor import RankExecutor
    from pyagent.core.tokenizers import TokenizerFactory, TokenizerOptions
    from pyagent.infrastructure.engine.client import EngineClient, LocalEngine
    from pyagent.infrastructure.engine.drafts.options import DraftOptions
    from pyagent.infrastructure.engine.options import EngineOptions
    from pyagent.infrastructure.engine.subprocess.client import ProcessEngine

logger = logging.getLogger(__name__)


class _Links:
    """Makes the links `native` (all of engine.models), `native:NAME` and `native:./file.gguf`."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._shared: tuple[object, EngineClient] | None = None

    def make(self, link: LinkSpec, settings: Settings) -> Backend:
        """Models run by the host's one engine. Cheap: they load on first use."""
        # The engine is imported when a chain names it, not when the plugin is looked at.
        from pyagent.infrastructure.engine.backend import NativeBackend
        from pyagent.infrastructure.models.store import ModelStore

        given = [link.target] if link.target else settings.engine.models
        if not given:
            raise ConfigError("engine.models is empty, so `native` needs a model: native:NAME", key="engine.models")
        store, given = ModelStore.of(settings), list(dict.fromkeys(given))
        _check_adapters(settings.engine.adapters, [*store.named.values(), *settings.engine.models, *store.catalog])
        return NativeBackend(
            list(dict.fromkeys(store.named.get(name, name) for name in given)),
            self._engine(settings),
            identity=str(link) if link.target else "",
            aliases={name: store.named[name] for name in given if name in store.named},
            look=store.look,
            size_of=store.size_of,
            task_of=store.task_of,
            unsupported=settings.backends.unsupported,
            trusts_request_templates=settings.engine.trust_request_chat_template,
        )

    def _engine(self, settings: Settings) -> EngineClient:
        key = (settings.engine, settings.paths.models)
        if self._shared is not None and self._shared[0] == key and not self._shared[1].is_closed:
            return self._shared[1].share()
        _warn(settings)
        num_copies = _num_copies(settings)
        engine: LocalEngine | ProcessEngine
        if settings.engine.process or num_copies * settings.engine.num_ranks > 1:
            options_of(settings, self._parts)  # what is wrong with the settings is said now
            engine = _make_processes(settings, num_copies)
        else:
            engine = make_engine(settings, self._parts)
        self._shared = (key, engine)
        if settings.engine.idle_sleep_seconds is not None:
            rest = (settings.engine.idle_sleep_seconds, settings.engine.idle_sleep_level, engine.give_back)
            Thread(target=engine.life.sleep_when_idle, args=rest, name="pyagent-idle", daemon=True).start()
        return engine


def _check_adapters(adapters: Mapping[str, str], models: Sequence[str]) -> None:
    """Raise `ConfigError` for an adapter by whose name a model would be taken for another one with that adapter."""
    for model in models:
        name = model.rpartition(":")[2]
        if name != model and name in adapters:
            text = f"engine.adapters: {name!r} is how the name of the model {model} ends; give the adapter another name"
            raise ConfigError(text, key="engine.adapters")


def _warn(settings: Settings) -> None:
    """Log what of the settings leads nowhere."""
    for fault in missing_adapters(settings):
        logger.warning("%s", fault)
    for fault in draft_faults(settings):
        logger.warning("%s; answers go on without a draft model", fault)
    for fault in unknown_models(settings):
        logger.warning("%s; what is set for it is not used", fault)


def _num_copies(settings: Settings) -> int:
    if settings.engine.data_parallel is not None:
        return settings.engine.data_parallel
    from pyagent.infrastructure.engine.subprocess.layout import auto_copies, read_layout

    return auto_copies(read_layout())


def _make_processes(settings: Settings, num_copies: int) -> ProcessEngine:
    """An engine in so many processes of its own. Cheap: they start with the first request."""
    from pyagent import _rust
    from pyagent.infrastructure.engine.subprocess.client import ProcessEngine
    from pyagent.infrastructure.engine.subprocess.layout import (
        copy_settings,
        divide_cores,
        divide_gpus,
        read_layout,
        visible_gpus,
    )
    from pyagent.infrastructure.engine.subprocess.protocol import Start

    gpus = divide_gpus(visible_gpus(), num_copies, settings.engine.num_ranks)
    told = copy_settings(settings, num_copies, _rust.available_cores(), has_own_gpus=any(gpus))
    shares = zip(divide_cores(read_layout(), num_copies), gpus, strict=True)
    encoded = msgspec.json.encode(told, enc_hook=str)
    starts = [Start(encoded, *share, tells_load=num_copies > 1) for share in shares]
    return ProcessEngine(starts, settings.engine.hang_seconds, _adapters(settings))


def _num_sharing(settings: Settings) -> int:
    """Return how many copies see the same GPUs: 1 where there are enough for each to have its own."""
    from pyagent.infrastructure.engine.subprocess.layout import divide_gpus, visible_gpus

    num_copies = _num_copies(settings)
    return 1 if any(divide_gpus(visible_gpus(), num_copies, settings.engine.num_ranks)) else num_copies


def make_engine(settings: Settings, parts: Parts, when_lost: Callable[[str], None] | None = None) -> LocalEngine:
    """An engine in this process. Cheap: models load on first use. `when_lost` is as in `RunnerOptions`."""
    from pyagent.infrastructure.engine.client import LocalEngine
    from pyagent.infrastructure.engine.kv_moves.moves import KvMoves
    from pyagent.infrastructure.engine.memory.ledger import Ledger
    from pyagent.infrastructure.engine.memory.process import resident_bytes
    from pyagent.infrastructure.engine.memory.system import total_for
    from pyagent.infrastructure.engine.models.model_pool import ModelPool
    from pyagent.infrastructure.models.store import ModelStore

    locate = ModelStore.of(settings).locate
    ledger = Ledger(total_for(settings.engine.memory))
    options = options_of(settings, parts)
    options = replace(options, runner=replace(options.runner, when_lost=when_lost))
    pool = ModelPool(locate, options, ledger, measure_process=resident_bytes)
    return LocalEngine(pool, KvMoves.of(options))


def options_of(settings: Settings, parts: Parts) -> EngineOptions:
    """The engine's options from the settings, and what plugins bring for it. Raises `ConfigError`."""
    from pyagent.core.runners.factory import RunnerOptions
    from pyagent.infrastructure.engine.grammar.choice import pick_grammar_backends
    from pyagent.infrastructure.engine.logits.processors import pick_logits
    from pyagent.infrastructure.engine.memory.evictions import pick_eviction
    from pyagent.infrastructure.engine.options import EngineOptions, SchedulerLimits, ThinkingLimits
    from pyagent.infrastructure.engine.runners.choice import pick_attention, pick_runners
    from pyagent.infrastructure.engine.scheduler.queues import QueueOptions, make_queues

    engine = settings.engine
    queues = {name: QueueOptions(queue.policy, queue.options, queue.share) for name, queue in engine.queues.items()}
    make = partial(make_queues, queues, parts.queue_policies())
    make()  # what is wrong with the settings is said now, not when a model is loaded
    return EngineOptions(
        runner=RunnerOptions(
            threads=engine.threads or 0,
            kv_dtype=engine.kv_dtype,
            dtype=engine.dtype,
            quantization=engine.quantization,
            isa=None if engine.isa == "auto" else engine.isa,
            batch_invariant=engine.batch_invariant,
            compile_folder=str(settings.paths.data / "compiled") if engine.compile == "on" else None,
            attention=pick_attention(engine.attention, parts.attention_backends()),
            tensor_parallel_size=engine.tensor_parallel_size,
            pipeline_parallel_size=engine.pipeline_parallel_size,
            kv_bytes=engine.kv_cache_memory_bytes,
            gpu_memory_utilization=engine.gpu_memory_utilization,
            num_sharing=_num_sharing(settings),
            rank_executor=_rank_executor(settings, parts),
            hang_seconds=engine.hang_seconds,
            eviction=pick_eviction(engine.eviction, parts.eviction_policies()),
            prefix_hash=engine.prefix_hash,
            architectures=parts.architectures(),
        ),
        limits=SchedulerLimits(
            max_num_seqs=engine.max_num_seqs,
            max_num_batched_tokens=engine.max_num_batched_tokens,
            max_num_waiting=engine.max_num_waiting,
            decode_latency=None if engine.decode_latency_ms is None else engine.decode_latency_ms / 1000,
        ),
        max_model_len=engine.max_model_len,
        kv_tokens=engine.kv_cache_tokens,
        queues=make,
        async_scheduling=engine.async_scheduling,
        session_scope=engine.sessions,
        takes_hints=engine.hints,
        dialect=_checked_dialect(engine.dialect, parts.dialects()),
        dialects=tuple(parts.dialects().values()),
        thinking=ThinkingLimits(engine.thinking_token_budget, engine.effort_budgets, engine.thinking_budget_message),
        stream_interval=engine.stream_interval,
        tokenizer=_tokenizers(settings, parts.tokenizers()),
        trusts_request_templates=engine.trust_request_chat_template,
        normalizes_prompts=engine.normalize_prompts,
        runners=pick_runners(engine.runner, parts.runners()),
        grammar_backends=pick_grammar_backends(engine.structured_outputs_backend, parts.grammar_backends()),
        logits=pick_logits(engine.logits_processors, parts.logits_processors(), engine.logits_processor_seconds),
        kv_connector=_kv_connector(engine.kv_connector, parts),
        takes_kv_connector=engine.kv_connector == "auto",
        drafts=_drafts(settings, configured_names(settings)),
        adapters=_adapters(settings),
    )


def _adapters(settings: Settings) -> dict[str, str]:
    return by_model_name(settings.engine.adapters, configured_names(settings))


def _drafts(settings: Settings, names: Mapping[str, str]) -> DraftOptions | None:
    from pyagent.infrastructure.engine.drafts.options import DraftOptions

    speculative = settings.engine.speculative
    if speculative.method == "off":
        return None
    if speculative.method == "draft_model" and not speculative.model:
        text = "engine.speculative.method is draft_model, but engine.speculative.model names none"
        raise ConfigError(f"{text}; set it to a smaller model of the same family", key="engine.speculative.model")
    return DraftOptions(
        method=speculative.method,
        num_speculative_tokens=speculative.num_speculative_tokens,
        prompt_lookup_min=speculative.prompt_lookup_min,
        most_bytes=speculative.memory,
        uses_mtp=speculative.mtp,
        models={model: names.get(draft, draft) for model, draft in by_model_name(speculative.model, names).items()},
        faults_told=frozenset(draft_faults(settings)),
    )


def _kv_connector(name: str, parts: Parts) -> KvConnectorFactory | None:
    if name in {"auto", "none"}:
        return None
    brought = parts.kv_connectors()
    _check_name("kv_connector", name, ["auto", "none", *brought])
    return brought[name]


def _rank_executor(settings: Settings, parts: Parts) -> RankExecutor | None:
    name = settings.engine.distributed_executor_backend
    if name == "mp":
        return None
    brought = parts.rank_executors()
    _check_name("distributed_executor_backend", name, ["mp", *brought])
    return brought[name](settings)


def _tokenizers(settings: Settings, brought: Mapping[str, TokenizerFactory]) -> TokenizerOptions:
    from pyagent.core.tokenizers import READERS, TokenizerOptions

    engine = settings.engine
    _check_name("tokenizer", engine.tokenizer, ["auto", *dict.fromkeys([*brought, *READERS])])
    of_models = {f"engine.chat_templates.{name}": chosen for name, chosen in engine.chat_templates.items()}
    for key, chosen in {"engine.chat_template": engine.chat_template, **of_models}.items():
        if chosen != "auto":
            from pyagent.infrastructure.engine.tokens.template_choice import read_chosen

            read_chosen(chosen, key)
    templates = by_model_name(engine.chat_templates, configured_names(settings))
    return TokenizerOptions(engine.tokenizer, tuple(brought.values()), engine.chat_template, templates)


def _checked_dialect(name: str, brought: Mapping[str, Dialect]) -> str:
    from pyagent.core.dialects.registry import dialects

    _check_name("dialect", name, ["auto", "none", *dialects(brought.values())])
    return name


def _check_name(what: str, name: str, known: Sequence[str]) -> None:
    """Raise `ConfigError` where the setting `engine.WHAT` names none of those that are known."""
    if name not in known:
        hint = did_you_mean(name, known, f"there are {', '.join(known)}")
        raise ConfigError(f"engine.{what}: there is no {what} {name!r}; {hint}", key=f"engine.{what}")


@hookimpl
def pyagent_register_backends(parts: Parts) -> Mapping[str, BackendFactory]:
    """The scheme `native`."""
    return {"native": _Links(parts).make}
