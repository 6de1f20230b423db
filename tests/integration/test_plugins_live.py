"""Plugins loaded anew in a running server: no request is dropped, and what begins gets the new plugin."""

from __future__ import annotations

import asyncio
import itertools
import json
import shutil
import sys
import textwrap
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
from support.installed import find_first, write_distribution
from support.plugins import discover
from support.server import keys, listening_at

from pyagent import reloading
from pyagent.assembly import make_chain
from pyagent.core.config import load_settings
from pyagent.core.fleet.journal import MemoryJournal
from pyagent.core.plugins import PluginHost
from pyagent.fleet import Fleet
from pyagent.infrastructure.server.agents import AgentBackend
from pyagent.infrastructure.server.app import create_app
from pyagent.reloading import PluginReloader

SOURCE = """
    import asyncio
    from pyagent.plugin import ChatDelta, Health, ModelInfo, Usage, hookimpl

    class Talker:
        closed = 0

        def __init__(self, link):
            self.name = str(link)
            self.gate, self.begun, self.is_closed = asyncio.Event(), asyncio.Event(), asyncio.Event()

        async def models(self):
            return [ModelInfo(id="talk", backend=self.name)]

        async def chat(self, request):
            yield ChatDelta(content="{said}", backend=self.name)
            if "wait" in request.messages[-1].text:
                self.begun.set()
                await self.gate.wait()
            yield ChatDelta(content=f" {{self.closed}}", backend=self.name)
            yield ChatDelta(finish_reason="stop", usage=Usage(1, 1, 2), backend=self.name)

        async def embed(self, request):
            raise NotImplementedError

        async def health(self):
            return Health(is_ready=True)

        async def close(self):
            type(self).closed += 1
            self.is_closed.set()

    class Teller:
        name, description = "teller", "Tells which version it is."

        async def run(self, context, task):
            return "{said} teller"

    MADE = []

    def make(link, settings):
        MADE.append(Talker(link))
        return MADE[-1]

    @hookimpl
    def pyagent_register_backends():
        return {{"{scheme}": make}}

    @hookimpl
    def pyagent_register_agents():
        return [Teller()]
"""
Write = Callable[..., None]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """Installs the plugin `talk`, in place of the one before; says `said`."""
    site, numbers, before = tmp_path / "site", itertools.count(), set(sys.modules)
    site.mkdir()
    find_first(monkeypatch, site)
    monkeypatch.setattr(reloading, "_LOOK_SECONDS", 0.01)

    def write(said: str, *, scheme: str = "talk", source: str = SOURCE) -> None:
        for found in site.glob("talk-*.dist-info"):
            shutil.rmtree(found)
        number = next(numbers)
        write_distribution(site, "talk", "talk.backends = talk\ntalk.agents = talk", version=f"{number}.0")
        code = textwrap.dedent(source).format(said=said, scheme=scheme)
        (site / "talk.py").write_text(code + "#" * number)  # of another length, so that it is compiled again

    yield write
    for module in set(sys.modules) - before:
        del sys.modules[module]


@asynccontextmanager
async def server(host: PluginHost, **options: object) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a server whose chain and agents are the plugin's."""
    settings = load_settings(overrides={"chain": ["talk:x"]}).settings
    chain = make_chain(settings, host)
    agents = AgentBackend(lambda: Fleet(settings, backend=chain, host=host, journal=MemoryJournal(), tools=[]))
    reloader = PluginReloader(settings, host, chain, agents)
    app = create_app(chain, agents=agents, plugins=reloader, **options)  # type: ignore[arg-type]
    try:
        async with (
            asyncio.timeout(60),
            listening_at(app) as url,
            httpx.AsyncClient(base_url=url, timeout=60, verify=False) as client,
        ):
            yield client
    finally:
        await agents.close()
        await reloader.close()
        await chain.close()


async def said(client: httpx.AsyncClient, text: str = "hi", model: str = "default") -> str:
    body = {"model": model, "messages": [{"role": "user", "content": text}]}
    answer = await client.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]["message"]["content"]


async def changed(client: httpx.AsyncClient, what: str, name: str = "talk") -> httpx.Response:
    return await client.post(f"/pyagent/plugins/{what}", json={"plugin": name})


def test_no_request_is_dropped(write: Write) -> None:
    """Requests under way end with the old plugin, which is closed then; all others get one plugin or the other."""
    write("old")

    async def work() -> None:
        async with server(discover()) as client:
            assert await said(client, model="agent:teller") == "old teller"
            slow = asyncio.create_task(said(client, "wait"))
            old = sys.modules["talk"].MADE[0]
            await asyncio.wait([slow, asyncio.create_task(old.begun.wait())], return_when=asyncio.FIRST_COMPLETED)
            write("new")
            many = [asyncio.create_task(said(client)) for _ in range(20)]
            answer = await changed(client, "reload")
            assert answer.status_code == 200, answer.text
            assert answer.json()["plugin"]["version"] == "1.0"
            assert answer.json()["used_by"] == {
                "backends": "requests that begin from now on",
                "agents": "runs that begin from now on",
            }
            assert await said(client) == "new 0"
            assert await said(client, model="agent:teller") == "new teller"
            assert {await one for one in many} <= {"old 0", "new 0"}
            assert old.closed == 0
            old.gate.set()
            assert await slow == "old 0"
            async with asyncio.timeout(30):
                await old.is_closed.wait()

    asyncio.run(work())


def test_a_plugin_that_is_wrong_changes_nothing(write: Write) -> None:
    """A new version that fails at import, or no longer makes the chain's link, is told; the old one answers on."""
    write("old")

    async def work() -> None:
        async with server(discover()) as client:
            assert await said(client, model="agent:teller") == "old teller"
            write("", source="1 / 0")
            answer = await changed(client, "reload")
            assert answer.status_code == 400
            assert "failed at import: ZeroDivisionError" in answer.json()["error"]["message"]
            assert (await said(client), await said(client, model="agent:teller")) == ("old 0", "old teller")
            write("new", scheme="other")
            message = (await changed(client, "reload")).json()["error"]["message"]
            assert "its links stay as they were: no plugin brings the backend 'talk'" in message
            assert await said(client) == "old 0"

    asyncio.run(work())


def test_unload_and_wrong_names(write: Write) -> None:
    """What a link of the chain is of stays; an unknown name gets the nearest; a client's key may not."""
    write("old")

    async def work() -> None:
        async with server(discover(), api_keys=keys("client", admin="boss")) as client:
            assert (await changed(client, "reload")).status_code == 401
            client.headers["authorization"] = "Bearer client"
            assert (await changed(client, "reload")).status_code == 403
            assert (await client.get("/pyagent/plugins")).status_code == 403
            client.headers["authorization"] = "Bearer boss"
            for what, name, message in (
                ("unload", "talk", "the plugin 'talk' is used by the link talk:x"),
                ("unload", "native", "comes with PyAgent"),
                ("reload", "tlak", "did you mean 'talk'?"),
            ):
                answer = await changed(client, what, name)
                assert answer.status_code == 400
                assert message in answer.json()["error"]["message"]
            infos = json.loads((await client.get("/pyagent/plugins")).content)
            assert {info["name"]: info["state"] for info in infos}["talk"] == "loaded"

    asyncio.run(work())
