"""Ollama's list of models, what it says of one, and the fetching of models into the store."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import AsyncGenerator
from functools import lru_cache
from pathlib import Path

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from pyagent.core.backends import AGENT_PREFIX, abilities_of
from pyagent.core.chain.chain import Chain
from pyagent.core.emulation.fulfil import EMULATED
from pyagent.core.errors import ModelError, PyAgentError, RequestError
from pyagent.core.messages import JsonObject, ModelInfo
from pyagent.infrastructure.models.describe import describe_encoder, describe_model
from pyagent.infrastructure.models.names import find_model, is_path
from pyagent.infrastructure.models.store import Fetch, ModelStore, StoredModel
from pyagent.infrastructure.server.api_keys import check_admin
from pyagent.infrastructure.server.errors import logged_error
from pyagent.infrastructure.server.ollama.replies import timestamp
from pyagent.infrastructure.server.ollama.requests import read_model
from pyagent.infrastructure.server.service import Service, by_id, json_response, unknown_model
from pyagent.infrastructure.server.streaming import EventStream

_NEVER = "2318-01-01T00:00:00Z"
"""When a model that stays until memory is needed is unloaded."""
_CAPABILITIES = {"tools": "tools", "images": "vision"}
_MAX_SHOWN = 200
_MEDIA_TYPE = "application/x-ndjson"


async def named_model(service: Service, name: str) -> ModelInfo:
    """Return the model of a name, with or without `:latest`; none named is the first. Raises `RequestError`."""
    models = await service.models()
    if (found := find_model(name, models) if name else next(iter(models), None)) is not None:
        return found
    if not models:  # no link could list its models; the one that is asked reports a wrong name
        return ModelInfo(id=name)
    why = str(unknown_model(name, models)).partition("; ")[2]
    raise RequestError(f"model {name[:_MAX_SHOWN]!r} not found; {why}", param="model", code="model_not_found")


async def tags(service: Service, _request: Request) -> Response:
    """GET /api/tags."""
    models = by_id(await service.models()).values()
    return json_response({"models": [_listed(service, said[0]) for said in models]})


async def show_loaded(service: Service, _request: Request) -> Response:
    """GET /api/ps: the models in memory."""
    loaded = [said[0] for said in by_id([one for one in await service.models() if one.is_loaded]).values()]
    more = {"expires_at": _NEVER, "size_vram": 0}
    return json_response({"models": [_listed(service, model) | more | _window(model) for model in loaded]})


async def show(service: Service, request: Request) -> Response:
    """POST /api/show."""
    parsed = await service.read(request, read_model)
    model = await named_model(service, parsed.model)
    architecture = model.architecture or "unknown"
    facts: JsonObject = {"general.architecture": architecture}
    if model.context_length is not None:
        facts[f"{architecture}.context_length"] = model.context_length
    stored = _stored(service, model)
    body: JsonObject = {"modelfile": "", "parameters": "", "template": "", "details": _details(model, stored)}
    body |= {
        "model_info": facts,
        "capabilities": await _capabilities(service, model),
        "modified_at": _modified(service, stored),
    }
    return json_response(body | ({"license": stored.manifest.licence} if stored else {}))


async def pull(service: Service, request: Request) -> Response:
    """POST /api/pull: an administrator has a model fetched into the store, told as it goes on."""
    check_admin(request)
    parsed = await service.read(request, read_model)
    if service.store is None or is_path(parsed.model):
        raise RequestError(
            f"model {parsed.model[:_MAX_SHOWN]!r} cannot be pulled; name one of the store", param="model"
        )
    try:
        service.store.look(parsed.model)
    except ModelError as error:
        raise RequestError(str(error), param="model", code="model_not_found") from error
    events = _pulled(service.store, parsed.model, str(request.state.request_id))
    if parsed.stream is not False:
        return EventStream(events, _MEDIA_TYPE, lambda error: _line({"error": error.message}))
    lines = [line async for line in events]
    told = msgspec.json.decode(lines[-1])
    return json_response(told, 500 if "error" in told else 200)


async def _pulled(store: ModelStore, name: str, request_id: str) -> AsyncGenerator[bytes, None]:
    loop, fetches = asyncio.get_running_loop(), asyncio.Queue[Fetch | None]()

    def watch(fetch: Fetch) -> None:
        loop.call_soon_threadsafe(fetches.put_nowait, fetch)

    watching = ModelStore(store.folder, store.catalog, watch=watch, named=store.named)
    fetching = asyncio.ensure_future(asyncio.to_thread(watching.pull, name))

    def end(task: asyncio.Future[StoredModel]) -> None:
        if not task.cancelled():
            task.exception()  # seen, also when the client has left
        fetches.put_nowait(None)

    fetching.add_done_callback(end)
    yield _line({"status": "pulling manifest"})
    source = store.catalog.get(name)
    digest = source.sha256 if source else ""
    while fetch := await fetches.get():
        progress: JsonObject = {"status": f"pulling {digest[:12] or name}", "completed": fetch.done_bytes}
        progress |= {"digest": f"sha256:{digest}"} if digest else {}
        yield _line(progress | ({"total": fetch.total_bytes} if fetch.total_bytes else {}))
    try:
        await fetching
    except ModelError as error:
        yield _line({"error": str(error)})
    except Exception as error:  # noqa: BLE001 - the status is out, and the client must be told
        yield _line({"error": logged_error(error, request_id).message})
    else:
        for status in ("verifying sha256 digest", "writing manifest", "success"):
            yield _line({"status": status})


def _line(body: JsonObject) -> bytes:
    return msgspec.json.encode(body) + b"\n"


def _listed(service: Service, model: ModelInfo) -> JsonObject:
    stored = _stored(service, model)
    digest = (stored.manifest.sha256 if stored else "") or hashlib.sha256(model.id.encode()).hexdigest()
    return {
        "name": model.id,
        "model": model.id,
        "modified_at": _modified(service, stored),
        "size": model.size_bytes or (stored.size_bytes if stored else 0),
        "digest": digest,
        "details": _details(model, stored),
    }


def _stored(service: Service, model: ModelInfo) -> StoredModel | None:
    return service.store.find(model.id) if service.store and not is_path(model.id) else None


def _modified(service: Service, stored: StoredModel | None) -> str:
    return timestamp(stored.path.stat().st_mtime if stored else service.created)


def _details(model: ModelInfo, stored: StoredModel | None) -> JsonObject:
    family, file = model.architecture or "", str(stored.path) if stored else model.id if is_path(model.id) else ""
    size, quantization = _facts(file, Path(file).stat().st_mtime_ns) if os.path.exists(file) else ("", "")
    return {
        "parent_model": "",
        "format": "gguf" if file.endswith(".gguf") else "",
        "family": family,
        "families": [family] if family else [],
        "parameter_size": size,
        "quantization_level": model.quantization or quantization,
    }


@lru_cache(maxsize=256)
def _facts(path: str, _modified_ns: int) -> tuple[str, str]:
    """The number of parameters, as Ollama writes it (`134.52M`, `8.0B`), and the usual type of weights of a file."""
    try:
        found = describe_encoder(Path(path)) or describe_model(Path(path))
    except PyAgentError:
        return "", ""
    number = found.num_parameters
    return f"{number / 1e9:.1f}B" if number >= 10**9 else f"{number / 1e6:.2f}M", found.quantization.upper()


def _window(model: ModelInfo) -> JsonObject:
    return {"context_length": model.context_length} if model.context_length else {}


async def _capabilities(service: Service, model: ModelInfo) -> list[str]:
    """What the model can be asked for, in Ollama's words; what is emulated for it, too. Agents take tasks alone."""
    link = service.backend.link_of(model) if isinstance(service.backend, Chain) else service.backend
    if link is None or model.id.startswith(AGENT_PREFIX):
        return ["completion"]
    if model.task not in {None, "generate"}:
        return ["embedding"] if model.task == "embed" else []
    can = await abilities_of(link, model)
    can |= EMULATED if service.emulates else frozenset()
    return ["completion", *(word for field, word in _CAPABILITIES.items() if field in can)]
