"""GET /metrics of a node: its members, and what goes between it and each peer."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
import msgspec
from prometheus_client.parser import text_string_to_metric_families
from support.native import chat, options
from support.nodes import cluster_of
from support.waiting import until

from pyagent.core.backends import collect
from pyagent.infrastructure.cluster.node import Node
from pyagent.infrastructure.cluster.status import ClusterStatus, PeerStatus
from pyagent.infrastructure.engine.backend import NativeBackend
from pyagent.infrastructure.observability.cluster_metrics import collect_cluster
from pyagent.infrastructure.server.app import create_app

DOCS = Path(__file__).parents[2] / "docs" / "reference" / "metrics.md"


async def scraped(node: Node) -> dict[tuple[str, str], float]:
    """What a node's server tells of the cluster, by name and label."""
    app = httpx.ASGITransport(create_app(node.chain, node=node))  # type: ignore[arg-type]
    async with httpx.AsyncClient(transport=app, base_url="http://127.0.0.1:8321") as http:
        text = (await http.get("/metrics")).text
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    ours = [sample for sample in samples if sample.name.startswith(("pyagent_cluster_", "pyagent_peer_"))]
    return {(sample.name, next(iter(sample.labels.values()), "")): sample.value for sample in ours}


def test_peers_are_counted_while_they_live(tmp_path: Path, tiny_model_path: Path) -> None:
    """Traffic, load and free KV pages of a live peer are told, every name is documented, and a gone peer's vanish."""

    async def work() -> None:
        links = {name: NativeBackend.of(name, lambda: tiny_model_path, options()) for name in "ab"}
        async with cluster_of(tmp_path, {"placement": {"x": 3}}, a=[links["a"]], b=[links["b"]]) as (a, b):
            await until(lambda: "b" in a.status().peers[0].models)  # else the node answers by itself
            await collect(a.chain.chat(msgspec.structs.replace(chat("the user", max_tokens=2), model="b")))
            await until(lambda: a.status().peers[0].free_kv_pages > 0)
            told = await scraped(a)
            peer = a.status().peers[0]
            assert told["pyagent_peer_sent_bytes_total", "b"] >= 100
            assert told["pyagent_peer_received_messages_total", "b"] >= 3
            assert told["pyagent_peer_answers_begun_total", "b"] == 1
            assert told["pyagent_peer_kv_pages_free", "b"] == peer.free_kv_pages
            assert told["pyagent_peer_connected", "b"] == 1
            assert told["pyagent_cluster_members", "alive"] == 1
            assert (told["pyagent_cluster_copies_wanted", "x"], told["pyagent_cluster_copies_live", "x"]) == (3, 0)
            assert (await scraped(b))["pyagent_cluster_answered_total", ""] == 1
            page = DOCS.read_text(encoding="utf-8")
            assert all(f"`{name}`" in page for name, _ in told)
            await b.stop()
            await until(lambda: a.status().peers[0].state == "left")
            told = await scraped(a)
            assert not [name for name, _ in told if name.startswith("pyagent_peer_")]
            assert told["pyagent_cluster_members", "left"] == 1
        for link in links.values():
            await link.close()

    asyncio.run(work())


def test_labels_are_bounded_and_distinct() -> None:
    """Of very many peers the first have series, and two of one name are told apart."""
    peers = tuple(
        PeerStatus(id=f"id{number}", name=f"n{number // 2}", state="alive", version="1", endpoints=())
        for number in range(1000)
    )
    status = ClusterStatus(
        cluster="c",
        epoch=1,
        id="me",
        name="me",
        door_port=1,
        endpoints=(),
        is_draining=False,
        models=(),
        num_answered_for_peers=0,
        num_given_away=0,
        peers=peers,
    )
    [connected] = [family for family in collect_cluster(status) if family.name == "pyagent_peer_connected"]
    labels = [sample.labels["peer"] for sample in connected.samples]
    assert len(labels) == len(set(labels)) == 256
    assert labels[:2] == ["n0 (id0)", "n0 (id1)"]
