"""Names of nodes, which any member may take, and their ids, which none can: two real nodes and an impostor."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path

import httpx
import pytest
from support.nodes import Own, answer, ask, cluster_of, is_connected, join, running_node
from support.server import Model, serving, words
from support.waiting import until

from pyagent.core.cluster.messages import Dead, Gossip
from pyagent.core.errors import AwayError, ClusterError, RequestError
from pyagent.infrastructure.cluster.node import Node
from pyagent.infrastructure.cluster.protocol import GOSSIP, gossip_codec


def run(work: Coroutine[None, None, None]) -> None:
    asyncio.run(work)


def test_private_request_goes_to_the_node_that_a_rule_names_by_id_alone(tmp_path: Path) -> None:
    """A rule names a node by its id; one that takes that node's name, or its id as a name, is sent nothing private."""

    async def work() -> None:
        far, false = Own("far"), Own("far")
        async with cluster_of(tmp_path, a=[Own("near")], desk=[far]) as (a, desk):
            seeds = [f"127.0.0.1:{a.door_port}"]
            desk.chain.private = ["native"]
            a.chain.private = ["native", "peer:desk"]
            with pytest.raises(RequestError):
                await answer(a, ask("far", private=True))
            a.chain.private = ["native", f"peer:{desk.keys.node_id}"]
            assert (await answer(a, ask("far", private=True))).last.backend == "peer:desk"
            for number, name in enumerate(("desk", desk.keys.node_id)):
                join(tmp_path / f"false{number}", a)
                async with running_node(tmp_path / f"false{number}", [false], seeds=seeds, name=name):
                    await until(lambda: is_connected(a, 2))
                    for _ in range(4):
                        assert (await answer(a, ask("far", private=True))).text == "from far"
                await until(lambda: is_connected(a, 1))
            assert len(far.requests) == 9
            assert not false.requests

    run(work())


def test_two_nodes_of_one_name_go_by_their_ids(tmp_path: Path) -> None:
    """While two nodes have one name each is addressed by its id, and a command that names both says which there are."""

    async def work() -> None:
        async with cluster_of(tmp_path, a=[Own("near")], desk=[Own("one")]) as (a, desk):
            join(tmp_path / "other", a)
            seeds = [f"127.0.0.1:{a.door_port}"]
            async with running_node(tmp_path / "other", [Own("two")], seeds=seeds, name="desk") as other:
                await until(lambda: is_connected(a, 2))
                ids = sorted([desk.keys.node_id, other.keys.node_id])
                assert sorted(name for name in a.chain.names if name.startswith("peer:")) == [f"peer:{i}" for i in ids]
                assert (await answer(a, ask(f"peer:{other.keys.node_id}"))).text == "from two"
                assert [peer.name for peer in a.status().peers] == ["desk", "desk"]
                async with serving(a.chain) as url, httpx.AsyncClient(base_url=url, timeout=60) as http:
                    asked = {"model": "peer:desk", "messages": [{"role": "user", "content": "hi"}]}
                    said = await http.post("/v1/chat/completions", json=asked)
                assert said.status_code == 404
                assert f"2 nodes are called 'desk'; give the id of one: {', '.join(ids)}" in said.text
                with pytest.raises(ClusterError, match=f"2 nodes are called 'desk'.*{ids[0]}, {ids[1]}"):
                    await a.revoke("desk")
            await until(lambda: "peer:desk" in a.chain.names)
            assert (await answer(a, ask("peer:desk"))).text == "from one"

    run(work())


def test_node_that_is_gone_is_shown_so_until_it_is_forgotten(tmp_path: Path) -> None:
    """A stopped node is listed with its state and since when; forgotten by one node, it is at all; it may come back."""

    async def work() -> None:
        async with cluster_of(tmp_path, a=[Own("one")], b=[Own("two")], c=[Own("three")]) as (a, b, c):
            lost = c.keys.node_id
            with pytest.raises(ClusterError, match=rf"node c \({lost}\) runs"):
                await a.forget("c")
            await c.stop()
            await until(lambda: is_connected(a, 1) and is_connected(b, 1))
            last = a.status().peers[-1]
            assert (last.id, last.name, last.state) == (lost, "c", "left")
            assert 0 <= last.state_seconds < 600
            assert await a.forget("c") == lost
            for node in (a, b):
                await until(lambda node=node: all(peer.id != lost for peer in node.status().peers))
                await until(lambda node=node: lost not in node.cluster.load().members)
            async with running_node(tmp_path / "c", [Own("three")], seeds=[f"127.0.0.1:{a.door_port}"]):
                await until(lambda: is_connected(a, 2) and is_connected(b, 2))
            with pytest.raises(ClusterError, match="no node is called 'd'"):
                await a.forget("d")

    run(work())


def test_node_without_links_answers_by_its_peers(tmp_path: Path) -> None:
    """A node that computes nothing has its peers' models; while none takes requests it says when to ask again."""

    async def work() -> None:
        async with cluster_of(tmp_path, b=[Own("m")]) as [b]:
            join(tmp_path / "a", b)
            async with running_node(tmp_path / "a", [], seeds=[f"127.0.0.1:{b.door_port}"]) as a:
                await until(lambda: is_connected(a, 1))
                await thin(a, b)

    async def thin(a: Node, b: Node) -> None:
        assert [model.id for model in await a.chain.models()] == ["m"]
        assert (await answer(a, ask("m"))).text == (await answer(a, ask(""))).text == "from m"
        with pytest.raises(RequestError, match="no link has the model 'x'"):
            await answer(a, ask("x"))
        await b.drain(0)
        await until(lambda: is_connected(a, 0))
        for model in ("m", "", "peer:b"):
            with pytest.raises(AwayError) as caught:
                await answer(a, ask(model))
            assert caught.value.retry_after_seconds

    run(work())


def test_answers_of_a_node_are_counted_on_after_it_was_taken_for_dead(tmp_path: Path) -> None:
    """A node that others held for dead, and that is there again, has answered as often as before; a new one never."""

    async def work() -> None:
        async with cluster_of(tmp_path, a=[Own("near")], b=[Own("far")], c=[Own("third")]) as (a, b, c):

            def num_answered() -> int:
                return next(peer.num_answered for peer in a.status().peers if peer.id == lost)

            lost = b.keys.node_id
            for _ in range(2):
                await answer(a, ask("far"))
            before = a.router.get(lost)
            gossip = Gossip((Dead(lost, b._members.views()[lost].member.incarnation),))
            c._transport.cast(a.keys.node_id, GOSSIP, gossip_codec.encode(gossip))
            await until(lambda: (peer := a.router.get(lost)) is not before and peer is not None and peer.is_usable)
            assert num_answered() == 2
            await answer(a, ask("far"))
            assert num_answered() == 3
            await b.stop()
            await until(lambda: a.router.get(lost) is None)
            assert num_answered() == 3
            await a.revoke("b")
            assert a.router.num_answered(lost) == 0

    run(work())


def test_name_of_a_node_is_its_own_engine_there(tmp_path: Path) -> None:
    """`peer:NAME`, and `peer:ID`, of the node itself is its engine; with a peer of the same name only the id is."""

    async def work() -> None:
        async with cluster_of(tmp_path, a=[Own("near")], desk=[Own("far")]) as (a, desk):
            own = a.keys.node_id
            async with serving(a.chain) as url, httpx.AsyncClient(base_url=url, timeout=60) as http:

                async def asked(model: str) -> httpx.Response:
                    body = {"model": model, "messages": [{"role": "user", "content": "hi"}]}
                    return await http.post("/v1/chat/completions", json=body)

                for model in ("peer:a", f"peer:{own}"):
                    said = (await asked(model)).json()
                    assert said["choices"][0]["message"]["content"] == "from near"
                assert (await answer(desk, ask("peer:a"))).text == "from near"
                assert "there are " in (await asked("peer:b")).text
                join(tmp_path / "a2", a)
                seeds = [f"127.0.0.1:{a.door_port}"]
                async with running_node(tmp_path / "a2", [Own("two")], seeds=seeds, name="a"):
                    await until(lambda: is_connected(a, 2))
                    refused = await asked("peer:a")
                    assert (refused.status_code, "2 nodes are called 'a'" in refused.text) == (404, True)
                    assert (await asked(f"peer:{own}")).status_code == 200

    run(work())


def test_unknown_agent_is_refused_for_now_where_only_nodes_that_are_away_may_have_it(tmp_path: Path) -> None:
    """A node that computes nothing says of agents as of models: come back, while no other node is there to ask."""

    async def work() -> None:
        missing = RequestError("there is no such agent", param="model", code="model_not_found")
        own = Model(lambda request: words("mine") if request.model == "agent:own" else [missing], ["agent:own"])
        async with cluster_of(tmp_path, b=[Own("m")]) as [b]:
            join(tmp_path / "a", b)
            async with (
                running_node(tmp_path / "a", [], seeds=[f"127.0.0.1:{b.door_port}"], agents=own) as a,
                serving(a.chain, agents=own) as url,
                httpx.AsyncClient(base_url=url, timeout=60) as http,
            ):

                async def refused(model: str) -> tuple[int, bool]:
                    body = {"model": model, "messages": [{"role": "user", "content": "hi"}]}
                    said = await http.post("/v1/chat/completions", json=body)
                    return said.status_code, "retry-after" in said.headers

                await until(lambda: is_connected(a, 1))
                for model in ("agent:x", "x"):
                    assert (await refused(model))[0] in {400, 404}
                await b.drain(0)
                await until(lambda: is_connected(a, 0))
                for model in ("agent:x", "x", "m"):
                    assert await refused(model) == (503, True)
                assert (await refused("agent:own"))[0] == 200

    run(work())
