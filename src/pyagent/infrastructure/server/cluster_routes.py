"""Routes of the cluster, for an administrator: its nodes, draining this one, revoking another."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from pyagent.core.errors import ClusterError, RequestError
from pyagent.core.settings import Server
from pyagent.infrastructure.server.api_keys import check_admin
from pyagent.infrastructure.server.body import read_body
from pyagent.infrastructure.server.endpoints import Function, route
from pyagent.infrastructure.server.validation import check_name, decode

if TYPE_CHECKING:
    from pyagent.infrastructure.cluster.status import ClusterStatus

_MAX_GRACE_SECONDS = 3600.0


class ClusterNode(Protocol):
    """What the routes ask of this server's part in a cluster."""

    def status(self) -> ClusterStatus:
        """Return the cluster as this node sees it."""
        ...

    async def drain(self, grace_seconds: float) -> int:
        """Take no more requests of peers; return how many did not end in time."""
        ...

    async def resume(self) -> None:
        """Take requests of peers again."""
        ...

    async def revoke(self, name: str) -> str:
        """Put a node out for ever, by its id or name, and return its id."""
        ...

    async def forget(self, name: str) -> str:
        """Forget a node that is gone, by its id or name, and return its id."""
        ...


class ClusterDrainBody(msgspec.Struct, forbid_unknown_fields=True):
    """The body of POST /pyagent/cluster/drain; `resume` ends draining."""

    grace_seconds: float = 30.0
    resume: bool = False


class NodeBody(msgspec.Struct, forbid_unknown_fields=True):
    """The body of POST /pyagent/cluster/revoke and forget: a node's id or name."""

    node: str


@dataclass(frozen=True, slots=True)
class ClusterRoutes:
    """The routes over one node; a server that is none says so."""

    node: ClusterNode | None
    settings: Server

    def routes(self) -> list[Route]:
        """Return the routes."""
        paths: dict[str, tuple[str, Function]] = {
            "/pyagent/cluster": ("GET", self.show),
            "/pyagent/cluster/drain": ("POST", self.drain),
            "/pyagent/cluster/revoke": ("POST", self.revoke),
            "/pyagent/cluster/forget": ("POST", self.forget),
        }
        return [route(method, path, function) for path, (method, function) in paths.items()]

    async def show(self, request: Request) -> Response:
        """GET /pyagent/cluster: this node and its peers."""
        return _json(self._node(request).status())

    async def drain(self, request: Request) -> Response:
        """POST /pyagent/cluster/drain: take no more requests of peers, and wait for those that run."""
        node = self._node(request)
        body = decode(await read_body(request, self.settings) or b"{}", ClusterDrainBody, {})
        if not 0 <= body.grace_seconds <= _MAX_GRACE_SECONDS:
            raise RequestError(f"grace_seconds is from 0 to 3600, got {body.grace_seconds}", param="grace_seconds")
        if body.resume:
            await node.resume()
            return _json({"num_running": 0})
        return _json({"num_running": await node.drain(body.grace_seconds)})

    async def revoke(self, request: Request) -> Response:
        """POST /pyagent/cluster/revoke: put a node out of the cluster for ever."""
        return _json({"revoked": await self._of_named(request, self._node(request).revoke)})

    async def forget(self, request: Request) -> Response:
        """POST /pyagent/cluster/forget: forget a node that is gone."""
        return _json({"forgotten": await self._of_named(request, self._node(request).forget)})

    async def _of_named(self, request: Request, do: Callable[[str], Awaitable[str]]) -> str:
        """Do it to the node that the body names."""
        name = decode(await read_body(request, self.settings), NodeBody, {}).node
        check_name("node", name)
        try:
            return await do(name)
        except ClusterError as error:
            raise RequestError(str(error), param="node", code="node_not_found") from error

    def _node(self, request: Request) -> ClusterNode:
        check_admin(request)
        if self.node is None:
            raise RequestError("this server is no node of a cluster; `pyagent node` starts one", code="no_cluster")
        return self.node


def _json(body: object) -> Response:
    return Response(msgspec.json.encode(body), media_type="application/json")
