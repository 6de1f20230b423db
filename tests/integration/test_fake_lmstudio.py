"""The fake LM Studio is true to the wire: the real `lmstudio` client cannot tell."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import lmstudio
import pytest

from pyagent.testing import Fault, LMStudioServer, lmstudio_server


def run(server: LMStudioServer, work: Callable[[lmstudio.AsyncClient], Awaitable[None]]) -> None:
    async def main() -> None:
        async with lmstudio.AsyncClient(server.url.removeprefix("http://")) as client:
            await work(client)

    asyncio.run(main())


def test_client_lists_loads_and_streams() -> None:
    """The client lists models, loads one on demand, streams an answer with its statistics."""

    async def work(client: lmstudio.AsyncClient) -> None:
        assert [model.model_key for model in await client.list_downloaded_models()] == ["qwen3-4b"]
        assert await client.list_loaded_models() == []
        model = await client.llm.model("qwen3-4b")
        assert (await model.get_info()).context_length == 4096
        stream = await model.respond_stream("hi", config={"maxTokens": 5})
        pieces = [(fragment.content, fragment.reasoning_type) async for fragment in stream]
        assert pieces == [("hm", "reasoning"), ("one", "none"), (" two", "none")]
        assert stream.result().stats.stop_reason == "eosFound"
        assert [model.identifier for model in await client.list_loaded_models()] == ["qwen3-4b"]

    with lmstudio_server(answer="one two", reasoning="hm") as server:
        run(server, work)
        assert len(server.requests) == 1


def test_client_cancels() -> None:
    """A cancelled prediction still ends with its final message, as LM Studio sends it."""

    async def work(client: lmstudio.AsyncClient) -> None:
        stream = await (await client.llm.model()).respond_stream("hi")
        async for _ in stream:
            await stream.cancel()
        assert stream.result().stats.stop_reason == "userStopped"

    with lmstudio_server(loaded=["qwen3-4b"], delay_seconds=0.05) as server:
        run(server, work)
        assert server.num_cancelled == 1


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (Fault("error", 1, "out of memory"), lmstudio.LMStudioServerError),
        (Fault("end", 1), lmstudio.LMStudioRuntimeError),
        (Fault("drop", 1), lmstudio.LMStudioWebsocketError),
    ],
    ids=lambda value: value.kind if isinstance(value, Fault) else "",
)
def test_client_raises_the_servers_errors(fault: Fault, error: type[Exception]) -> None:
    """Each fault reaches the client as its own error."""

    async def work(client: lmstudio.AsyncClient) -> None:
        with pytest.raises(error):
            await (await client.llm.model("qwen3-4b")).respond("hi")

    with lmstudio_server(fault=fault) as server:
        run(server, work)


def test_unknown_models_and_endpoints_are_errors() -> None:
    """A model that is not there is the client's own error for it; what the fake lacks is refused by name."""

    async def work(client: lmstudio.AsyncClient) -> None:
        with pytest.raises(lmstudio.LMStudioModelNotFoundError):
            await client.llm.model("nope")
        with pytest.raises(lmstudio.LMStudioServerError, match="No RPC endpoint"):
            await (await client.llm.model("qwen3-4b")).apply_prompt_template("hi")

    with lmstudio_server() as server:
        run(server, work)


def test_sync_client_does_it_all() -> None:
    """The synchronous client lists, loads with a time to live, counts, answers, calls tools, embeds and unloads."""

    def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    lmstudio.set_sync_api_timeout(10)
    with lmstudio_server(embedding_models=("nomic",)) as server:
        with lmstudio.Client(server.url.removeprefix("http://")) as client:
            model = client.llm.load_new_instance("qwen3-4b", ttl=60)
            assert (model.count_tokens("one two"), model.get_context_length()) == (2, 4096)
            assert str(model.respond("hi")) == "Hello from the fake."
            said: list[str] = []
            model.act("add", [add], on_message=lambda message: said.append(message.role))
            assert said == ["assistant", "tool", "assistant"]
            assert client.embedding.model("nomic").embed("abc") == [3.0, 1.0]
            model.unload()
            assert [loaded.identifier for loaded in client.list_loaded_models()] == ["nomic"]
        assert server.loads[0]["ttlMs"] == 60_000


@pytest.mark.parametrize("what", ["load_error", "auth_error"])
def test_client_sees_refusals(what: str) -> None:
    """No memory for a model, and a version that does not match, are the client's own errors."""

    async def work(client: lmstudio.AsyncClient) -> None:
        await client.llm.model("qwen3-4b")

    with (
        lmstudio_server(**{what: "cannot be"}) as server,
        pytest.raises(lmstudio.LMStudioServerError, match="cannot be"),
    ):
        run(server, work)
