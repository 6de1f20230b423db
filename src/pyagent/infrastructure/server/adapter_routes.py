"""Routes that load and unload adapters while the server runs, with vLLM's paths and fields, for an administrator.

Off unless `server.allow_runtime_lora_updating` is set: a path is of this machine's files.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

import msgspec
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from pyagent.core.backends import Backend
from pyagent.core.chain import Chain
from pyagent.core.errors import AdapterError, RequestError
from pyagent.core.messages import ModelInfo
from pyagent.core.settings import Server
from pyagent.infrastructure.server.api_keys import check_admin
from pyagent.infrastructure.server.body import read_body
from pyagent.infrastructure.server.endpoints import Function, route
from pyagent.infrastructure.server.errors import without_folders
from pyagent.infrastructure.server.validation import check_name, decode

_MAX_PATH_CHARS = 4096
"""As Linux's `PATH_MAX`."""


@runtime_checkable
class AdaptedLink(Protocol):
    """A backend to whose models adapters can be added while it runs."""

    async def models(self) -> list[ModelInfo]:
        """Return the models offered."""
        ...

    async def load_adapter(self, name: str, path: str, *, replaces: bool = False) -> str:
        """Offer an adapter; return the name by which requests name it. Raises `RequestError` or `AdapterError`."""
        ...

    async def unload_adapter(self, name: str) -> None:
        """Offer an adapter no longer. Raises `RequestError` for one that is not offered."""
        ...


class LoadAdapterBody(msgspec.Struct, forbid_unknown_fields=True):
    """The body of POST /v1/load_lora_adapter: `NAME` or `MODEL:NAME`, and a folder or file of this machine's."""

    lora_name: str
    lora_path: str
    load_inplace: bool = False


class UnloadAdapterBody(msgspec.Struct, forbid_unknown_fields=True):
    """The body of POST /v1/unload_lora_adapter."""

    lora_name: str


@dataclass(frozen=True, slots=True)
class AdapterRoutes:
    """The routes over one backend."""

    backend: Backend
    settings: Server

    def routes(self) -> list[Route]:
        """Return the routes."""
        paths: dict[str, Function] = {"/v1/load_lora_adapter": self.load, "/v1/unload_lora_adapter": self.unload}
        return [route("POST", path, function) for path, function in paths.items()]

    async def load(self, request: Request) -> Response:
        """POST /v1/load_lora_adapter: load an adapter from this machine's files, and offer it to all clients."""
        links = self._links(request)
        body = decode(await read_body(request, self.settings) or b"{}", LoadAdapterBody, {})
        check_name("lora_name", body.lora_name)
        path = _checked_path(body.lora_path)
        link = await _link_with(links, body.lora_name)
        try:
            name = await link.load_adapter(body.lora_name, path, replaces=body.load_inplace)
        except AdapterError as error:
            text = without_folders(str(error))
            raise RequestError(text, param="lora_path", code="adapter_unusable") from error
        await self.backend.models()  # a chain knows its links' models by what they said last
        return PlainTextResponse(f"Success: LoRA adapter {name!r} added successfully.")

    async def unload(self, request: Request) -> Response:
        """POST /v1/unload_lora_adapter: offer an adapter no longer; requests that run with it end as they began."""
        links = self._links(request)
        name = decode(await read_body(request, self.settings) or b"{}", UnloadAdapterBody, {}).lora_name
        check_name("lora_name", name)
        for link in links:
            try:
                await link.unload_adapter(name)
            except RequestError:
                if link is links[-1]:
                    raise
            else:
                break
        await self.backend.models()
        return PlainTextResponse(f"Success: LoRA adapter {name!r} removed successfully.")

    def _links(self, request: Request) -> Sequence[AdaptedLink]:
        check_admin(request)
        if not self.settings.allow_runtime_lora_updating:
            text = "this server loads no adapters while it runs; to let it, set server.allow_runtime_lora_updating"
            raise RequestError(text, code="runtime_lora_updating_not_found")
        every = self.backend.links if isinstance(self.backend, Chain) else (self.backend,)
        links = [link for link in every if isinstance(link, AdaptedLink)]
        if not links:
            raise RequestError(f"{self.backend.name} has no engine of its own", code="engine_not_found")
        return links


def _checked_path(path: str) -> str:
    if not path.isprintable() or not 0 < len(path) <= _MAX_PATH_CHARS:  # a line break would forge lines of the log
        text = "expected the path of a folder that peft saved, or of a GGUF file of this machine's"
        raise RequestError(text, param="lora_path")
    try:
        return str(Path(path).expanduser().absolute())
    except RuntimeError as error:  # the home of a user that is not known
        raise RequestError(str(error), param="lora_path") from error


async def _link_with(links: Sequence[AdaptedLink], lora_name: str) -> AdaptedLink:
    """Return the link that has the model which an adapter's name begins with; the first one where none has."""
    for link in links:
        if any(lora_name.startswith(f"{model.id}:") for model in await link.models()):
            return link
    return links[0]
