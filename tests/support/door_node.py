"""A program that opens a door and looks for others: `support.door_node FOLDER PORT [--no-multicast] [SEED]...`

Writes what happens as lines of JSON, with the time on the clock that all processes share; ends with a goodbye when its
input ends.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path

from support.doors import Node

from pyagent.core.errors import ClusterError
from pyagent.infrastructure.cluster.discovery import Discovery, DoorAddress
from pyagent.infrastructure.cluster.known_peers import KnownPeers


async def main(folder: str, port: str, *rest: str) -> None:
    seeds = [one for one in rest if not one.startswith("--")]
    node = Node(Path(folder), Path(folder).name)
    known = KnownPeers(node.folder)
    opened = await node.door.start(["0.0.0.0", "::"], int(port))

    def tell(event: str, **facts: object) -> None:
        print(json.dumps({"event": event, "at": time.monotonic(), **facts}), flush=True)

    async def knock(door: DoorAddress) -> None:
        tell("offered", host=door.host, source=door.source, node=door.node_id)
        try:
            met = await node.door.knock(door.host, door.port, timeout=10)
        except ClusterError as error:
            tell("failed", error=str(error))
        else:
            known.remember(met.node_id, door.host, door.port)
            tell("met", node=met.node_id, host=door.host, source=door.source, endpoints=met.endpoints)

    async def look(discovery: Discovery) -> None:
        async with asyncio.TaskGroup() as group:
            async for door in discovery:
                group.create_task(knock(door))

    discovery = Discovery(
        node.keys,
        node.cluster.load().tag,
        opened,
        name=node.name,
        seeds=seeds,
        known=known,
        multicast="--no-multicast" not in rest,
        on_gone=lambda node_id: tell("gone", node=node_id),
    )
    tell("started", node=node.keys.node_id)
    await discovery.start()
    looking = asyncio.create_task(look(discovery))
    await asyncio.to_thread(sys.stdin.read)
    await discovery.stop()
    await looking
    await node.door.stop()
    tell("stopped")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
