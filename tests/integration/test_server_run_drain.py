"""A server that is told to end: runs under way have their time, and what is left is unfinished, not cancelled."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from support.run_server import started
from support.waiting import wait_until

from pyagent.infrastructure.storage.journal import SqliteJournal

SERVER = """
import asyncio, sys
from pathlib import Path
from support.run_server import World
from pyagent.core.settings import Server
from pyagent.infrastructure.server.agents import AgentBackend
from pyagent.infrastructure.server.app import create_app
from pyagent.infrastructure.server.uvicorn_server import address, bind, serve
from pyagent.infrastructure.storage.journal import SqliteJournal
from pyagent.testing import ScriptedBackend

folder, drain_seconds = Path(sys.argv[1]), float(sys.argv[2])
world, journal = World(), SqliteJournal(folder)
agents = AgentBackend(lambda: world.fleet(journal))
listening = bind("127.0.0.1", 0)
print(address(listening), flush=True)

async def open_gate():
    if await asyncio.to_thread(sys.stdin.readline):
        world.may_go.set()

async def main():
    opening = asyncio.create_task(open_gate())
    app = create_app(ScriptedBackend([]), agents=agents)
    await serve(app, listening, Server(drain_seconds=drain_seconds), [agents])
    await agents.close()
    opening.cancel()

asyncio.run(main())
"""


@pytest.mark.parametrize(("drain_seconds", "opens", "state"), [(0.2, False, "unfinished"), (60.0, True, "done")])
def test_a_run_has_the_time_that_a_server_drains(tmp_path: Path, drain_seconds: float, opens: bool, state: str) -> None:
    """SIGTERM waits for runs as for requests; one that does not end in that time is left as by a kill."""
    command = [sys.executable, "-c", SERVER, str(tmp_path), str(drain_seconds)]
    server = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[1]
    )
    try:
        assert server.stdout is not None
        assert server.stdin is not None
        url = server.stdout.readline().strip()
        with httpx.Client(base_url=url, timeout=60) as http:
            run = started(http, "gate")["id"]
            wait_until(lambda: http.get(f"/v1/runs/{run}").json()["num_events"] > 3)
            server.send_signal(signal.SIGTERM)
            wait_until(lambda: _is_draining(http))
            if opens:
                server.stdin.write("\n")
                server.stdin.flush()
            else:
                server.stdin.close()
                server.stdin = None
        assert server.wait(30) == 0
    finally:
        server.kill()
        server.communicate()
    row = SqliteJournal(tmp_path).summary(run)
    assert row is not None
    assert row.state == state


def _is_draining(http: httpx.Client) -> bool:
    try:
        return http.get("/ready").status_code == 503
    except httpx.TransportError:
        return True
