"""Nodes that share work: real doors and encrypted connections on loopback, scripted links and tiny engines."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from contextlib import aclosing, suppress
from pathlib import Path

import msgspec
import pytest
from support.doors import some_id
from support.native import chat, options
from support.nodes import Own, answer, ask, cluster_of, is_connected, join, running_node
from support.server import words
from support.waiting import until

from pyagent.core.backends import collect, pass_hint
from pyagent.core.capabilities import Capabilities
from pyagent.core.chain import Chain
from pyagent.core.cluster.messages import Gossip, Revocation
from pyagent.core.cluster.revoked_list import MAX_UNKNOWN_OF_ONE
from pyagent.core.errors import AwayError, BackendError, CapacityError, ClusterError, RequestError
from pyagent.core.messages import ChatDelta, ChatRequest, EmbedRequest, EmbedResult, Hint, Message, Origin
from pyagent.core.response_format import ResponseFormat
from pyagent.core.settings import Cluster
from pyagent.infrastructure.cluster.cluster_file import ClusterFile
from pyagent.infrastructure.cluster.keys import NodeKeys, load_or_make_keys
from pyagent.infrastructure.cluster.node import Node
from pyagent.infrastructure.cluster.protocol import EPOCH, GOSSIP, Epoch, epoch_codec, gossip_codec
from pyagent.infrastructure.cluster.revocations import revocation_by
from pyagent.infrastructure.engine.backend import NativeBackend


def run(work: Coroutine[None, None, None]) -> None:
    asyncio.run(work)


def tiny(path: Path, name: str = "tiny") -> NativeBackend:
    return NativeBackend.of(name, lambda: path, options())


def test_node_answers_with_the_models_of_its_peers(tmp_path: Path) -> None:
    """Each node lists all models of the cluster, and a request for a peer's model is answered by that peer."""

    async def work() -> None:
        async with cluster_of(tmp_path, a=[Own("one")], b=[Own("two")], c=[Own("three")]) as (a, b, c):
            for node in (a, b, c):
                assert {model.id for model in await node.chain.models()} == {"one", "two", "three"}
                for model in ("one", "two", "three"):
                    assert (await answer(node, ask(model))).text == f"from {model}"
            assert (await answer(a, ask("three"))).last.backend == "peer:c"
            status = c.status()
            assert status.num_answered_for_peers == 3
            assert {peer.name for peer in status.peers} == {"a", "b"}
            assert all(peer.is_connected and peer.state == "alive" and peer.bytes_sent for peer in status.peers)

    run(work())


def test_answer_of_a_peer_is_that_of_its_engine(tmp_path: Path, tiny_model_path: Path) -> None:
    """Tokens, log probabilities, usage and structured output are the same asked directly and over the cluster."""
    requests = [
        chat("the user is", max_tokens=20, temperature=0, ignore_eos=True),
        chat("the user is", max_tokens=20, temperature=1.0, seed=7, top_logprobs=3, ignore_eos=True),
        msgspec.structs.replace(
            chat("the", max_tokens=40, seed=1), response_format=ResponseFormat("regex", regex="[a-z]{3,9}")
        ),
    ]

    async def work() -> None:
        own = tiny(tiny_model_path)
        async with cluster_of(tmp_path, a=[Own("none")], b=[own]) as (a, _b):
            for request in requests:
                near = await collect(own.chat(request))
                far = await answer(a, msgspec.structs.replace(request, model="tiny"))
                assert far.text == near.text
                assert [d.logprobs for d in far.deltas if d.logprobs] == [d.logprobs for d in near.deltas if d.logprobs]
                assert far.usage.completion_tokens == near.usage.completion_tokens
                assert far.last.finish_reason == near.last.finish_reason
        await own.close()

    run(work())


def test_cancelled_request_ends_at_the_peer(tmp_path: Path) -> None:
    """A caller that leaves in mid-answer ends the work on the node that does it."""

    async def work() -> None:
        far = Own("far", ChatDelta(content="on "), 60.0)
        async with cluster_of(tmp_path, a=[Own("near")], b=[far]) as (a, _b):
            async with aclosing(a.chain.chat(ask("far"))) as stream:
                assert (await anext(stream)).content == "on "
                assert far.num_running == 1
            await until(lambda: far.num_running == 0)

    run(work())


def test_faults_of_a_peer_cross_as_what_they_are(tmp_path: Path) -> None:
    """A request at fault is told so; a peer without room is passed by, and the next node answers."""

    async def work() -> None:
        async with cluster_of(
            tmp_path,
            a=[Own("x")],
            b=[Own("wrong", RequestError("no such field", param="top_k"))],
            c=[Own("full", CapacityError("full", retry_after_seconds=9.0))],
        ) as (a, _b, _c):
            with pytest.raises(RequestError, match="no such field") as caught:
                await answer(a, ask("wrong"))
            assert caught.value.param == "top_k"
            with pytest.raises(CapacityError) as refused:
                await answer(a, ask("full"))
            assert refused.value.retry_after_seconds

    run(work())


def test_peer_that_dies_in_mid_answer_is_replaced_from_the_text_sent(tmp_path: Path) -> None:
    """The connection is lost after two words: another node goes on, and the caller reads one answer."""

    async def work() -> None:
        dying = Own("m", *words("one ", "two ")[:2], 60.0)
        heir = Own("m", *words("three ", "four "))
        for link in (dying, heir):
            link.capabilities = Capabilities(assistant_prefix="continued")
        async with cluster_of(tmp_path, a=[Own("none")], b=[dying], c=[heir]) as (a, b, _c):
            a.router.get(_id_of(a, "c")).load = msgspec.structs.replace(a.router.own.load, num_waiting=9)  # type: ignore[union-attr]
            stream = a.chain.chat(ask("m"))
            texts = [(await anext(stream)).content, (await anext(stream)).content]
            await b._transport.stop()  # pyright: ignore[reportPrivateUsage] - as a power cut does, without a word
            texts += [delta.content async for delta in stream]
            assert "".join(texts) == "one two three four "
            assert heir.requests[0].answer_prefix == "one two "

    run(work())


def _id_of(node: Node, name: str) -> str:
    return next(peer.id for peer in node.router if peer.name == name)


def test_private_text_stays_here_and_tenants_cross(tmp_path: Path) -> None:
    """A private request is answered by this node though it is busier; a tenant's name goes along with others."""

    async def work() -> None:
        near, far = Own("m"), Own("m")
        async with cluster_of(tmp_path, a=[near], b=[far]) as (a, _b):
            a.chain.private = ["native"]
            for _ in range(5):
                await answer(a, ask("m", private=True))
            assert (len(near.requests), len(far.requests)) == (5, 0)
            await answer(a, ask("m", origin=Origin(tenant="key 1", client="key 1")))
            [crossed] = near.requests[5:] + far.requests
            assert crossed.origin.tenant == "key 1"

    run(work())


def test_private_request_that_a_peer_refuses_is_answered_elsewhere(tmp_path: Path) -> None:
    """A peer whose own rules keep nothing private does not keep this node from answering."""

    async def work() -> None:
        near = Own("m")
        async with cluster_of(tmp_path, a=[near], b=[Own("m")]) as (a, b):
            a.chain.private, b.chain.private = ["native", "peer"], []
            a.router.own.load = msgspec.structs.replace(a.router.own.load, num_waiting=99)
            for _ in range(5):
                assert (await answer(a, ask("m", private=True))).text
            assert len(near.requests) == 5

    run(work())


def test_request_that_cannot_be_sent_is_no_fault_of_a_peer(tmp_path: Path) -> None:
    """A text without an encoding is refused as the request's fault, as often as it comes; other requests go on."""

    async def work() -> None:
        async with cluster_of(tmp_path, a=[Own("near")], b=[Own("m")]) as (a, _b):
            bad = ChatRequest(model="m", messages=[Message("user", "\ud800")])
            for _ in range(12):
                with pytest.raises(RequestError, match="cannot be sent this request"):
                    await answer(a, bad)
            assert (await answer(a, ask("m"))).text == "from m"

    run(work())


def test_draining_node_is_asked_no_more_and_takes_part_again(tmp_path: Path) -> None:
    """While a node drains others answer; what it was asked before ends; afterwards it is asked again."""

    async def work() -> None:
        far = Own("far", 0.3, *words("late"))
        async with cluster_of(tmp_path, a=[Own("near")], b=[far]) as (a, b):
            running = asyncio.create_task(answer(a, ask("far")))
            await until(lambda: far.num_running == 1)
            assert await b.drain(30.0) == 0
            assert (await running).text == "late"
            await until(lambda: is_connected(a, 0))
            assert a.status().peers[0].is_draining
            assert (await answer(a, ask(""))).text == "from near"
            await b.resume()
            await until(lambda: is_connected(a, 1))
            assert (await answer(a, ask("far"))).text == "late"

    run(work())


def test_revoked_node_is_out_at_once_and_for_ever(tmp_path: Path) -> None:
    """After `revoke` the node has no connection to any member, is let in at no door, and knows an old secret."""

    async def work() -> None:
        async with cluster_of(tmp_path, a=[Own("one")], b=[Own("two")], c=[Own("three")]) as (a, b, c):
            with pytest.raises(ClusterError, match="no node is called 'd'"):
                await a.revoke("d")
            before = a.cluster.load().current.secret
            started = time.monotonic()
            assert await a.revoke("c") == c.keys.node_id
            await until(lambda: is_connected(a, 1) and is_connected(b, 1) and is_connected(c, 0))
            assert time.monotonic() - started < 30
            assert {model.id for model in await b.chain.models()} == {"one", "two"}
            await until(lambda: b.cluster.load().current.secret == a.cluster.load().current.secret != before)
            assert c.cluster.load().current.secret == before
            await until(lambda: c.status().is_revoked)
        with pytest.raises(
            ClusterError, match=rf"revoked from the cluster 'test' by a \({a.keys.node_id}\).*cluster leave"
        ):
            Node(tmp_path / "c", Cluster(), Chain([Own("three")]))
        _forget_revocation(tmp_path / "c")  # a program that was changed goes on all the same
        async with (
            running_node(tmp_path / "a", [Own("one")]) as a,
            running_node(tmp_path / "c", [Own("three")], seeds=[f"127.0.0.1:{a.door_port}"]) as c,
        ):
            await until(lambda: c.status().is_revoked)  # it knocked, and was told why it is not let in
            assert is_connected(a, 0)
            assert is_connected(c, 0)
            assert c.keys.node_id not in a.cluster.load().members

    run(work())


def _forget_revocation(folder: Path) -> None:
    file = ClusterFile(folder)
    state = file.load()
    file.file.unlink()
    file.join(msgspec.structs.replace(state, own_revocation=None))


def test_word_of_no_member_revokes_nobody(tmp_path: Path) -> None:
    """What a member tells in another's name, or signed by a stranger, puts nobody out; what it invents is bounded."""

    async def work() -> None:
        async with cluster_of(tmp_path, a=[Own("one")], b=[Own("two")], c=[Own("three")]) as (a, b, c):
            cluster_id, stranger = a.cluster.load().cluster_id, NodeKeys.make()
            target = c.keys.node_id
            words = [
                Revocation(target, a.keys.public, b"x" * 64),
                Revocation(target, a.keys.public, revocation_by(b.keys, cluster_id, target).signature),
                revocation_by(stranger, cluster_id, target),
                revocation_by(b.keys, "another cluster", target),
            ]
            invented = [revocation_by(b.keys, cluster_id, some_id(number)) for number in range(MAX_UNKNOWN_OF_ONE + 8)]
            told = gossip_codec.encode(Gossip((*words, *invented)))
            assert b._transport.cast(a.keys.node_id, GOSSIP, told)  # pyright: ignore[reportPrivateUsage]
            await until(lambda: len(a.cluster.load().revoked) == MAX_UNKNOWN_OF_ONE)
            epoch = epoch_codec.encode(Epoch(a.cluster.load().secrets, (*words, *invented)))
            await b._transport.call(a.keys.node_id, EPOCH, epoch, timeout=60)  # pyright: ignore[reportPrivateUsage]
            assert len(a.cluster.load().revoked) == MAX_UNKNOWN_OF_ONE
            assert target in a.cluster.load().members
            assert is_connected(a, 2)
            await a.revoke("b")
            await until(lambda: is_connected(a, 1) and is_connected(c, 1))

    run(work())


def test_node_that_was_away_while_the_secret_changed_is_given_the_new_one(tmp_path: Path) -> None:
    """A member that missed a new epoch is let in by its own key, and then knows the secret."""

    async def work() -> None:
        async with cluster_of(tmp_path, a=[Own("one")], b=[Own("two")], c=[Own("three")]) as (a, _b, c):
            await c.stop()
            await until(lambda: is_connected(a, 1))
            await a.revoke("b")
            seeds = [f"127.0.0.1:{a.door_port}"]
            async with running_node(tmp_path / "c", [Own("three")], seeds=seeds) as back:
                await until(lambda: is_connected(a, 1) and is_connected(back, 1))
                await until(lambda: back.cluster.load().current.secret == a.cluster.load().current.secret)

    run(work())


def test_node_that_was_away_learns_who_is_out_though_the_revoker_is_forgotten(tmp_path: Path) -> None:
    """The word of a node that joined, revoked another, left and was forgotten counts for one that was away."""

    async def work() -> None:
        async with cluster_of(tmp_path, a=[Own("one")], m=[Own("two")], c=[Own("three")]) as (a, m, c):
            await c.stop()
            await until(lambda: is_connected(a, 1))
            join(tmp_path / "r", a)
            async with running_node(tmp_path / "r", [Own("four")], seeds=[f"127.0.0.1:{a.door_port}"]) as revoker:
                await until(lambda: is_connected(a, 2) and is_connected(revoker, 2))
                await revoker.revoke(m.keys.node_id)
                await until(lambda: a.cluster.load().current == revoker.cluster.load().current)
                await until(lambda: m.keys.node_id in a.cluster.load().revoked)
            await until(lambda: is_connected(a, 0))
            await a.forget("r")
            async with running_node(tmp_path / "c", [Own("three")], seeds=[f"127.0.0.1:{a.door_port}"]) as back:
                await until(lambda: is_connected(a, 1) and is_connected(back, 1))
                await until(lambda: back.cluster.load().current == a.cluster.load().current)
                await until(lambda: m.keys.node_id in back.cluster.load().revoked)
                assert m.keys.node_id not in back.cluster.load().members

    run(work())


def test_nodes_that_revoked_apart_agree_on_a_secret_that_neither_told(tmp_path: Path) -> None:
    """Two nodes that each put out another one while apart know both when they meet, and begin an epoch together."""

    async def work() -> None:
        folders = [tmp_path / "a", tmp_path / "b"]
        async with cluster_of(tmp_path, a=[Own("one")], b=[Own("two")]) as (a, b):
            files = [ClusterFile(node.cluster.folder) for node in (a, b)]
        others = [NodeKeys.make() for _ in files]
        for file, other in zip(files, others, strict=True):
            file.add_member(other.node_id, other.public, "other")
        id_of = files[0].load().cluster_id
        words = [
            revocation_by(load_or_make_keys(folder), id_of, other.node_id)
            for folder, other in zip(folders, others, strict=True)
        ]
        apart = [file.revoke(told).current for file, told in zip(files, words, strict=True)]
        assert apart[0] != apart[1]
        async with (
            running_node(folders[0], [Own("one")]) as a,
            running_node(folders[1], [Own("two")], seeds=[f"127.0.0.1:{a.door_port}"]) as b,
        ):
            await until(lambda: a.cluster.load().current == b.cluster.load().current not in apart)
            assert len(a.cluster.load().revoked) == 2
            assert not a.cluster.load().needs_rotation

    run(work())


def test_member_known_by_hearsay_comes_back_and_can_be_revoked(tmp_path: Path) -> None:
    """A node that joined by another's door is let in after the secret changed, and revoked as any other."""

    async def work() -> None:
        async with cluster_of(tmp_path, a=[Own("one")], b=[Own("two")]) as (a, b):
            third = tmp_path / "c"
            join(third, b)
            async with running_node(third, [Own("three")], seeds=[f"127.0.0.1:{b.door_port}"]) as c:
                await until(lambda: is_connected(a, 2) and is_connected(c, 2))
                await until(lambda: c.keys.node_id in a.cluster.load().members)
            await until(lambda: is_connected(a, 1))
            await a.revoke("b")
            async with running_node(third, [Own("three")], seeds=[f"127.0.0.1:{a.door_port}"]) as c:
                await until(lambda: is_connected(a, 1) and is_connected(c, 1))
                assert await a.revoke("c") == c.keys.node_id
                await until(lambda: is_connected(a, 0) and is_connected(c, 0))

    run(work())


def test_hint_goes_once_to_the_node_of_its_run(tmp_path: Path) -> None:
    """A hint reaches the peer that answers a run, none else, and goes no further; that of a private run stays here."""

    async def work() -> None:
        heard: list[str] = []

        def hearing(name: str) -> Own:
            link = Own(name)
            link.capabilities = Capabilities(hint=lambda hint: heard.append(f"{name} {hint.kind}"))
            return link

        links = {name: [hearing(name)] for name in "abc"}
        async with cluster_of(tmp_path, **links) as nodes:
            for node in nodes:  # each has asked each: what is passed on to all that were asked goes in circles
                for name in links:
                    await answer(node, ask(name, origin=Origin(run=f"run of {name}")))
            a = nodes[0]
            pass_hint(a.chain, Hint(kind="retain", run="run of b"))
            pass_hint(a.chain, Hint(kind="demote", run="run of c", private=True))
            pass_hint(a.chain, Hint(kind="release", run="run of c"))
            await until(lambda: {"b retain", "c release"} <= set(heard))
            await answer(a, ask("b"))  # what else is on its way has arrived
            await answer(a, ask("c"))
            assert sorted(heard) == ["a demote", "a release", "a retain", "b retain", "c release"]

    run(work())


def test_node_that_left_is_gone_at_once_and_comes_back(tmp_path: Path) -> None:
    """A goodbye removes the links of a node; started anew, with other models, it is a peer again."""

    async def work() -> None:
        async with cluster_of(tmp_path, a=[Own("one")], b=[Own("two")]) as (a, b):
            await b.stop()
            await until(lambda: is_connected(a, 0))
            assert a.status().peers[0].state == "left"
            with pytest.raises(AwayError, match="peer:b takes no requests now"):
                await collect(a.chain.chat(ask("peer:b")))
            seeds = [f"127.0.0.1:{a.door_port}"]
            async with running_node(tmp_path / "b", [Own("new")], seeds=seeds):
                await until(lambda: is_connected(a, 1))
                assert (await answer(a, ask("new"))).text == "from new"

    run(work())


def test_copied_folder_gets_keys_of_its_own(tmp_path: Path) -> None:
    """A folder that was copied to another place is another node of the same cluster."""

    async def work() -> None:
        async with cluster_of(tmp_path, a=[Own("one")]) as (a,):
            copied = tmp_path / "copy"
            copied.mkdir()
            for file in a.cluster.folder.iterdir():
                if file.is_file():
                    (copied / file.name).write_bytes(file.read_bytes())
            async with running_node(copied, [Own("two")], seeds=[f"127.0.0.1:{a.door_port}"]) as b:
                assert b.keys.node_id != a.keys.node_id
                await until(lambda: is_connected(a, 1) and is_connected(b, 1))

    run(work())


def test_second_node_on_one_folder_is_refused(tmp_path: Path) -> None:
    """Two processes with one node's keys would be one id twice: the second says so; after the first it may start."""

    async def work() -> None:
        async with cluster_of(tmp_path, a=[Own("one")]) as (a,):
            with pytest.raises(ClusterError, match="another `pyagent node` runs on"):
                async with running_node(a.cluster.folder, [Own("two")]):
                    pass
        async with running_node(tmp_path / "a", [Own("one")]):
            pass

    run(work())


def test_offer_is_what_the_settings_name(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A link that is not named, and agents that are not, are offered to nobody and answer no peer.

    A name that no link has, as a mistyped one, is told with those that there are.
    """

    async def work() -> None:
        async with cluster_of(tmp_path, a=[Own("one")]) as (a,):
            b = tmp_path / "b"
            join(b, a)
            kept, given = Own("kept"), Own("given")
            agents = Own("agent:spy")
            seeds = [f"127.0.0.1:{a.door_port}"]
            async with running_node(b, [kept, given], seeds=seeds, agents=agents, offer=["native:given"]):
                await until(lambda: is_connected(a, 1))
                assert {model.id for model in await a.chain.models()} == {"one", "given"}
                assert (await answer(a, ask("given"))).text == "from given"
                [peer] = [peer.backend for peer in a.router]
                for model in ("kept", "agent:spy"):
                    with pytest.raises((RequestError, BackendError)):
                        await answer(a, ask(model))
                    with pytest.raises((RequestError, BackendError)):  # nor one that asks for what is not offered
                        await collect(peer.chat(ask(model)))
            assert (kept.requests, agents.requests) == ([], [])
            assert "cluster.offer" not in caplog.text
            async with running_node(b, [kept], seeds=seeds, offer=["natve", "agents"]):
                told = "no link is called 'natve', so peers get none; there are native:kept, agents"
                assert told in caplog.text
            async with running_node(b, [kept], seeds=seeds, offer=[]):
                await until(lambda: any(view.state == "alive" for view in a.status().peers))
                with pytest.raises((RequestError, BackendError)):
                    await collect(peer.chat(ask("kept")))
            assert kept.requests == []

    run(work())


def test_texts_are_embedded_by_a_peer(tmp_path: Path) -> None:
    """Embedding goes to the node that can."""

    async def work() -> None:
        class Embedding(Own):
            async def embed(self, request: EmbedRequest) -> EmbedResult:
                return EmbedResult(vectors=[[1.0] for _ in request.input])

        async with cluster_of(tmp_path, a=[Own("a")], b=[Embedding("b")]) as (a, _b):
            result = await a.chain.embed(EmbedRequest(model="b", input=["x", "y"]))
            assert len(result.vectors) == 2
            [peer] = [peer.backend for peer in a.router]
            with pytest.raises(RequestError, match="2048"):
                await peer.embed(EmbedRequest(model="b", input=["x"] * 2049))

    run(work())


def test_folder_without_a_cluster_says_what_to_do(tmp_path: Path) -> None:
    """A node of no cluster does not start, and names the commands that make or join one."""
    with pytest.raises(ClusterError, match="pyagent cluster init"):
        run(_started(tmp_path))


async def _started(folder: Path) -> None:
    async with running_node(folder, [Own("one")]):
        pass


@pytest.mark.slow
def test_door_that_is_late_is_given_more_time(tmp_path: Path) -> None:
    """A node so busy that its door answers after seconds is met at a later try, which waits longer."""

    async def work() -> None:
        async with cluster_of(tmp_path, a=[Own("a")]) as (first,):
            num_calls = 0

            async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                nonlocal num_calls
                num_calls += 1
                await asyncio.sleep(2.5)
                with suppress(OSError):
                    inner, outer = await asyncio.open_connection("127.0.0.1", first.door_port)
                    await asyncio.gather(passed_on(reader, outer), passed_on(inner, writer))

            async def passed_on(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
                while piece := await source.read(65_536):
                    sink.write(piece)
                sink.close()

            server = await asyncio.start_server(relay, "127.0.0.1", 0)
            late = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
            join(tmp_path / "b", first)
            async with running_node(tmp_path / "b", [Own("b")], seeds=[late]) as second:
                await until(lambda: bool(second.status().unmet))
                assert second.status().unmet == (f"{late} did not answer within 2 s",)
                await until(lambda: is_connected(second, 1))
                assert second.status().unmet == ()
            assert num_calls >= 2
            server.close()
            await server.wait_closed()

    asyncio.run(work())
