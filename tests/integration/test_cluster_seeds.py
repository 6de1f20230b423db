"""Seeds by name: what a name leads to is asked for at each try, of a name service in the event loop's place."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import Any

from support.nodes import Own, cluster_of, is_connected, join, running_node
from support.waiting import until

NAME = "nodes.test"


class Resolving(asyncio.SelectorEventLoop):
    """An event loop whose name service knows one name; `asked` are the answers it gave."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []
        self.asked: list[list[str]] = []

    async def getaddrinfo(self, host: Any, port: Any, **more: Any) -> Any:
        if host != NAME:
            return await super().getaddrinfo(host, port, **more)
        self.asked.append(self.addresses)
        if not self.addresses:
            raise socket.gaierror(socket.EAI_NONAME, "no such name")
        kind = (socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "")
        return [(*kind, (address, port)) for address in self.addresses]


def test_name_of_a_seed_leads_to_all_nodes_that_it_has_at_each_try(tmp_path: Path) -> None:
    """A name without an address, then with this node's own alone, then with two others', is knocked at each time."""

    async def work() -> None:
        names = asyncio.get_running_loop()
        assert isinstance(names, Resolving)
        with socket.create_server(("127.0.0.4", 0)) as found:
            port = found.getsockname()[1]  # a name has addresses; the port is the same at all of them
        async with cluster_of(tmp_path, {"bind": ["127.0.0.4"], "port": port}, a=[Own("one")]) as (a,):
            join(tmp_path / "b", a)
            here = {"bind": ["127.0.0.5"], "port": port, "seeds": [f"{NAME}:{port}"]}
            async with running_node(tmp_path / "b", [Own("two")], **here) as b:  # type: ignore[arg-type]
                await until(lambda: names.asked == [[]])
                names.addresses = ["127.0.0.5"]
                await until(lambda: len(names.asked) == 2)
                names.addresses = ["127.0.0.5", "127.0.0.4"]
                b._discovery.renew()  # type: ignore[union-attr] - as when the network changes: the next try comes at once
                await until(lambda: is_connected(a, 1) and is_connected(b, 1))

    with asyncio.Runner(loop_factory=Resolving) as runner:
        runner.run(work())
