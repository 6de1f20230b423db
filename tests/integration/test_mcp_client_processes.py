"""The processes of MCP servers: begun, begun again when they die, and ended with the fleet, however it ends."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.mcp_fleet import calling, fleet_of, is_alive, names, raw
from support.waiting import wait_until

from pyagent.core.errors import BackendError
from pyagent.core.fleet import tool_providers
from pyagent.core.fleet.context import Context
from pyagent.infrastructure.mcp import stdio


@pytest.fixture(autouse=True)
def _time_to_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fleet goes on without a server that is not there after ten seconds, and a busy machine may take longer."""
    monkeypatch.setattr(tool_providers, "OPEN_SECONDS", 60.0)


def test_failed_start_is_named_once_without_secrets(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that ends at once is named in one warning with its last words, and the others work; a call says why."""
    monkeypatch.setenv("MCP_TEST_SECRET", "hush-hush")
    secret = {"env": {"KEY": "env:MCP_TEST_SECRET"}}

    async def main() -> None:
        missing = {"command": "nonesuch", "trust": "all"}
        unset = raw("plain", env={"X": "env:MCP_TEST_UNSET"})
        servers = {"missing": missing, "unset": unset, "wrong": raw("wrong"), "good": raw("noise")}
        async with fleet_of(fails=raw("fails", **secret), **servers) as run:
            assert await run(names) == ["good__echo"]
            await asyncio.sleep(1.2)  # it is tried again meanwhile
            assert await run(calling("good__echo", text="x")) == "x"

    with caplog.at_level(logging.WARNING):
        asyncio.run(main())
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 4, told
    assert any("wrong" in text and "ListToolsResult" in text for text in told), told
    assert any("fails" in text and "exit code 1; it said: no: [redacted]" in text for text in told), told
    assert any("its command 'nonesuch' is not found" in text for text in told), told
    assert any("X of the MCP server unset is to be env:MCP_TEST_UNSET, which is not set" in text for text in told), told
    assert "hush" not in caplog.text


def test_server_that_dies_is_begun_again() -> None:
    """A call that a server dies of says that its effect is not known; the next call has a new server."""

    async def main() -> None:
        async with fleet_of(bad=raw("dies")) as run:
            for _ in range(2):
                with pytest.raises(BackendError, match="ended during the call; whether the call had its effect is not"):
                    await run(calling("bad__echo", text="x"))
            with pytest.raises(
                BackendError, match=r"not connected: it ended with exit code 3; it is tried again in \d s"
            ):
                await run(calling("bad__echo", text="x"))

    asyncio.run(main())


def test_call_without_an_answer_ends_in_time() -> None:
    """A server that does not answer a call costs its `timeout_seconds`."""

    async def main() -> None:
        async with fleet_of(bad=raw("silent", timeout_seconds=0.2)) as run:
            with pytest.raises(BackendError, match=r"bad: no answer within 0.2 s, the call was cancelled"):
                await run(calling("bad__echo", text="x"))

    asyncio.run(main())


def test_all_processes_of_a_server_end_with_the_fleet() -> None:
    """Also a server that hears neither the end of its input nor SIGTERM, and its child."""
    processes: list[int] = []

    async def look(context: Context) -> bool:
        processes.extend(map(int, context.run.tools["bad__echo"].description.split()))
        return True

    async def main() -> float:
        async with fleet_of(bad=raw("child")) as run:
            await run(look)
            assert all(map(is_alive, processes))
            began = time.monotonic()
        return time.monotonic() - began

    assert asyncio.run(main()) < 5  # what a provider has for it
    assert len(processes) == 2
    deadline = time.monotonic() + 10
    while any(map(is_alive, processes)) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not any(map(is_alive, processes)), os.listdir("/proc")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGHUP])
def test_all_processes_of_a_server_end_though_we_are_killed(tmp_path: Path, number: signal.Signals) -> None:
    """By SIGKILL or a closed terminal: a server that hears neither its input's end nor SIGTERM, and a child."""
    told = tmp_path / "processes"
    deaf = f"trap '' TERM HUP INT; sleep 600 & echo $$ $! > {told}; while :; do sleep 600; done"
    command = [sys.executable, "-c", _OPENS_A_PROGRAM, deaf]
    ours = subprocess.Popen(command, start_new_session=True, stdout=subprocess.PIPE)
    assert ours.stdout is not None
    assert ours.stdout.readline() == b"open\n"
    wait_until(lambda: told.exists() and told.read_text().endswith("\n"))
    processes = [int(word) for word in told.read_text().split()]
    assert all(map(is_alive, processes))
    os.killpg(ours.pid, number)
    ours.communicate(timeout=60)
    assert ours.returncode == -number
    wait_until(lambda: not any(map(is_alive, processes)))


_OPENS_A_PROGRAM = """
import asyncio, os, signal, sys
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # which whoever runs the tests may ignore
from pyagent.infrastructure.mcp.stdio import Program

async def main():
    async with Program("deaf", ["/bin/sh", "-c", sys.argv[1]], os.environ, None, ()).streams():
        print("open", flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


def test_program_is_reaped_though_its_end_is_cancelled() -> None:
    """A program whose end is interrupted, as by Ctrl+C, is killed and taken in, and leaves no warning of Python's."""
    program = stdio.Program("s", [sys.executable, "-S", "-c", "import time; time.sleep(60)"], os.environ, None, ())

    async def main() -> str:
        begun = asyncio.Event()

        async def use() -> None:
            async with program.streams():
                begun.set()
                await asyncio.Event().wait()

        task = asyncio.create_task(use())
        await begun.wait()
        task.cancel()
        await asyncio.sleep(0.02)  # its end has begun, and is broken off
        task.cancel()
        await asyncio.wait([task])
        return program.explain()

    assert asyncio.run(main()) == "it ended with signal SIGKILL"
