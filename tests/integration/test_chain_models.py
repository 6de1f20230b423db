"""Models of a chain's links: none that hangs holds up a request for another's model, and no circle of servers does."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack

import httpx
from support.chains import Played, says
from support.server import serving

from pyagent.core.chain import Chain
from pyagent.core.messages import Health, ModelInfo
from pyagent.infrastructure.backends.openai import OpenAIBackend

FAR = 30.0
"""Seconds that no test waits: a link that hangs for so long would show."""


def asking(model: str) -> dict[str, object]:
    return {"model": model, "messages": [{"role": "user", "content": "hi"}]}


class Listing(Played):
    """Lists one model after a while, and counts how often it is asked."""

    def __init__(self, name: str, model: str, seconds: float = 0.0) -> None:
        super().__init__(name, says(name))
        self.model, self.seconds = model, seconds
        self.num_lists = 0

    async def models(self) -> list[ModelInfo]:
        self.num_lists += 1
        await asyncio.sleep(self.seconds)
        return [ModelInfo(id=self.model)]

    async def health(self) -> Health:
        await asyncio.sleep(self.seconds)
        return Health(is_ready=True)


def test_hung_link_holds_up_no_request_that_names_anothers_model() -> None:
    """A request for a healthy link's model goes to it at once, though the first link hangs; an unknown one is 404."""
    hung, good = Listing("hung", "x", FAR), Listing("good", "m")
    hung.play = says(FAR)

    async def main() -> None:
        chain = Chain([hung, good])
        async with serving(chain) as url, httpx.AsyncClient(base_url=url, timeout=FAR) as http:
            started = time.monotonic()
            for _ in range(3):
                answer = await http.post("/v1/chat/completions", json=asking("m"))
                assert (answer.status_code, answer.json()["backend"]) == (200, "link:good")
            assert (await http.get("/ready")).status_code == 200
            for path in ("/v1/models", "/api/tags"):
                assert "m" in (await http.get(path)).text
            missing = await http.post("/v1/chat/completions", json=asking("q"))
            assert missing.status_code == 404
            assert time.monotonic() - started < FAR
        assert hung.requests == []
        assert hung.num_lists <= 2
        await chain.close()

    asyncio.run(main())


def test_links_are_asked_once_for_all_that_wait() -> None:
    """A hundred requests at once ask each link one time for its models."""
    slow = Listing("slow", "m", 0.05)

    async def main() -> None:
        chain = Chain([slow])
        assert all(await asyncio.gather(*(chain.has_model("m") for _ in range(100))))
        assert slow.num_lists == 1
        slow.model = "n"
        lists = await asyncio.gather(*(chain.models() for _ in range(100)))
        assert {model.id for models in lists for model in models} == {"n"}, "a list is what is there now"
        assert slow.num_lists == 2
        await chain.close()

    asyncio.run(main())


def test_nothing_is_ready_in_time_when_all_hang() -> None:
    """A chain all of whose links hang is not ready, and says so before a probe gives up on it."""

    async def main() -> None:
        chain = Chain([Listing("hung", "x", FAR)])
        started = time.monotonic()
        assert not await chain.is_ready()
        assert time.monotonic() - started < FAR
        await chain.close()

    asyncio.run(main())


def test_two_servers_that_name_each_other_end_at_once() -> None:
    """A circle of servers lists its models, answers from what is no circle, and says what a loop is."""

    async def main() -> None:
        async with AsyncExitStack() as stack:
            urls: list[str] = []
            chains: list[Chain] = []
            for _ in range(2):
                chain = Chain([Played("own", says("own"))])
                urls.append(await stack.enter_async_context(serving(chain)))
                chains.append(chain)
            for chain, other in zip(chains, reversed(urls), strict=True):
                chain.links = [OpenAIBackend(f"{other}/v1"), *chain.links]
                chain.__post_init__()
            async with httpx.AsyncClient(base_url=urls[0], timeout=FAR) as http:
                listed = await http.get("/v1/models")
                assert "link:own" in listed.text
                answer = await http.post("/v1/chat/completions", json=asking("default"))
                assert answer.status_code == 200
                assert answer.json()["choices"][0]["message"]["content"] == "own"
            states = [state for chain in chains for state in chain.link_states()]
            assert {state.breaker for state in states} == {"closed"}
            for chain in chains:
                await chain.close()

    asyncio.run(main())
