"""Work that has not begun moves between nodes: on drain, on stop, and from a full node."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Coroutine
from contextlib import aclosing
from pathlib import Path

import msgspec
import pytest
from support.nodes import Own, cluster_of, is_connected
from support.queueing import Queueing
from support.server import words
from support.waiting import until

from pyagent.core.backends import Answer, collect
from pyagent.core.capabilities import Capabilities
from pyagent.core.errors import CapacityError
from pyagent.core.messages import ChatDelta, ChatRequest, Message, SamplingParams
from pyagent.core.runners.factory import RunnerOptions
from pyagent.core.token_estimate import estimated_request_tokens
from pyagent.core.withdrawal import Withdrawal
from pyagent.infrastructure.cluster.node import Node
from pyagent.infrastructure.cluster.stealing import Stealing
from pyagent.infrastructure.engine.backend import NativeBackend
from pyagent.infrastructure.engine.client import LocalEngine
from pyagent.infrastructure.engine.memory.ledger import Ledger
from pyagent.infrastructure.engine.models.model_pool import ModelPool
from pyagent.infrastructure.engine.options import EngineOptions


def run(work: Coroutine[None, None, None]) -> None:
    asyncio.run(work)


def ask(node: Node, text: str = "hello", **more: object) -> asyncio.Task[Answer]:
    request = ChatRequest(model="m", messages=[Message("user", text)], **more)  # type: ignore[arg-type]
    return asyncio.create_task(collect(node.chain.chat(request)))


def other() -> Queueing:
    return Queueing("other", model="other")


async def asked(node: Node, link: Queueing, number: int, **more: object) -> list[asyncio.Task[Answer]]:
    """Ask so many, one after the other, until all are at the link."""
    tasks: list[asyncio.Task[Answer]] = []
    for index in range(number):
        tasks.append(ask(node, f"question {index}", **more))
        await until(lambda: link.num_running + len(link.waiting) == len(tasks))
    return tasks


def texts(answers: list[Answer]) -> list[str]:
    return [answer.text for answer in answers]


def test_draining_node_hands_over_what_has_not_begun(tmp_path: Path) -> None:
    """Of three requests of a peer the two that wait go to another node at once; the one that runs ends where it is."""

    async def work() -> None:
        b_link, c_link = Queueing("b"), Queueing("c", 9, is_open=True)
        async with cluster_of(tmp_path, {"steal": False}, a=[other()], b=[b_link], c=[c_link]) as (a, b, c):
            await c.drain(0.0)
            await until(lambda: is_connected(a, 1))
            tasks = await asked(a, b_link, 3)
            await c.resume()
            await until(lambda: is_connected(a, 2))
            draining = asyncio.create_task(b.drain(60.0))
            assert texts(await asyncio.gather(*tasks[1:])) == ["from c", "from c"]
            assert not tasks[0].done()
            b_link.gate.set()
            assert (await tasks[0]).text == "from b"
            assert await draining == 0
            assert len(b_link.begun) == 1
            moved = [one for answer in (await tasks[1]).deltas for one in answer.attempts]
            assert [one.kind for one in moved] == ["moved"]

    run(work())


def test_answer_that_outlasts_the_drain_goes_on_elsewhere_from_its_text(tmp_path: Path) -> None:
    """When the drain's time is over the node ends the answer, and another continues it; the caller reads one text."""

    async def work() -> None:
        slow, heir = Queueing("b"), Queueing("c", 9, is_open=True)
        for link in (slow, heir):
            link.capabilities = Capabilities(assistant_prefix="continued")
        async with cluster_of(tmp_path, a=[other()], b=[slow], c=[heir]) as (a, b, c):
            await c.drain(0.0)
            await until(lambda: is_connected(a, 1))
            [task] = await asked(a, slow, 1)
            await c.resume()
            await until(lambda: is_connected(a, 2))
            assert await b.drain(0.1) == 1
            assert (await task).text == "from from c"
            assert heir.begun[0].answer_prefix == "from "
            await until(lambda: slow.num_running == 0)

    run(work())


def test_answer_whose_reader_is_slow_is_told_its_end_by_the_drain(tmp_path: Path) -> None:
    """An answer that waits for its reader when the drain's time is over goes on elsewhere, as any other."""

    async def work() -> None:
        slow, heir = Own("b", *[ChatDelta(content="w ")] * 5000), Own("c", *words("at the heir"))
        for link in (slow, heir):
            link.model_ids, link.capabilities = ["m"], Capabilities(assistant_prefix="continued")
        async with cluster_of(tmp_path, a=[other()], b=[slow], c=[heir]) as (a, b, c):
            await c.drain(0.0)
            await until(lambda: is_connected(a, 1))
            request = ChatRequest(model="m", messages=[Message("user", "hello")])
            async with aclosing(a.chain.chat(request)) as deltas:
                read = [await anext(deltas)]
                await c.resume()
                await until(lambda: is_connected(a, 2))
                assert await b.drain(0.1) == 1
                async with asyncio.timeout(60):
                    read += [delta async for delta in deltas]
            assert "".join(delta.content for delta in read).endswith("at the heir")

    run(work())


def test_drain_that_is_taken_back_ends_no_answer(tmp_path: Path) -> None:
    """A node that takes requests again while it drains goes on with those it has, after the drain's time as well."""

    async def work() -> None:
        link = Queueing("b")
        async with cluster_of(tmp_path, a=[other()], b=[link]) as (a, b):
            [first] = await asked(a, link, 1)
            draining = asyncio.create_task(b.drain(0.5))
            await until(lambda: b.status().is_draining)
            await b.resume()
            assert await draining == 0
            assert not first.done()
            second = ask(a)
            link.gate.set()
            assert texts(await asyncio.gather(first, second)) == ["from b", "from b"]
            assert len(link.begun) == 2

    run(work())


def test_stopping_node_gives_its_own_clients_requests_to_peers(tmp_path: Path) -> None:
    """Asked to stop, a node has its peers answer what waits in its queue; what runs there ends there."""

    async def work() -> None:
        own, far = Queueing("a"), Queueing("b", 9, is_open=True)
        async with cluster_of(tmp_path, {"steal": False}, a=[own], b=[far]) as (a, b):
            await b.drain(0.0)
            await until(lambda: is_connected(a, 0))
            tasks = await asked(a, own, 3)
            await b.resume()
            await until(lambda: is_connected(a, 1))
            leaving = asyncio.create_task(a.leave(60.0))
            assert texts(await asyncio.gather(*tasks[1:])) == ["from b", "from b"]
            own.gate.set()
            assert (await tasks[0]).text == "from a"
            await leaving

    run(work())


def test_stopping_node_without_peers_keeps_what_waits(tmp_path: Path) -> None:
    """With nobody to take it, what waits is answered where it is, within the time that running requests have."""

    async def work() -> None:
        own = Queueing("a")
        async with cluster_of(tmp_path, a=[own]) as (a,):
            tasks = await asked(a, own, 2)
            await a.leave(0.2)
            own.gate.set()
            assert texts(await asyncio.gather(*tasks)) == ["from a", "from a"]

    run(work())


def test_private_requests_and_those_for_one_link_are_not_moved(tmp_path: Path) -> None:
    """A private request waits on its own node however long, and so does one that names a link."""

    async def work() -> None:
        own, far = Queueing("a"), Queueing("b", 9, is_open=True)
        async with cluster_of(tmp_path, a=[own], b=[far]) as (a, _b):
            a.chain.private = ["native:a"]
            tasks = await asked(a, own, 2, private=True)
            named = ChatRequest(model="native:a", messages=[Message("user", "named")])
            tasks.append(asyncio.create_task(collect(a.chain.chat(named))))
            await until(lambda: len(own.waiting) == 2)
            await a.leave(0.2)
            own.gate.set()
            assert texts(await asyncio.gather(*tasks)) == ["from a"] * 3
            assert not far.begun

    run(work())


def test_request_is_moved_three_times_at_most(tmp_path: Path) -> None:
    """Nodes that all give a request back do not pass it round for ever: the fourth node asked may not move it."""

    async def work() -> None:
        links = [Queueing(name) for name in "bc"]
        async with cluster_of(tmp_path, a=[other()], b=[links[0]], c=[links[1]]) as (a, b, c):
            for link in links:
                link.num_running = link.slots  # taken by others
            task = ask(a)
            for _ in range(3):
                await until(lambda: any(link.waiting for link in links))
                here, there = (links[0], c) if links[0].waiting else (links[1], b)
                assert await here.withdraw(Withdrawal(at_most=9, to=there.keys.node_id)) == 1
                await until(lambda here=here: not here.waiting)
            await until(lambda: any(link.waiting for link in links))
            assert await links[0].withdraw(Withdrawal(at_most=9)) + await links[1].withdraw(Withdrawal(at_most=9)) == 0
            for link in links:
                link.gate.set()
                link.num_running = 0
                if link.waiting:
                    link.num_running += 1
                    link.waiting.pop(0)[1].set_result(None)
            assert (await task).text.startswith("from ")

    run(work())


def test_full_node_sheds_with_a_time_and_is_asked_again_after_it(tmp_path: Path) -> None:
    """A peer without room says when to come back: the next node answers, no breaker opens, and then it is asked."""

    async def work() -> None:
        full, free = Queueing("b", num_waiting_max=0), Queueing("c", 99, is_open=True)
        async with cluster_of(tmp_path, a=[other()], b=[full], c=[free]) as (a, _b, c):
            await c.drain(0.0)
            await until(lambda: is_connected(a, 1))
            [first] = await asked(a, full, 1)
            await c.resume()
            await until(lambda: is_connected(a, 2))
            for _ in range(8):  # far more than a breaker bears
                assert (await ask(a)).text == "from c"
            states = {state.backend: state for state in a.chain.link_states()}
            assert states["peer:b"].breaker == "closed"
            assert states["peer:b"].failures.keys() <= {"capacity", "cooldown"}
            full.gate.set()
            assert (await first).text == "from b"
            free.gate.clear()
            await c.drain(0.0)
            started = time.monotonic()
            assert (await ask(a)).text == "from b"
            assert time.monotonic() - started < 30

    run(work())


def test_node_answers_a_peer_that_it_is_full_at_once(tmp_path: Path) -> None:
    """Its own chain does not wait and try again for a peer, which has others to ask: the refusal crosses as it is."""

    async def work() -> None:
        full = Queueing("b", 0, num_waiting_max=0)
        async with cluster_of(tmp_path, a=[other()], b=[full]) as (a, _b):
            with pytest.raises(CapacityError) as refusal:
                await ask(a)
            assert refusal.value.retry_after_seconds
            assert len(full.requests) <= 1 + a.chain.retry_policy.num_retries

    run(work())


# -- stealing ----------------------------------------------------------------------------------------------------------


def test_idle_nodes_take_what_waits_on_a_loaded_one(tmp_path: Path) -> None:
    """Requests that came while a node was alone go to peers that join; each is begun once, and all are answered."""

    async def work() -> None:
        links = [Queueing("a"), Queueing("b", 2, is_open=True), Queueing("c", 2, is_open=True)]
        async with cluster_of(tmp_path, a=[links[0]], b=[links[1]], c=[links[2]]) as (a, b, c):
            for node in (b, c):
                await node.drain(0.0)
            await until(lambda: is_connected(a, 0))
            tasks = await asked(a, links[0], 9)
            for node in (b, c):
                await node.resume()
            answers = await asyncio.gather(*tasks[1:])
            assert {answer.text for answer in answers} == {"from b", "from c"}
            assert a.status().num_given_away == 8
            assert not links[0].waiting
            links[0].gate.set()
            assert (await tasks[0]).text == "from a"
            begun = [message.text for link in links for request in link.begun for message in request.messages]
            assert sorted(begun) == sorted(f"question {number}" for number in range(9))

    run(work())


def test_what_a_peer_asked_goes_on_to_a_third_node(tmp_path: Path) -> None:
    """A loaded node gives a peer's waiting requests away too: the peer asks the idle node itself."""

    async def work() -> None:
        loaded, idle = Queueing("b"), Queueing("c", 9, is_open=True)
        async with cluster_of(tmp_path, a=[other()], b=[loaded], c=[idle]) as (a, b, c):
            await c.drain(0.0)
            await until(lambda: is_connected(a, 1) and is_connected(b, 1))
            tasks = await asked(a, loaded, 3)
            await c.resume()
            assert texts(await asyncio.gather(*tasks[1:])) == ["from c", "from c"]
            assert b.status().num_given_away == 2
            assert all(request.origin.node == a.keys.node_id for request in idle.begun)
            loaded.gate.set()
            await tasks[0]

    run(work())


def test_peer_is_given_no_more_than_its_last_load_has_room_for(tmp_path: Path) -> None:
    """What was given since a peer's last load counts, also where another node asks it: looking twice gives once."""

    async def work() -> None:
        loaded, idle = Queueing("b"), Queueing("c", 2)
        own_look = {"steal": False}
        async with cluster_of(tmp_path, own_look, a=[other()], b=[loaded], c=[idle]) as (a, b, c):
            await c.drain(0.0)
            await until(lambda: is_connected(a, 1) and is_connected(b, 1))
            tasks = await asked(a, loaded, 9)
            told = {"m": (await loaded.engine_state()).stats["m"]}
            stealing = Stealing(b.chain, b.router, lambda: told)
            peer = b.router.get(c.keys.node_id)
            assert peer is not None
            peer.load = msgspec.structs.replace(peer.load, is_draining=False, num_free=2, sequence=10**9)
            assert [await stealing.give() for _ in range(3)] == [2, 0, 0]
            peer.take(msgspec.structs.replace(peer.load, sequence=peer.load.sequence + 1))
            assert await stealing.give() == 2
            for link in (loaded, idle):
                link.gate.set()
            await asyncio.gather(*tasks)

    run(work())


def test_peers_hear_how_much_of_prompts_a_node_has_to_compute(tmp_path: Path) -> None:
    """A node's load counts the prompt tokens left in its engine."""

    async def work() -> None:
        own = Queueing("a")
        async with cluster_of(tmp_path, settings={"steal": False}, a=[own], b=[Queueing("b", 0)]) as (a, b):
            await b.drain(0.0)
            await until(lambda: is_connected(a, 0))
            tasks = await asked(a, own, 3)
            left = sum(estimated_request_tokens(request) for request, _ in own.waiting)
            await until(lambda: [peer.load.num_prompt_tokens_left for peer in b.router] == [left])
            assert left > 0
            own.gate.set()
            await asyncio.gather(*tasks)
            await until(lambda: [peer.load.num_prompt_tokens_left for peer in b.router] == [0])

    run(work())


def test_peers_hear_of_requests_that_wait_for_a_model(tmp_path: Path, tiny_model_path: Path) -> None:
    """While a model loads, those who wait for it and their prompts are in the node's load; then they are no more."""
    may_load = threading.Event()

    def locate(_: str) -> Path:
        assert may_load.wait(60)
        return tiny_model_path

    async def work() -> None:
        options = EngineOptions(runner=RunnerOptions(threads=1, kv_bytes=1 << 20))
        own = NativeBackend(["m"], LocalEngine(ModelPool(locate, options, Ledger(1 << 30))), look=lambda _: "")
        async with cluster_of(tmp_path, {"steal": False}, a=[own], b=[Queueing("b", 0)]) as (a, b):
            await b.drain(0.0)
            await until(lambda: is_connected(a, 0))
            tasks = [ask(a, "the user", sampling=SamplingParams(max_tokens=4)) for _ in range(3)]
            await until(lambda: [peer.load.num_waiting for peer in b.router] == [3])
            assert [peer.load.num_prompt_tokens_left > 0 for peer in b.router] == [True]
            may_load.set()
            await asyncio.gather(*tasks)
            await until(lambda: [peer.load.num_waiting + peer.load.num_prompt_tokens_left for peer in b.router] == [0])

    run(work())


def test_requests_that_wait_for_kv_take_the_places_that_are_free(tmp_path: Path) -> None:
    """Of three requests on their way into an engine with two free places one waits, and their prompts count."""

    async def work() -> None:
        own = Queueing("a", 2)
        own.num_arriving = 3
        async with cluster_of(tmp_path, a=[own], b=[Queueing("b")]) as (_, b):
            await until(lambda: [peer.load.num_waiting for peer in b.router] == [1])
            [load] = [peer.load for peer in b.router]
            assert (load.num_running, load.num_free, load.num_prompt_tokens_left) == (2, 0, 300)

    run(work())


def test_node_that_is_told_not_to_keeps_its_queue(tmp_path: Path) -> None:
    """With `cluster.steal = false` requests wait where they are."""

    async def work() -> None:
        own, idle = Queueing("a"), Queueing("b", 9, is_open=True)
        async with cluster_of(tmp_path, settings={"steal": False}, a=[own], b=[idle]) as (a, b):
            await b.drain(0.0)
            await until(lambda: is_connected(a, 0))
            tasks = await asked(a, own, 3)
            await b.resume()
            await until(lambda: is_connected(a, 1))
            before = a.router.own.load.sequence
            await until(lambda: a.router.own.load.sequence > before + 3)
            assert len(own.waiting) == 2
            own.gate.set()
            assert texts(await asyncio.gather(*tasks)) == ["from a"] * 3

    run(work())


def test_thief_that_refuses_leaves_the_request_where_it_was(tmp_path: Path) -> None:
    """A node that turns out to be full is no loss: the request waits again where it came from, and is answered."""

    async def work() -> None:
        own, full = Queueing("a"), Queueing("b", 1, num_waiting_max=0)
        async with cluster_of(tmp_path, a=[own], b=[full]) as (a, b):
            await b.drain(0.0)
            await until(lambda: is_connected(a, 0))
            tasks = await asked(a, own, 3)
            full.num_running = 1  # by another's request that its load does not tell yet
            await b.resume()
            wanted = Withdrawal(at_most=2, to=b.keys.node_id)
            await until(lambda: is_connected(a, 1))
            assert await own.withdraw(wanted) == 2
            await until(lambda: len(own.waiting) == 2)
            own.gate.set()
            assert texts(await asyncio.gather(*tasks)) == ["from a"] * 3
            assert not full.begun

    run(work())


# -- words of others, and private requests -----------------------------------------------------------------------------


def test_node_that_drains_stays_so_whatever_another_says(tmp_path: Path) -> None:
    """A peer that sends a request on to a draining node changes nothing of it: no other request goes there."""

    async def work() -> None:
        wrong, draining = Queueing("b"), Queueing("c", 9, is_open=True)
        async with cluster_of(tmp_path, {"steal": False}, a=[other()], b=[wrong], c=[draining]) as (a, _b, c):
            await c.drain(0.0)
            await until(lambda: is_connected(a, 1))
            tasks = await asked(a, wrong, 2)
            assert await wrong.withdraw(Withdrawal(at_most=1, to=c.keys.node_id)) == 1
            await until(lambda: len(wrong.requests) == 3)
            peer = a.router.get(c.keys.node_id)
            assert peer is not None
            assert not peer.is_usable
            wrong.gate.set()
            assert texts(await asyncio.gather(*tasks)) == ["from b", "from b"]
            assert not draining.begun

    run(work())


def test_request_goes_to_the_node_that_another_knows_to_take_it_again(tmp_path: Path) -> None:
    """A node that was last heard to drain is asked for the one request that another, which heard more, sends there."""

    async def work() -> None:
        loaded, idle = Queueing("b"), Queueing("c", 9, is_open=True)
        async with cluster_of(tmp_path, {"steal": False}, a=[other()], b=[loaded], c=[idle]) as (a, _b, c):
            await c.drain(0.0)
            await until(lambda: is_connected(a, 1))
            tasks = await asked(a, loaded, 2)
            peer = a.router.get(c.keys.node_id)
            assert peer is not None
            peer.load = msgspec.structs.replace(peer.load, sequence=10**9)  # what it tells next is not heard
            await c.resume()
            assert await loaded.withdraw(Withdrawal(at_most=1, to=c.keys.node_id)) == 1
            async with asyncio.timeout(60):
                assert (await tasks[1]).text == "from c"
            assert not peer.is_usable
            loaded.gate.set()
            assert (await tasks[0]).text == "from b"

    run(work())


class OnItsWay(Queueing):
    """Requests reach the queue when `way` is open, as those do whose prompt is read yet; looks at it are counted."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.way, self.num_looks = asyncio.Event(), 0

    async def _enter(self, request: ChatRequest) -> None:
        await self.way.wait()
        await super()._enter(request)

    async def withdraw(self, wanted: Withdrawal) -> int:
        self.num_looks += 1
        return await super().withdraw(wanted)


def test_leaving_node_gives_away_what_reaches_its_queue_late(tmp_path: Path) -> None:
    """A request of a node's own client that was on its way to the queue at SIGTERM goes to a peer from there."""

    async def work() -> None:
        own, far = OnItsWay("a"), Queueing("b", 9, is_open=True)
        async with cluster_of(tmp_path, {"steal": False}, a=[own], b=[far]) as (a, b):
            own.num_running = own.slots  # taken by others
            await b.drain(0.0)
            await until(lambda: is_connected(a, 0))
            task = ask(a)
            await until(lambda: len(own.requests) == 1)
            await b.resume()
            await until(lambda: is_connected(a, 1))
            leaving = asyncio.create_task(a.leave(60.0))
            await until(lambda: own.num_looks > 0)
            own.way.set()
            async with asyncio.timeout(60):
                assert (await task).text == "from b"
                await leaving

    run(work())


def test_private_request_is_not_moved_to_a_node_that_may_see_it(tmp_path: Path) -> None:
    """A private request waits where it is though a rule names an idle peer: neither taken, nor given away at a stop."""

    async def work() -> None:
        own, far = Queueing("a"), Queueing("b", 9, is_open=True)
        async with cluster_of(tmp_path, a=[own], b=[far]) as (a, b):
            a.chain.private = ["native", f"peer:{b.keys.node_id}"]
            await b.drain(0.0)
            await until(lambda: is_connected(a, 0))
            tasks = await asked(a, own, 3, private=True)
            await b.resume()
            await until(lambda: is_connected(a, 1))
            assert await own.withdraw(Withdrawal(at_most=9, to=b.keys.node_id)) == 0
            await a.leave(0.1)
            assert len(own.waiting) == 2
            own.gate.set()
            assert texts(await asyncio.gather(*tasks)) == ["from a"] * 3
            assert not far.requests

    run(work())
