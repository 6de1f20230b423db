"""Run queries of an engine's prompt caches; a prompt to pin is computed by an ordinary request."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Protocol, TypeVar

import msgspec

from pyagent.core.messages import ChatDelta, ChatRequest, Message, SamplingParams
from pyagent.core.prompt_cache import CacheQuery, CacheQueryResult, ExplainPrompt, PinPrompt, UnpinPrompt, ViewCache
from pyagent.infrastructure.engine.models.model_pool import ModelPool

T = TypeVar("T")
_ONE_TOKEN = SamplingParams(max_tokens=1, temperature=0.0)


class _Engine(Protocol):
    models: ModelPool

    async def in_thread(self, work: Callable[..., T], *args: object) -> T: ...

    def stream(self, request: ChatRequest) -> AsyncGenerator[ChatDelta, None]: ...


async def run_cache_query(query: CacheQuery, engine: _Engine) -> CacheQueryResult:
    """Return the result over the loaded models; the model of a request is loaded first."""
    match query:
        case ViewCache(limit, tenants):
            loaded = engine.models.loaded().items()
            views = [await asyncio.to_thread(model.prompts.view, name, limit, tenants) for name, model in loaded]
            return CacheQueryResult(models=views)
        case ExplainPrompt(request):
            name, adapter = engine.models.split_name(request.model)
            async with engine.models.using(name) as model, model.adapters.using(adapter) as adapter_id:
                return CacheQueryResult(report=await engine.in_thread(model.explain, request, adapter_id))
        case PinPrompt(name, request):
            return CacheQueryResult(num_tokens=await _pin(name, request, engine))
        case UnpinPrompt(name, tenant):
            loaded = engine.models.loaded().values()
            return CacheQueryResult(num_tokens=sum(model.prompts.unpin(name, tenant) for model in loaded))


async def _pin(name: str, request: ChatRequest, engine: _Engine) -> int:
    """Compute the prompt by generating one token after it, then pin its blocks."""
    messages = list(request.messages)
    if not messages or messages[-1].role != "user":
        messages.append(Message("user", "."))
    computed = msgspec.structs.replace(request, messages=messages, sampling=_ONE_TOKEN)
    base, adapter = engine.models.split_name(request.model)
    async with engine.models.using(base) as model, model.adapters.using(adapter) as adapter_id:
        async with aclosing(engine.stream(computed)) as stream:
            async for _ in stream:
                pass
        pin = model.prompts.pin
        return await asyncio.to_thread(pin, name, request.messages, request.tools, request.origin.tenant, adapter_id)
