"""Where doors are looked for: seeds, peers met before, records that anybody on the network can send."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyagent.core.errors import ConfigError
from pyagent.infrastructure.cluster.discovery import Discovery, DoorAddress, read_seed
from pyagent.infrastructure.cluster.interfaces import Interface, interfaces, is_on_link
from pyagent.infrastructure.cluster.keys import NodeKeys
from pyagent.infrastructure.cluster.known_peers import MAX_AGE_SECONDS, MAX_PEERS, KnownDoor, KnownPeers
from pyagent.infrastructure.cluster.multicast import SERVICE_TYPE, Announcement, Heard, Multicast, read_announcement
from pyagent.infrastructure.cluster.private_file import write_private

HERE = [Interface("eth0", 2, ("192.0.2.7/24", "2001:db8::7/64"))]


async def first(discovery: Discovery, count: int) -> list[DoorAddress]:
    """The first addresses that are offered."""
    found: list[DoorAddress] = []
    await discovery.start()
    async for door in discovery:
        found.append(door)
        if len(found) == count:
            break
    await discovery.stop()
    return found


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("desk", ("desk", 8322)),
        ("desk:9000", ("desk", 9000)),
        ("192.0.2.1:1", ("192.0.2.1", 1)),
        ("[2001:db8::1]:9000", ("2001:db8::1", 9000)),
        ("[2001:db8::1]", ("2001:db8::1", 8322)),
        ("2001:db8::1", ("2001:db8::1", 8322)),
        (" fe80::1%eth0 ", ("fe80::1%eth0", 8322)),
    ],
)
def test_seed_is_a_host_and_perhaps_a_port(text: str, place: tuple[str, int]) -> None:
    """A seed is written as people write addresses."""
    assert read_seed(text) == place


@pytest.mark.parametrize(
    "text", ["", ":1", "a:0", "a:99999", "a:b", "http://a", "a b", "me@desk", "[::1", "a:²", "a..b", 64 * "x", "a\0b"]
)
def test_seed_that_is_no_address_is_named(text: str) -> None:
    """Anything else is an error of the settings."""
    with pytest.raises(ConfigError, match="is no door of a node") as caught:
        read_seed(text)
    assert caught.value.key == "cluster.seeds"


def test_discovery_offers_seeds_and_known_peers_at_once(tmp_path: Path) -> None:
    """Without multicast, what is written down is offered immediately, this node's own door left out."""
    me, other = NodeKeys.make(), NodeKeys.make()
    known = KnownPeers(tmp_path)
    known.remember(other.node_id, "192.0.2.9", 8322)
    known.remember(me.node_id, "192.0.2.7", 8322)
    discovery = Discovery(me, "tag", 8322, seeds=["desk"], known=known, multicast=False)
    assert asyncio.run(first(discovery, 2)) == [
        DoorAddress("desk", 8322, "seed"),
        DoorAddress("192.0.2.9", 8322, "cache", other.node_id),
    ]


def test_discovery_offers_again() -> None:
    """A seed that nobody answered is offered again, and `renew` does not wait for its turn."""

    async def main() -> list[DoorAddress]:
        discovery = Discovery(None, None, 0, seeds=["desk"], multicast=False)
        found: list[DoorAddress] = []
        await discovery.start()
        async for door in discovery:
            found.append(door)
            discovery.renew()
            if len(found) == 2:
                break
        await discovery.stop()
        await discovery.stop()
        return found

    assert len(asyncio.run(main())) == 2


def test_discovery_takes_its_own_cluster_and_bounds_the_rest() -> None:
    """Records of other clusters are not offered; a flood of records fills a bounded table; a goodbye empties it."""

    async def main() -> None:
        gone: list[str] = []
        discovery = Discovery(None, "home", 0, multicast=False, on_gone=gone.append)
        node_id = NodeKeys.make().node_id
        discovery._heard(Heard(node_id, "", "office", ("192.0.2.1",), 1))
        assert not discovery._offers
        for port in range(1, 3_000):
            discovery._heard(Heard(node_id, "", "home", ("192.0.2.1",), port))
        assert len(discovery._offers) == 4
        assert ("192.0.2.1", 2_999) in discovery._offers
        discovery._gone(node_id)
        assert not discovery._offers
        assert gone == [node_id]

    asyncio.run(main())


def _id(number: int) -> str:
    return "a" * 11 + "".join("abcdefghijklmnopqrstuvwxyz234567"[number >> shift & 31] for shift in (5, 0))


def _flood(discovery: Discovery, hosts: int, ports: int = 20) -> None:
    for host in range(hosts):
        for port in range(ports):
            discovery._heard(
                Heard(_id((host * ports + port) % 1_000), "evil", "home", (f"192.0.2.{host}",), 1_000 + port)
            )


def test_false_announcements_hide_no_node(tmp_path: Path) -> None:
    """However many places are announced, one announced after them is offered, and one that was met stays."""

    async def main() -> None:
        known = KnownPeers(tmp_path)
        known.remember("cached", "192.0.2.250", 8322)
        discovery = Discovery(None, "home", 0, seeds=["desk"], known=known, multicast=False)
        await discovery.start()
        honest, late = ("192.0.2.3", 8322), ("192.0.2.3", 8323)
        discovery._heard(Heard("b" * 13, "honest", "home", honest[:1], 8322))
        known.remember("b" * 13, *honest)
        _flood(discovery, 80)
        discovery._heard(Heard("c" * 13, "late", "home", late[:1], 8323))
        assert {honest, late, ("desk", 8322), ("192.0.2.250", 8322)} <= discovery._offers.keys()
        heard = [offer.door for offer in discovery._offers.values() if offer.door.source == "multicast"]
        assert len(heard) == 1_024
        assert max(Counter(door.host for door in heard).values()) <= 16
        assert max(Counter(door.node_id for door in heard).values()) <= 4

    asyncio.run(main())


def test_place_that_led_to_no_node_longest_is_forgotten_first() -> None:
    """Of the places of one id those go that were offered, and not the one that was not yet."""

    async def main() -> None:
        discovery = Discovery(None, "home", 0, multicast=False)
        for port in range(1, 4):
            discovery._heard(Heard("b" * 13, "", "home", ("192.0.2.1",), port))
        offered = [door.port for door in await first(discovery, 3)]
        assert offered == [1, 2, 3]
        for port in range(4, 7):
            discovery._heard(Heard("b" * 13, "", "home", ("192.0.2.1",), port))
        assert sorted(port for _, port in discovery._offers) == [3, 4, 5, 6]

    asyncio.run(main())


def test_node_with_many_addresses_is_looked_for_at_its_first() -> None:
    """Of one announcement the first addresses are taken: those of IPv4 come first."""

    async def main() -> None:
        discovery = Discovery(None, "home", 0, multicast=False)
        addresses = ("192.0.2.1", *(f"2001:db8::{number}" for number in range(7)))
        discovery._heard(Heard("b" * 13, "", "home", addresses, 8322))
        assert [host for host, _ in discovery._offers] == list(addresses[:4])

    asyncio.run(main())


def test_place_that_several_ids_claim_keeps_its_turn() -> None:
    """Two ids announced in turns for one place make no more knocks than one, and none of them is believed."""

    async def main() -> list[DoorAddress]:
        discovery = Discovery(None, "home", 0, multicast=False)

        async def listen() -> list[DoorAddress]:
            return [door async for door in discovery]

        listening = asyncio.create_task(listen())
        for number in range(200):
            discovery._heard(Heard(_id(number % 2), "evil", "home", ("192.0.2.7",), 8322))
            await asyncio.sleep(0)
        assert [offer.door.node_id for offer in discovery._offers.values()] == [""]
        await discovery.stop()
        return await listening

    assert len(asyncio.run(main())) == 1


def test_announcement_takes_no_place_of_a_node_met_before(tmp_path: Path) -> None:
    """A place of the cache stays one of the cache when something else is said to be there, and a goodbye leaves it."""

    async def main() -> None:
        known = KnownPeers(tmp_path)
        known.remember("cached", "192.0.2.250", 8322)
        discovery = Discovery(None, "home", 0, known=known, multicast=False)
        await discovery.start()
        discovery._heard(Heard("b" * 13, "evil", "home", ("192.0.2.250",), 8322))
        discovery._gone("b" * 13)
        assert discovery._offers["192.0.2.250", 8322].door == DoorAddress("192.0.2.250", 8322, "cache")

    asyncio.run(main())


def test_known_peers_are_bounded_aged_and_private(tmp_path: Path) -> None:
    """The cache holds the peers met last, for a month, in a file of its owner."""
    now = [1_000.0]
    known = KnownPeers(tmp_path, clock=lambda: now[0])
    write_private(
        tmp_path / "known-peers.json",
        [KnownDoor(f"node{number}", "192.0.2.1", number + 1, float(number)) for number in range(MAX_PEERS + 5)],
    )
    known.remember("new", "192.0.2.1", 1)
    assert len(known.doors()) == MAX_PEERS
    assert [door.node_id for door in known.doors()[:2]] == ["new", f"node{MAX_PEERS + 4}"]
    known.remember("node9", "192.0.2.2", 1)
    assert [door.host for door in known.doors() if door.node_id == "node9"] == ["192.0.2.2"]
    known.forget("node9")
    assert all(door.node_id != "node9" for door in known.doors())
    assert (tmp_path / "known-peers.json").stat().st_mode & 0o777 == 0o600
    now[0] += MAX_AGE_SECONDS
    assert known.doors() == []


@pytest.mark.parametrize("content", ["", "[", '[{"node_id": 1}]', '[{"node_id":"a","host":"b","port":0,"met_at":1}]'])
def test_known_peers_that_cannot_be_read_are_forgotten(
    tmp_path: Path, content: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A damaged cache is told and made anew: it is no reason not to start."""
    (tmp_path / "known-peers.json").write_text(content)
    known = KnownPeers(tmp_path)
    assert known.doors() == []
    assert "cannot be read" in caplog.text
    known.remember("a", "192.0.2.1", 1)
    assert len(known.doors()) == 1


def test_interfaces_are_listed_without_loopback() -> None:
    """The interfaces of this machine have addresses of networks, loopback left out."""
    for interface in interfaces():
        assert interface.name
        assert interface.networks
        assert not any(network.startswith(("127.", "::1/")) for network in interface.networks)


@pytest.mark.parametrize(
    ("address", "is_near"),
    [
        ("192.0.2.200", True),
        ("198.51.100.1", False),
        ("2001:db8::1", True),
        ("2001:db8:1::1", False),
        ("fe80::1%eth0", True),
        ("169.254.3.4", True),
        ("127.0.0.1", False),
        ("::1", False),
        ("224.0.0.251", False),
        ("0.0.0.0", False),
        ("no address", False),
    ],
)
def test_only_neighbours_are_on_link(address: str, is_near: bool) -> None:
    """A record may name addresses of this machine's networks, and no others."""
    assert is_on_link(address, HERE) == is_near


def test_announcement_is_read_as_it_was_made() -> None:
    """What a node announces on an interface is what another one hears."""
    keys = NodeKeys.make()
    mine = Announcement(keys.node_id, keys.public, "desk", "tag", 8322)
    info = Multicast(mine, lambda _: None, lambda _: None).info(HERE[0])
    assert info is not None
    heard = read_announcement(info, HERE, HERE[0])
    assert heard == Heard(keys.node_id, "desk", "tag", ("192.0.2.7", "2001:db8::7"), 8322)
    assert keys.secret not in repr(info)


def test_link_local_address_is_one_of_the_interface_it_was_heard_on() -> None:
    """A link-local address of IPv6 is connected to through the interface on which it was announced."""
    keys = NodeKeys.make()
    there = Interface("eth0", 9, ("192.0.2.8/24", "fe80::8/64"))
    mine = Announcement(keys.node_id, keys.public, "desk", "tag", 8322)
    info = Multicast(mine, lambda _: None, lambda _: None).info(there)
    assert info is not None
    heard = read_announcement(info, HERE, HERE[0])
    assert heard is not None
    assert heard.addresses == ("192.0.2.8", "fe80::8%2")


@given(
    st.dictionaries(st.sampled_from(["id", "tag", "name", "v", "key"]), st.text(max_size=80)),
    st.integers(0, 65535),
    st.lists(st.ip_addresses(), max_size=20),
)
def test_hostile_announcements_are_bounded(properties: dict[str, str], port: int, addresses: list[object]) -> None:
    """Any record is an announcement with short texts and near addresses, or none."""
    from zeroconf import ServiceInfo

    node_id = "abcdefghijklm"
    info = ServiceInfo(
        SERVICE_TYPE,
        f"{node_id}.{SERVICE_TYPE}",
        port=port,
        properties={"id": node_id, **properties},
        parsed_addresses=[str(address) for address in addresses] + ["192.0.2.9"],
    )
    heard = read_announcement(info, HERE, HERE[0])
    if heard is not None:
        assert heard.node_id == node_id
        assert len(heard.addresses) <= 8
        assert len(heard.name) <= 64
        assert all(is_on_link(address, HERE) for address in heard.addresses)
