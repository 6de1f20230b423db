"""Routes of the plugins, for an administrator: those this server has, loading one anew, taking one out."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from pyagent.core.errors import PluginError, RequestError
from pyagent.core.found_plugin import PluginInfo
from pyagent.core.settings import Server
from pyagent.infrastructure.server.api_keys import check_admin
from pyagent.infrastructure.server.body import read_body
from pyagent.infrastructure.server.endpoints import Function, route
from pyagent.infrastructure.server.service import json_response
from pyagent.infrastructure.server.validation import check_name, decode


class PluginChange(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a plugin, and what uses each thing that it brings as it is now."""

    plugin: PluginInfo
    used_by: dict[str, str]


class ServerPlugins(Protocol):
    """What the routes ask of this server's plugins."""

    def plugins(self) -> Sequence[PluginInfo]:
        """Return the plugins as this server has them."""
        ...

    async def reload(self, name: str) -> PluginChange:
        """Load a plugin anew. Raises `PluginError`: the one before is then used on."""
        ...

    async def unload(self, name: str) -> PluginChange:
        """Take a plugin out of use. Raises `PluginError` for one that has to stay."""
        ...


class PluginBody(msgspec.Struct, forbid_unknown_fields=True):
    """The body of POST /pyagent/plugins/reload and unload: a plugin's name."""

    plugin: str


@dataclass(frozen=True, slots=True)
class PluginRoutes:
    """The routes over the plugins of a server; one that has none of its own says so."""

    plugins: ServerPlugins | None
    settings: Server

    def routes(self) -> list[Route]:
        """Return the routes."""
        paths: dict[str, tuple[str, Function]] = {
            "/pyagent/plugins": ("GET", self.show),
            "/pyagent/plugins/reload": ("POST", self.reload),
            "/pyagent/plugins/unload": ("POST", self.unload),
        }
        return [route(method, path, function) for path, (method, function) in paths.items()]

    async def show(self, request: Request) -> Response:
        """GET /pyagent/plugins: the plugins as this server has them."""
        return json_response(self._plugins(request).plugins())

    async def reload(self, request: Request) -> Response:
        """POST /pyagent/plugins/reload: load a plugin anew; what is under way ends with what it began with."""
        return await self._of_named(request, self._plugins(request).reload)

    async def unload(self, request: Request) -> Response:
        """POST /pyagent/plugins/unload: take a plugin out of use until it is loaded again."""
        return await self._of_named(request, self._plugins(request).unload)

    async def _of_named(self, request: Request, do: Callable[[str], Awaitable[PluginChange]]) -> Response:
        """Do it to the plugin that the body names."""
        name = decode(await read_body(request, self.settings) or b"{}", PluginBody, {}).plugin
        check_name("plugin", name)
        try:
            return json_response(await do(name))
        except PluginError as error:
            raise RequestError(str(error), param="plugin", code="plugin_unchanged") from error

    def _plugins(self, request: Request) -> ServerPlugins:
        check_admin(request)
        if self.plugins is None:
            raise RequestError("this server's plugins cannot be changed while it runs", code="plugins_not_found")
        return self.plugins
