"""MCP servers that flood, lie or never end a line: a fleet is bounded, and goes on."""

from __future__ import annotations

import asyncio
import logging
import resource
import sys
from collections.abc import Sequence
from typing import Any

import anyio
import pytest
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCNotification, JSONRPCRequest, JSONRPCResponse
from support.mcp_fleet import calling, fleet_of, names, raw

from pyagent.core.errors import PyAgentError
from pyagent.core.fleet import events as ev
from pyagent.core.fleet import tool_providers
from pyagent.core.fleet.context import Context
from pyagent.core.fleet.tools import FleetTool
from pyagent.infrastructure.mcp import stdio
from pyagent.infrastructure.mcp.incoming import MAX_NOTIFICATIONS, MAX_REQUESTS, Answering, Limited


@pytest.fixture(autouse=True)
def _time_to_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fleet goes on without a server that is not there after ten seconds, and a busy machine may take longer."""
    monkeypatch.setattr(tool_providers, "OPEN_SECONDS", 60.0)


def test_endless_line_takes_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that never ends its line is ended, with the reason; what it wrote is not kept."""
    monkeypatch.setattr(stdio, "MAX_LINE_BYTES", 1 << 20)

    async def main() -> None:
        async with fleet_of(bad=raw("endless", timeout_seconds=20)) as run:
            await run(names)
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            with pytest.raises(PyAgentError, match="it sent a line of more than 1 MiB"):
                await run(calling("bad__echo", text="x"))
            assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000  # KiB

    asyncio.run(main())


def test_flood_of_notifications_is_bounded(caplog: pytest.LogCaptureFixture) -> None:
    """6,000 notifications are 100 events and 200 lines of log at most, and the answer comes."""
    seen: list[ev.Event] = []

    async def main() -> None:
        async with fleet_of(bad=raw("flood")) as run:
            assert await run(calling("bad__echo", text="x"), seen=seen) == "x"

    with caplog.at_level(logging.DEBUG, "pyagent.mcp"):
        asyncio.run(main())
    assert sum(isinstance(each, ev.Progress) for each in seen) <= 100
    assert sum("says" in record.getMessage() for record in caplog.records) <= 200


def test_requests_beyond_those_that_are_answered_are_dropped() -> None:
    """Of 1,000 pings at once the package's session sees 100, and as many more as it has answered."""

    async def main() -> tuple[int, int]:
        sending, receiving = anyio.create_memory_object_stream[Any](2_000)
        to_server, answers = anyio.create_memory_object_stream[Any](2_000)
        answering = Answering(to_server)
        limited = Limited(receiving, lambda: None, answering)

        async def num_seen() -> int:
            for number in range(1_000):
                sending.send_nowait(SessionMessage(JSONRPCRequest(jsonrpc="2.0", id=number, method="ping")))
            sending.send_nowait(SessionMessage(JSONRPCResponse(jsonrpc="2.0", id=-1, result={})))
            count = 0
            while isinstance((await limited.receive()).message, JSONRPCRequest):
                count += 1
            return count

        first = await num_seen()
        for number in range(30):
            await answering.send(SessionMessage(JSONRPCResponse(jsonrpc="2.0", id=number, result={})))
        second = await num_seen()
        for stream in (sending, receiving, to_server, answers):
            stream.close()
        return first, second

    assert asyncio.run(main()) == (MAX_REQUESTS, 30)


def test_requests_that_their_server_cancels_give_way_to_others() -> None:
    """What a server cancelled is never answered, and counts no longer; an id that waits already is not taken again."""

    async def main() -> list[int]:
        sending, receiving = anyio.create_memory_object_stream[Any](2_000)
        to_server, answers = anyio.create_memory_object_stream[Any](1)
        limited = Limited(receiving, lambda: None, Answering(to_server))

        async def num_seen(*messages: JSONRPCRequest | JSONRPCNotification) -> int:
            for message in (*messages, JSONRPCResponse(jsonrpc="2.0", id=-1, result={})):
                sending.send_nowait(SessionMessage(message))
            count = 0
            while not isinstance(message := (await limited.receive()).message, JSONRPCResponse):
                count += isinstance(message, JSONRPCRequest)
            return count

        def ping(number: int | str) -> JSONRPCRequest:
            return JSONRPCRequest(jsonrpc="2.0", id=number, method="ping")

        def cancel(number: object) -> JSONRPCNotification:
            return JSONRPCNotification(jsonrpc="2.0", method="notifications/cancelled", params={"requestId": number})

        seen = [await num_seen(*(ping(number) for _ in range(2) for number in range(200)))]
        seen.append(await num_seen(*(cancel(number) for number in (0, 1, "2", 500, None, 1)), cancel([])))
        seen.append(await num_seen(*(ping(number) for number in range(300, 320)), ping("300")))
        for stream in (sending, receiving, to_server, answers):
            stream.close()
        return seen

    assert asyncio.run(main()) == [MAX_REQUESTS, 0, 3]


def test_noise_of_a_program_leaves_others_their_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each line that is no message waits for a turn of the event loop; of standard error little is looked at."""
    turns: list[int] = []
    num_turns, num_struck = 0, 0
    parsed, strike_text = stdio._parsed, stdio.strike_text

    async def count_turns() -> None:
        nonlocal num_turns
        while True:
            num_turns += 1
            await asyncio.sleep(0)

    def count_struck(text: str, known: Sequence[str] = ()) -> str:
        nonlocal num_struck
        num_struck += 1
        return strike_text(text, known)

    async def main() -> None:
        says = "import sys; sys.stderr.write('a\\n' * 20_000); sys.stdout.write('\\n' * 200)"
        program = stdio.Program("noisy", [sys.executable, "-S", "-c", says], {}, None, ())
        ticking = asyncio.create_task(count_turns())
        async with program.streams() as (incoming, _):
            assert [message async for message in incoming] == []
        ticking.cancel()

    monkeypatch.setattr(stdio, "_parsed", lambda line: turns.append(num_turns) or parsed(line))
    monkeypatch.setattr(stdio, "strike_text", count_struck)
    asyncio.run(main())
    assert len(turns) == len(set(turns)) == 200
    assert num_struck < 3_000


def test_notifications_beyond_a_rate_are_dropped() -> None:
    """Of 10,000 notifications at once the package's session sees 1,000 a second; answers among them all arrive."""

    async def main() -> tuple[int, int]:
        sending, receiving = anyio.create_memory_object_stream[Any](20_000)
        noise = JSONRPCNotification(jsonrpc="2.0", method="notifications/message")
        for number in range(10_000):
            sending.send_nowait(SessionMessage(noise))
            if number % 1_000 == 0:
                sending.send_nowait(SessionMessage(JSONRPCResponse(jsonrpc="2.0", id=number, result={})))
        sending.close()
        began = asyncio.get_running_loop().time()
        seen = [each.message async for each in Limited(receiving, lambda: None, Answering(sending))]
        seconds = int(asyncio.get_running_loop().time() - began) + 2
        receiving.close()
        num_answers = sum(isinstance(each, JSONRPCResponse) for each in seen)
        assert len(seen) - num_answers <= MAX_NOTIFICATIONS * seconds < 10_000
        return num_answers, seconds

    assert asyncio.run(main())[0] == 10


def test_lies_about_tools_are_left_out(caplog: pytest.LogCaptureFixture) -> None:
    """Names that would be equal are told apart, a broken or huge schema keeps its tool out alone, texts are cut."""

    async def main() -> dict[str, FleetTool]:
        found: dict[str, FleetTool] = {}

        async def look(context: Context) -> bool:
            found.update(context.run.tools)
            return True

        async with fleet_of(bad=raw("lies")) as run:
            await run(look)
        return found

    found = asyncio.run(main())
    assert len(found) == 8
    assert {"bad__a_b", "bad__talks", "bad__deep70"} < found.keys()
    assert "the tool bad__deep150 cannot be offered" in caplog.text
    assert all(len(name) <= 64 for name in found)
    assert len(found["bad__talks"].description) == 8_000
    assert "its tool 'big' cannot be offered: its schema has more than 100,000 bytes" in caplog.text
    assert "the tool bad__broken cannot be offered" in caplog.text
