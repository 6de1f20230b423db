"""Models of nodes that come and go, as clients of one node see them over HTTP."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine
from pathlib import Path

import httpx
import pytest
from support.chains import Played, says
from support.nodes import Own, answer, ask, cluster_of, is_connected, running_node
from support.server import serving
from support.waiting import until

from pyagent.assembly import make_chain, make_host
from pyagent.core.backends import collect
from pyagent.core.chain import Chain
from pyagent.core.config import load_settings
from pyagent.core.errors import BackendError, ContextOverflowError, RequestError, WireError
from pyagent.core.messages import ChatRequest, EmbedRequest, EmbedResult, Message
from pyagent.infrastructure.cluster.vectors import Embedded, pack, unpack
from pyagent.infrastructure.engine.backend import NativeBackend

NO_MODEL = RequestError("there is no such model", param="model", code="model_not_found")
TOO_LONG = ContextOverflowError("9000 tokens, the context has 100", num_tokens=9000, limit=100)


def run(work: Coroutine[None, None, None]) -> None:
    asyncio.run(work)


def asking(model: str) -> dict[str, object]:
    return {"model": model, "messages": [{"role": "user", "content": "hi"}]}


def test_model_of_nodes_that_are_away_is_refused_for_now(tmp_path: Path) -> None:
    """A model whose nodes drain or are gone is 503, with a time to come back; one that none had is 404."""

    async def work() -> None:
        async with (
            cluster_of(tmp_path, a=[Own("near")], b=[Own("far")], c=[Own("third")]) as (a, b, _c),
            serving(a.chain) as url,
            httpx.AsyncClient(base_url=url, timeout=60) as http,
        ):

            async def refused(model: str) -> tuple[int, bool]:
                said = await http.post("/v1/chat/completions", json=asking(model))
                again = await http.post("/v1/embeddings", json={"model": model, "input": "x"})
                assert said.status_code == again.status_code, (said.text, again.text)
                return said.status_code, "retry-after" in said.headers

            assert await refused("unknown") == (404, False)
            await b.drain(0)
            await until(lambda: is_connected(a, 1))
            for model in ("far", "peer:b", f"peer:{b.keys.node_id}"):
                assert await refused(model) == (503, True)
            await b.stop()
            await until(lambda: len(a.router) == 1)
            for model in ("far", "peer:b"):
                assert await refused(model) == (503, True)
            said = await http.post("/v1/chat/completions", json=asking("far"))
            assert "peer:b, which has the model 'far', takes no requests now" in said.json()["error"]["message"]
            await a.revoke("c")
            assert await refused("third") == (404, False)

    run(work())


@pytest.mark.parametrize("is_last", [True, False])
def test_request_at_fault_is_told_by_the_link_that_has_the_model(*, is_last: bool) -> None:
    """A prompt or text that is too long for its model is told so, whatever links without the model say after it."""

    async def work() -> None:
        has, lacks = Played("has", says(TOO_LONG)), Played("lacks", says(NO_MODEL))

        async def too_long(_: EmbedRequest) -> EmbedResult:
            raise TOO_LONG

        async def no_model(_: EmbedRequest) -> EmbedResult:
            raise NO_MODEL

        has.embed, lacks.embed = too_long, no_model  # type: ignore[method-assign]
        links = [has, lacks] if is_last else [lacks, has]
        async with serving(Chain(links)) as url, httpx.AsyncClient(base_url=url, timeout=60) as http:
            for path, body in (
                ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]}),
                ("/v1/embeddings", {"input": "x"}),
            ):
                said = await http.post(path, json=body)
                assert (said.status_code, said.json()["error"]["code"]) == (400, "context_length_exceeded")

    run(work())


def test_model_of_several_nodes_is_listed_once(tmp_path: Path) -> None:
    """Both lists of models have each model once, and name the links that have it where there are several."""

    async def work() -> None:
        async with (
            cluster_of(tmp_path, a=[Own("m")], b=[Own("m")], c=[Own("other")]) as (a, _b, _c),
            serving(a.chain) as url,
            httpx.AsyncClient(base_url=url, timeout=60) as http,
        ):
            listed = {one["id"]: one for one in (await http.get("/v1/models")).json()["data"]}
            assert len((await http.get("/v1/models")).json()["data"]) == len(listed) == 2
            assert (listed["m"]["owned_by"], listed["m"]["backends"]) == ("native:m", ["native:m", "peer:b"])
            assert "backends" not in listed["other"]
            assert (await http.get("/v1/models/m")).json()["backends"] == ["native:m", "peer:b"]
            tags = [one["name"] for one in (await http.get("/api/tags")).json()["models"]]
            assert sorted(tags) == ["m", "other"]
            anthropic = await http.get("/v1/models", headers={"anthropic-version": "2023-06-01"})
            assert sorted(one["id"] for one in anthropic.json()["data"]) == ["m", "other"]

    run(work())


def test_link_of_a_node_that_comes_back_keeps_its_counters_and_no_grudge(tmp_path: Path) -> None:
    """A node that failed until its breaker opened is asked at once when it was started anew; its counters go on."""

    async def work() -> None:
        async with cluster_of(tmp_path, a=[Own("near")], b=[Own("far", BackendError("broken", backend="x"))]) as (a, b):
            for _ in range(2):
                with pytest.raises(BackendError):
                    await answer(a, ask("far"))
            before = next(state for state in a.chain.link_states() if state.backend == "peer:b")
            assert before.breaker == "open"
            await b.stop()
            await until(lambda: not len(a.router))
            async with running_node(tmp_path / "b", [Own("far")], seeds=[f"127.0.0.1:{a.door_port}"]):
                await until(lambda: is_connected(a, 1))
                after = next(state for state in a.chain.link_states() if state.backend == "peer:b")
                assert (after.breaker, after.num_requests) == ("closed", before.num_requests)
                assert (await answer(a, ask("far"))).text == "from far"

    run(work())


def test_request_that_cannot_be_sent_says_nothing_of_the_node(tmp_path: Path) -> None:
    """A text without an encoding neither opens a node's breaker nor closes one that failures are opening."""

    async def work() -> None:
        far = Own("far", BackendError("broken", backend="x"))
        async with cluster_of(tmp_path, a=[Own("near")], b=[far]) as (a, _b):
            a.chain.retry_policy = type(a.chain.retry_policy)(num_retries=0)
            for _ in range(2):
                with pytest.raises(BackendError):
                    await answer(a, ask("far"))
                with pytest.raises(RequestError, match="cannot be sent"):
                    await collect(a.chain.chat(ChatRequest(model="far", messages=[Message("user", "\ud800")])))
            with pytest.raises(BackendError):
                await answer(a, ask("far"))
            assert next(one for one in a.chain.link_states() if one.backend == "peer:b").breaker == "open"

    run(work())


def test_vectors_cross_as_they_are_and_let_others_have_their_turn(tmp_path: Path) -> None:
    """Vectors of a peer are those it made; while megabytes of them are read, the event loop has many turns."""
    rng = random.Random(1)
    vectors = [[rng.uniform(-1, 1) for _ in range(size)] for size in (3, 0, 70_000, 70_000, 70_000)]

    async def work() -> None:
        class Embedding(Own):
            async def embed(self, request: EmbedRequest) -> EmbedResult:
                return EmbedResult(vectors=vectors[: len(request.input)], model="e")

        async with cluster_of(tmp_path, a=[Own("a")], b=[Embedding("b")]) as (a, _b):
            result = await a.chain.embed(EmbedRequest(model="b", input=["x"] * 5))
            assert (result.vectors, result.model) == (vectors, "e")
        told, numbers = await pack(EmbedResult(vectors=vectors))
        turns = 0

        async def count() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        counting = asyncio.create_task(count())
        await unpack(told, [numbers], "peer")
        counting.cancel()
        assert turns >= 3
        for bad in ([], [numbers[:-8]], [numbers, b""], [numbers + b"12345678"]):
            with pytest.raises(WireError, match="peer sent"):
                await unpack(told, bad, "peer")
        with pytest.raises(WireError):
            await unpack(Embedded([10**9]), [b""], "peer")

    run(work())


def test_one_file_in_two_folders_is_one_model_of_the_cluster(tmp_path: Path, tiny_model_path: Path) -> None:
    """Each node has it under the file's name, wherever it lies; no peer is told the path, which its own node takes."""

    def link(folder: str) -> NativeBackend:
        path = tmp_path / folder / "tiny.gguf"
        path.parent.mkdir()
        path.symlink_to(tiny_model_path)
        settings = load_settings(overrides={"chain": [f"native:{path}"], "engine.threads": 1}).settings
        (made,) = make_chain(settings, make_host(settings)).links
        assert isinstance(made, NativeBackend)
        return made

    async def work() -> None:
        one, two = link("one"), link("two")
        async with cluster_of(tmp_path, {}, a=[one], b=[two]) as (a, _):
            async with asyncio.timeout(60):
                while len(models := await a.chain.models()) < 2:  # noqa: ASYNC110 - what is waited for has no event
                    await asyncio.sleep(0.02)
            assert [model.id for model in models] == ["tiny", "tiny"]
            assert [bool(model.aliases) for model in models] == [True, False]
            assert str(tmp_path) not in str(models[1])
        await asyncio.gather(one.close(), two.close())

    asyncio.run(work())
