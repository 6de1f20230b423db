"""One server's connection, kept by one task: it connects, lists the tools, follows their changes, and connects again.

Everything that has to be entered and left in one task (anyio's scopes) is the owner's; calls come from any task. A
failure is told once, until the server answers again. After a failure it is tried again, later each time.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import anyio
from mcp import Client, MCPError
from mcp.client.subscriptions import SubscriptionLost
from mcp_types import (
    CONNECTION_CLOSED,
    INVALID_REQUEST,
    REQUEST_TIMEOUT,
    CallToolRequest,
    CallToolRequestParams,
    CallToolResult,
    Implementation,
    InputRequiredResult,
    LoggingMessageNotificationParams,
    PaginatedRequestParams,
    Tool,
    ToolListChangedNotification,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import TypeAdapter

from pyagent import __version__
from pyagent.core.errors import BackendError, PyAgentError
from pyagent.core.secrets import strike_text
from pyagent.infrastructure.mcp.incoming import Wire, limited

if TYPE_CHECKING:
    from mcp.shared.dispatcher import ProgressFnT

logger = logging.getLogger("pyagent.mcp")
MAX_TOOLS = 500
"""Tools of one server that are used."""
_MAX_PAGES = 100
_MAX_LOGS = 200
_MAX_SAID_CHARACTERS = 500
_LONGEST_DELAY = 30.0
_FIRST_DELAY = 0.5
_LISTING_SECONDS = 0.2
"""Least time between two listings, however often the server says that its tools changed."""
_LISTEN_AGAIN_SECONDS = 5.0
_WELL_SECONDS = 10.0
"""After this long a connection that ends was a good one, and is begun again at once."""
_RESULT: TypeAdapter[CallToolResult | InputRequiredResult] = TypeAdapter(CallToolResult | InputRequiredResult)


@dataclass(slots=True)
class Connection:
    """A connection to the server `name`, made by `make_wire` each time. `on_tools` is told what tools there are."""

    name: str
    make_wire: Callable[[], Wire]
    on_tools: Callable[[Sequence[Tool]], None]
    startup_seconds: float
    timeout_seconds: float
    fault: str = ""
    protocol: str = ""
    _client: Client | None = None
    _wire: Wire | None = None
    _owner: asyncio.Task[None] | None = None
    _settled: asyncio.Event = field(default_factory=asyncio.Event)
    _wake: asyncio.Event = field(default_factory=asyncio.Event)
    _is_closing: bool = False
    _has_changed: bool = False
    _is_lost: bool = False
    _is_told: bool = False
    _num_failures: int = 0
    _num_logs: int = 0
    _retry_at: float = 0.0
    _ready_at: float = math.inf

    @property
    def is_ready(self) -> bool:
        """Whether the server answers."""
        return self._client is not None

    async def open(self) -> None:
        """Begin, and return when the server answers, has failed once, or is still at it after its time."""
        self._owner = asyncio.create_task(self._own(), name=f"MCP server {self.name}")
        with suppress(TimeoutError):
            await asyncio.wait_for(self._settled.wait(), self.startup_seconds)

    async def close(self) -> None:
        """End the connection, and the program if there is one."""
        self._is_closing = True
        self._wake.set()
        if self._owner is not None:
            try:
                await asyncio.wait([self._owner])
            except asyncio.CancelledError:
                self._owner.cancel()
                raise

    async def call(
        self, tool: str, arguments: Mapping[str, Any], meta: Mapping[str, Any], on_progress: ProgressFnT
    ) -> CallToolResult:
        """Return what the server answers. Raises `BackendError` when it does not, or not in time."""
        request = CallToolRequest(
            params=CallToolRequestParams.model_validate(
                {"name": tool, "arguments": dict(arguments), "_meta": dict(meta)}
            )
        )
        for is_last in (False, True):
            client = await self._connected()
            try:
                result = await client.session.send_request(
                    request, _RESULT, request_read_timeout_seconds=self.timeout_seconds, progress_callback=on_progress
                )
            except MCPError as error:
                if _is_unknown_session(error):  # the server began anew and ran nothing: a new session is all it needs
                    self._lose(client)
                    if not is_last:
                        continue
                raise self._error(self._refusal(error)) from error
            except (TimeoutError, anyio.ClosedResourceError, anyio.BrokenResourceError, ValueError) as error:
                raise self._error(f"its answer cannot be read: {error or type(error).__name__}") from error
            if isinstance(result, InputRequiredResult):
                raise self._error("it asks for more than arguments, which only a person at its own client can give")
            return result
        raise AssertionError("the second try returns or raises")

    def _refusal(self, error: MCPError) -> str:
        if error.code == REQUEST_TIMEOUT:
            return f"no answer within {self.timeout_seconds:g} s, the call was cancelled"
        if error.code == CONNECTION_CLOSED:
            why = f": {self._wire.fault}" if self._wire is not None and self._wire.fault else ""
            return f"its connection ended during the call{why}; whether the call had its effect is not known"
        return f"{strike_text(error.message):.2000}"

    def _error(self, why: str) -> BackendError:
        return BackendError(f"the MCP server {self.name}: {why}", backend=f"mcp:{self.name}")

    async def _connected(self) -> Client:
        """Return the client; waits while one connects. Raises `BackendError` with why there is none."""
        if self._client is None and not self._is_closing:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._settled.wait(), self.startup_seconds)
        if self._client is not None:
            return self._client
        again = f"; it is tried again in {max(0.0, self._retry_at - time.monotonic()):.0f} s" if self.fault else ""
        why = "the fleet closes" if self._is_closing else self.fault or "it has not answered yet"
        raise self._error(f"not connected: {why}{again}")

    def _lose(self, client: Client) -> None:
        """Have the owner connect again, unless it does already."""
        if self._client is client:
            self._is_lost = True
            self._end()

    # -- the owner ----------------------------------------------------------------------------------------------------

    async def _own(self) -> None:
        while not self._is_closing:
            self._is_lost, self._ready_at = False, math.inf
            fault = await self._connection()
            if self._is_closing:
                return
            if self._is_lost:
                continue
            if time.monotonic() - self._ready_at > _WELL_SECONDS:
                self._num_failures, self._is_told = 0, False
            self._fail(fault)
            if self._num_failures or self._ready_at == math.inf:
                await self._pause()
            self._num_failures += 1

    async def _connection(self) -> str:
        """Connect, and stay connected as long as it lasts; return why it ended."""
        self._wire = wire = None
        try:
            self._wire = wire = self.make_wire()
            await self._kept(wire)
        except TimeoutError:
            return f"it did not answer within {self.startup_seconds:g} s"
        except (Exception, BaseExceptionGroup) as error:  # noqa: BLE001 - whatever the server makes the package raise
            return _reason(error, wire)
        finally:
            self._end()
        return wire.explain()

    async def _kept(self, wire: Wire) -> None:
        client = Client(
            limited(wire, self._end),
            mode="auto",
            cache=None,
            client_info=Implementation(name="pyagent", version=__version__),
            message_handler=self._look,
            logging_callback=self._log,
            read_timeout_seconds=self.startup_seconds,
        )
        with anyio.CancelScope(deadline=anyio.current_time() + self.startup_seconds) as scope:
            async with client:
                await self._list(client)
                scope.deadline = math.inf
                self._become_ready(client)
                async with anyio.create_task_group() as group:
                    if client.protocol_version in MODERN_PROTOCOL_VERSIONS:
                        group.start_soon(self._listen, client)
                    await self._follow(client)
                    group.cancel_scope.cancel()
        if scope.cancelled_caught:
            raise TimeoutError

    async def _follow(self, client: Client) -> None:
        """Read the tools again when they change; return when the connection is to end, or has."""
        while self._client is client and not self._is_closing:
            await self._wake.wait()
            self._wake.clear()
            if self._has_changed and self._client is client:
                self._has_changed = False
                await self._list(client)
                await asyncio.sleep(_LISTING_SECONDS)

    def _end(self) -> None:
        """Have no more calls made on the connection, which has ended."""
        self._client = None
        self._settled.clear()
        self._wake.set()

    async def _listen(self, client: Client) -> None:
        """Hear of changes where the protocol wants that asked for; a server that refuses has none to tell."""
        while True:
            with suppress(SubscriptionLost, TimeoutError):
                try:
                    async with client.listen(tools_list_changed=True) as changes:
                        async for _ in changes:
                            self._changed()
                except MCPError:
                    return
            await asyncio.sleep(_LISTEN_AGAIN_SECONDS)
            self._changed()  # what came meanwhile was not heard

    def _changed(self) -> None:
        self._has_changed = True
        self._wake.set()

    async def _list(self, client: Client) -> None:
        tools: list[Tool] = []
        cursor: str | None = None
        for _ in range(_MAX_PAGES):
            page = await client.session.list_tools(params=PaginatedRequestParams(cursor=cursor))
            tools += page.tools
            cursor = page.next_cursor
            if cursor is None or len(tools) >= MAX_TOOLS:
                break
        self.on_tools(tools[:MAX_TOOLS])

    def _become_ready(self, client: Client) -> None:
        if self.fault:
            logger.info("the MCP server %s answers again", self.name)
        self.fault, self._ready_at = "", time.monotonic()
        self._client, self.protocol = client, client.protocol_version
        self._settled.set()

    def _fail(self, fault: str) -> None:
        self.fault = fault
        log = logger.debug if self._is_told else logger.warning
        log("the MCP server %s is not there, its tools fail until it is: %s", self.name, fault)
        self._is_told = True

    async def _pause(self) -> None:
        """Wait before the next try; callers that wait for a connection are told at once that there is none."""
        delay = min(_LONGEST_DELAY, _FIRST_DELAY * 2**self._num_failures)
        self._retry_at = time.monotonic() + delay
        self._settled.set()
        with suppress(TimeoutError):
            while not self._is_closing:
                self._wake.clear()
                await asyncio.wait_for(self._wake.wait(), max(0.0, self._retry_at - time.monotonic()))
        self._settled.clear()

    # -- what the server says -----------------------------------------------------------------------------------------

    async def _look(self, message: object) -> None:
        if isinstance(message, ToolListChangedNotification):
            self._changed()

    async def _log(self, params: LoggingMessageNotificationParams) -> None:
        self._num_logs += 1
        if self._num_logs <= _MAX_LOGS:
            said = strike_text(str(params.data)[:_MAX_SAID_CHARACTERS])
            logger.debug("the MCP server %s says: %s", self.name, said)


def _is_unknown_session(error: MCPError) -> bool:
    return error.code == INVALID_REQUEST and error.message == "Session terminated"


def _reason(error: BaseException, wire: Wire | None) -> str:
    """Return why a connection failed, in a line: the first error of those that came together."""
    while isinstance(error, BaseExceptionGroup):
        error = cast("BaseExceptionGroup[BaseException]", error).exceptions[0]
    if isinstance(error, PyAgentError):
        return str(error)
    known = wire.explain() if wire is not None else ""
    if isinstance(error, MCPError) and error.code == CONNECTION_CLOSED:
        return known
    text = strike_text(" ".join(str(error).split()) or type(error).__name__)[:_MAX_SAID_CHARACTERS]
    return text if not known or known == "its connection ended" else f"{known} ({text})"
