"""`pyagent node` on machines of their own: found by multicast, killed, cut off, slow; `make cluster` runs these."""

from __future__ import annotations

import json
import time
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from support.machines import RunningNode, running, share_cluster
from support.networks import Network, network, slow_switch, why_not

pytestmark = [pytest.mark.cluster, pytest.mark.skipif(bool(why_not()), reason=why_not() or "there are")]

ASK = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 4, "temperature": 0}


@contextmanager
def nodes_on(net: Network, folder: Path, model: Path, *options: str) -> Generator[Sequence[RunningNode]]:
    """Start a node on each machine; all are connected with all."""
    folders = [folder / f"n{number}" for number in range(1, len(net.machines) + 1)]
    share_cluster(folders)
    with ExitStack() as stack:
        nodes = [
            RunningNode.start(machine, own, model, *options) for machine, own in zip(net.machines, folders, strict=True)
        ]
        stack.enter_context(running(*nodes))
        for node in nodes:
            node.wait_for_peers(len(nodes) - 1)
        yield nodes


def answers(node: RunningNode) -> bool:
    return "choices" in json.loads(node.call("/v1/chat/completions", ASK))


def test_machines_find_each_other_and_a_dead_one_is_left_out(tmp_path: Path, tiny_model_path: Path) -> None:
    """Three nodes meet by multicast alone; one that is killed is dead to both others, who answer on."""
    with network(3) as net, nodes_on(net, tmp_path, tiny_model_path) as (one, two, three):
        assert all(answers(node) for node in (one, two, three))
        at = three.kill()
        for node in (one, two):
            node.wait_for(lambda peers: peers.get("n3") == "dead", at)
        assert answers(one)
        assert one.stop() == 0
        two.wait_for(lambda peers: peers.get("n1") == "left")
        assert answers(two)


def test_partition_heals_by_itself(tmp_path: Path, tiny_model_path: Path) -> None:
    """Two halves that lost each other answer apart; when the cable is back all are connected again."""
    with network(4) as net, nodes_on(net, tmp_path, tiny_model_path) as nodes:
        at = time.monotonic()
        for number in (3, 4):
            net.bridge.run("ip", "link", "set", f"eth0-{number}", "nomaster")
        net.bridge.run("ip", "link", "add", "other", "type", "bridge")
        net.bridge.run("ip", "link", "set", "other", "up")
        for number in (3, 4):
            net.bridge.run("ip", "link", "set", f"eth0-{number}", "master", "other")
        for node in nodes:
            node.wait_for(lambda peers: sorted(peers.values()) == ["connected", "dead", "dead"], at)
        assert all(answers(node) for node in nodes)
        at = time.monotonic()
        for number in (3, 4):
            net.bridge.run("ip", "link", "set", f"eth0-{number}", "master", "bridge")
        for node in nodes:
            node.wait_for_peers(3, at)


@pytest.mark.skipif(not Path("/dev/net/tun").exists(), reason="there is no /dev/net/tun")
def test_lossy_slow_network_kills_nobody(tmp_path: Path, tiny_model_path: Path) -> None:
    """With a tenth of the packets lost and 50 ms of delay each way nodes meet, none is taken for dead, all answer."""
    with network(3, plugged=0) as net, slow_switch(net, 0.05, 0.1), nodes_on(net, tmp_path, tiny_model_path) as nodes:
        at = time.monotonic()
        while time.monotonic() < at + 15:
            assert all(answers(node) for node in nodes)
        for node in nodes:
            node.wait_for_peers(2, time.monotonic())
            states = [state for when, peers in node.seen if when > at and peers for state in peers.values()]
            assert "dead" not in states, node.seen


def test_paused_node_comes_back(tmp_path: Path, tiny_model_path: Path) -> None:
    """A node that slept past its death is a peer again when it wakes, and takes no other for dead."""
    with network(3) as net, nodes_on(net, tmp_path, tiny_model_path) as (one, two, three):
        at = time.monotonic()
        three.pause()
        for node in (one, two):
            node.wait_for(lambda peers: peers.get("n3") == "dead", at)
        at = time.monotonic()
        three.resume()
        for node in (one, two):
            node.wait_for(lambda peers: peers.get("n3") == "connected", at)
        three.wait_for_peers(2, at)
