"""The protocol's two routes: the card that says what agents there are, and the endpoint that takes messages.

Which agent does a task stands in a message's metadata (`agent`, `arguments`); without it the fleet's router chooses.
Tasks are kept in memory, the last thousand, each for the key that sent it. Push notifications are not offered: they
would have this server call any URL.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING

from a2a.auth.user import User
from a2a.server.context import ServerCallContext
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.request_handlers.response_helpers import agent_card_to_dict
from a2a.server.routes.common import ServerCallContextBuilder
from a2a.server.routes.jsonrpc_dispatcher import JsonRpcDispatcher
from a2a.server.tasks import InMemoryTaskStore, TaskStore
from a2a.types import (
    AgentCapabilities,
    AgentCard,
    AgentInterface,
    AgentSkill,
    ListTasksRequest,
    ListTasksResponse,
    Task,
)
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from pyagent import __version__
from pyagent.core.fleet.file_access import FileAccess
from pyagent.core.settings import Server
from pyagent.infrastructure.a2a.executor import CALLER, WAIT_SECONDS, RunExecutor
from pyagent.infrastructure.called_runs import Caller
from pyagent.infrastructure.server.agents import AgentBackend
from pyagent.infrastructure.server.api_keys import is_admin, tenant_of
from pyagent.infrastructure.server.body import read_pieces

if TYPE_CHECKING:
    from pyagent.core.fleet.agent import Agent
    from pyagent.core.fleet.orchestrator import Fleet

_MAX_BODY_BYTES = 4 << 20
_MAX_TASKS = 1_000


class A2aEndpoint:
    """Answers both routes over the fleet of a server."""

    def __init__(self, agents: AgentBackend, fleet: Fleet, settings: Server, path: str) -> None:
        """`path` is where messages go."""
        self._agents = list(fleet.agents.values())
        self._settings = settings
        self._path = path
        handler = DefaultRequestHandler(
            RunExecutor(agents.made, settings.max_runs, agents.count_run),
            LastTasks(),
            _card(self._agents, path),
            interrupted_task_timeout=WAIT_SECONDS,
        )
        self._dispatcher = JsonRpcDispatcher(handler, _Callers(settings))

    async def card(self, request: Request) -> Response:
        """GET /.well-known/agent-card.json: what agents there are, also without a key."""
        url = str(request.base_url).rstrip("/") + self._path
        return JSONResponse(agent_card_to_dict(_card(self._agents, url)))

    async def answer(self, request: Request) -> Response:
        """POST /a2a: a message, or a question about a task."""
        pieces = await read_pieces(request, self._settings, _MAX_BODY_BYTES)
        body = b"".join(pieces)

        async def receive() -> dict[str, object]:
            return {"type": "http.request", "body": body, "more_body": False}

        return await self._dispatcher.handle_requests(Request(request.scope, receive))


class LastTasks(TaskStore):
    """The package's tasks in memory, the last thousand that changed, each for its owner alone."""

    def __init__(self) -> None:
        self._inner = InMemoryTaskStore()
        self._order: OrderedDict[tuple[str, str], ServerCallContext] = OrderedDict()

    async def save(self, task: Task, context: ServerCallContext) -> None:
        """Keep a task; the one that has not changed for longest gives way."""
        await self._inner.save(task, context)
        key = context.user.user_name, task.id
        self._order[key] = context
        self._order.move_to_end(key)
        while len(self._order) > _MAX_TASKS:
            (_, gone), owner = self._order.popitem(last=False)
            await self._inner.delete(gone, owner)

    async def get(self, task_id: str, context: ServerCallContext) -> Task | None:
        """Return the owner's task."""
        return await self._inner.get(task_id, context)

    async def list(self, params: ListTasksRequest, context: ServerCallContext) -> ListTasksResponse:
        """Return the owner's tasks, a page of them."""
        return await self._inner.list(params, context)

    async def delete(self, task_id: str, context: ServerCallContext) -> None:
        """Forget the owner's task."""
        self._order.pop((context.user.user_name, task_id), None)
        await self._inner.delete(task_id, context)


class _KeyUser(User):
    """The caller, by its key's name."""

    def __init__(self, name: str) -> None:
        self._name = name

    @property
    def is_authenticated(self) -> bool:
        return bool(self._name)

    @property
    def user_name(self) -> str:
        return self._name


class _Callers(ServerCallContextBuilder):
    """Says whose a request is, as the server's guard noted it."""

    def __init__(self, settings: Server) -> None:
        self._files = FileAccess.below(settings.files_root)
        self._clients_may_approve = settings.clients_may_approve

    def build(self, request: Request) -> ServerCallContext:
        """Return the request's context."""
        may_approve = is_admin(request) or self._clients_may_approve
        caller = Caller(tenant_of(request), self._files, may_approve=may_approve)
        headers = {"headers": dict(request.headers)}  # the package reads the protocol's version there
        return ServerCallContext(user=_KeyUser(caller.tenant), state={CALLER: caller, **headers})


def _card(agents: Sequence[Agent], url: str) -> AgentCard:
    return AgentCard(
        name="PyAgent",
        description="A fleet of agents; metadata.agent of a message names one of the skills, else the fleet chooses.",
        version=__version__,
        supported_interfaces=[AgentInterface(url=url, protocol_binding="JSONRPC", protocol_version="1.0")],
        capabilities=AgentCapabilities(streaming=True, push_notifications=False),
        default_input_modes=["text/plain"],
        default_output_modes=["text/plain"],
        skills=[
            AgentSkill(id=agent.name, name=agent.name, description=agent.description, tags=["agent"])
            for agent in agents
        ],
    )
