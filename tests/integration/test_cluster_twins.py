"""Clones of a node, as cloned disks make them: found at a door or by way of a third node, and told apart."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Coroutine
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import msgspec
from support.nodes import Own, answer, ask, cluster_of, is_connected, join, running_node
from support.waiting import until

from pyagent.infrastructure.cluster.keys import NodeKeys, load_or_make_keys
from pyagent.infrastructure.cluster.node import Node
from pyagent.infrastructure.cluster.protocol import TWIN
from pyagent.infrastructure.cluster.twins import Start, start_codec


def run(work: Coroutine[None, None, None]) -> None:
    asyncio.run(work)


def test_cloned_disk_gets_keys_of_its_own(tmp_path: Path) -> None:
    """Two running nodes with one key are two nodes of the cluster soon after they meet at a door."""

    async def work() -> None:
        async with cluster_of(tmp_path, a=[Own("one")]) as (a,):
            first = tmp_path / "b"
            join(first, a)
            load_or_make_keys(first)
            clone = _cloned(first, tmp_path / "clone")
            with socket.create_server(("127.0.0.2", 0)) as found:
                port = found.getsockname()[1]  # the settings of a clone are those of the other, its address is not
            seeds = [f"127.0.0.1:{a.door_port}"]
            tracer = _Tracer()
            here = {"bind": ["127.0.0.2"], "port": port, "tracer": tracer}
            async with running_node(first, [Own("two")], seeds=seeds, **here) as b:  # type: ignore[arg-type]
                await until(lambda: is_connected(a, 1))
                places = [f"127.0.0.2:{port}"]
                here = {**here, "bind": ["127.0.0.3"]}
                async with running_node(clone, [Own("three")], seeds=places, **here) as c:  # type: ignore[arg-type]
                    assert b.keys == NodeKeys(c.keys.node_id, c.keys.public, c.keys.secret)
                    await until(lambda: b.keys.node_id != c.keys.node_id)
                    await until(lambda: is_connected(a, 2) and is_connected(b, 2) and is_connected(c, 2))
                    await until(lambda: _offered_to(a) == {"two", "three"})
                    await until(lambda: _offered_to(b) == {"one", "three"} and _offered_to(c) == {"one", "two"})
                    for node in (a, b, c):
                        for model in ("one", "two", "three"):
                            assert (await answer(node, ask(model))).text == f"from {model}"
                    assert tracer.node_ids == {b.keys.node_id, c.keys.node_id}  # traced after as before

    run(work())


def test_clones_that_meet_only_through_a_third_node_are_told_apart(tmp_path: Path) -> None:
    """Two running nodes with one key that cannot reach each other's doors are two nodes by way of a common peer."""

    async def work() -> None:
        async with cluster_of(tmp_path, a=[Own("one")]) as (a,):
            first = tmp_path / "b"
            join(first, a)
            load_or_make_keys(first)
            clone = _cloned(first, tmp_path / "clone")
            seeds = [f"127.0.0.1:{a.door_port}"]  # each door has a port of its own, which the other cannot guess
            async with running_node(first, [Own("two")], seeds=seeds) as b:
                await until(lambda: is_connected(a, 1))
                async with running_node(clone, [Own("three")], seeds=seeds) as c:
                    assert b.keys.public == c.keys.public
                    await until(lambda: b.keys.node_id != c.keys.node_id)
                    await until(lambda: is_connected(a, 2) and is_connected(b, 2) and is_connected(c, 2))
                    await until(lambda: _offered_to(a) == {"two", "three"})
                    for model in ("one", "two", "three"):
                        assert (await answer(a, ask(model))).text == f"from {model}"

    run(work())


def test_hearsay_of_a_clone_changes_no_keys(tmp_path: Path) -> None:
    """A peer that makes up a clone, or repeats what it heard of the node itself, has no proof: keys stay."""

    async def work() -> None:
        async with cluster_of(tmp_path, a=[Own("one")], b=[Own("two")]) as (a, b):
            heard, lowest, boot, keys = list[Start](), bytes(16), b._door.boot, b.keys

            def note(_peer_id: str, payload: bytes, _buffers: object) -> None:
                start = start_codec.decode(payload)
                if start.other:  # an answer: both starts were told once they were connected, and may come now
                    heard.append(start)

            async def make_up(other: bytes = b"", proof: bytes = b"") -> None:
                num_before, told = len(heard), start_codec.encode(Start(keys.node_id, lowest, other, proof))
                assert a._transport.cast(keys.node_id, TWIN, told)
                await until(lambda: len(heard) > num_before)

            a._transport.handle(TWIN, note)
            await make_up()
            await make_up(boot)
            await make_up(boot, bytes(32))
            await make_up(boot, heard[-1].proof)  # the node's own, of the same numbers the other way round
            assert {(one.boot, one.other) for one in heard} == {(boot, lowest)}
            assert b.keys == keys
            assert b._changing_keys is None

    run(work())


class _Tracer:
    """Notes which nodes answer peers."""

    def __init__(self) -> None:
        self.node_ids = set[str]()

    def answering(self, _request: object, _peer_id: str, node_id: str) -> AbstractContextManager[None]:
        self.node_ids.add(node_id)
        return nullcontext()


def _offered_to(node: Node) -> set[str]:
    """The models that a node's peers offer: a clone's under the old id are gone once the other has told its own."""
    return {model.id for peer in node.router for model in peer.offer.models}


def _cloned(folder: Path, clone: Path) -> Path:
    """Copy a node's folder as a cloned disk has it: the keys do not know it for a copy."""
    load_or_make_keys(clone)
    keys = [msgspec.json.decode((one / "node.json").read_bytes()) for one in (folder, clone)]
    (clone / "node.json").write_bytes(msgspec.json.encode(keys[0] | {"place": keys[1]["place"]}))
    (clone / "cluster.json").write_bytes((folder / "cluster.json").read_bytes())
    return clone
