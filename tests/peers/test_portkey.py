"""Portkey's gateway, npm's `@portkey-ai/gateway`, behind the chain: told where to go by headers of the link's table.

`package.json` holds it to an older `@hono/node-server`: with later ones its streams fail with "immutable"
(https://github.com/Portkey-AI/gateway/issues/1389).
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.chains import Played, says
from support.peers import free_port, node_module, serving

from pyagent.assembly import make_host, make_link
from pyagent.core.backends import Answer, Backend, collect
from pyagent.core.chain import Chain, LinkSettings
from pyagent.core.errors import BackendError
from pyagent.core.messages import ChatRequest, Message
from pyagent.core.settings import Settings
from pyagent.testing import BackendConformance, Subject, openai_server

pytestmark = pytest.mark.peers

HELLO = ChatRequest(messages=[Message("user", "hi")])


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of the gateway."""
    program = node_module("@portkey-ai/gateway") / "build" / "start-server.js"
    port, log = free_port(), tmp_path_factory.mktemp("portkey") / "log"
    words: list[str | Path] = [shutil.which("node") or "node", program, f"--port={port}", "--headless"]
    with serving(f"http://127.0.0.1:{port}/", words, log):
        yield f"http://127.0.0.1:{port}/v1"


def link(gateway: str, upstream: str, model: str = "") -> Backend:
    """The link to an upstream through the gateway."""
    headers = {"x-portkey-provider": "openai", "x-portkey-custom-host": upstream}
    use = f"openai:{gateway}" + (f"#{model}" if model else "")
    return make_link(LinkSettings(use=use, headers=headers), Settings(), make_host(Settings()))


class TestPortkey(BackendConformance):
    """Through the gateway a server does what every backend must."""

    @pytest.fixture(autouse=True)
    def _server(self, gateway: str) -> None:
        self.url = gateway

    @contextmanager
    def subject(self) -> Iterator[Subject]:
        with openai_server() as server:
            yield Subject(lambda: link(self.url, server.url), scheme="openai")


def asked(chain: Chain) -> Answer:
    """The chain's answer."""

    async def main() -> Answer:
        try:
            return await collect(chain.chat(HELLO))
        finally:
            await chain.close()

    return asyncio.run(main())


def test_chain_answers_through_the_gateway(gateway: str) -> None:
    """A chain whose first link fails goes on to one behind the gateway, which passes its stream on as it is."""
    gone = Played("a", says(BackendError("connection closed", backend="link:a")))
    with openai_server(answer="one two three") as server:
        answer = asked(Chain([gone, link(gateway, server.url, "fake-1")]))
    assert answer.text == "one two three"
    assert [attempt.backend for attempt in answer.deltas[0].attempts] == ["link:a"]
    assert len(answer.deltas) > 2


def test_upstream_that_is_not_there_is_a_failed_link(gateway: str) -> None:
    """What the gateway says of an upstream that refuses connections is this link's failure, and the chain goes on."""
    gone = link(gateway, f"http://127.0.0.1:{free_port()}/v1", "m")
    answer = asked(Chain([gone, Played("b", says("here"))]))
    assert answer.text == "here"
    assert [attempt.backend for attempt in answer.deltas[0].attempts] == [gone.name]
