"""KV that moves between nodes: answers are those of one node, whatever comes, fails or is refused on the way."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from pathlib import Path

import msgspec
import pytest
from support.kv_nodes import SLOW, KvNode, kv_nodes, prompt, two_nodes
from support.native import alone, engine_of
from support.nodes import join, running_node
from support.tiny_model import write_tiny_model
from support.waiting import Clock

from pyagent.cli.cluster_members import write_status
from pyagent.core.backends import collect
from pyagent.core.cluster.adverts import IDLE
from pyagent.core.cluster.kv_peer import RATE_SECONDS, KvPeer
from pyagent.core.cluster.tensors import Tensor
from pyagent.core.errors import ContextOverflowError, RequestError
from pyagent.core.runners.batch import PLAIN_KEY
from pyagent.core.runners.kv_connector import KvLostError, KvPrompt
from pyagent.core.sizes import format_bytes
from pyagent.infrastructure.cluster import kv_exports
from pyagent.infrastructure.cluster.kv_messages import PREFILL, READ, part_codec, read_codec
from pyagent.infrastructure.cluster.transport import Reply
from pyagent.infrastructure.engine.stats import KvMoveStats

Read = Callable[[str, bytes, Sequence[memoryview]], AsyncGenerator[Reply, None]]


def run(work: Coroutine[None, None, None]) -> None:
    asyncio.run(work)


def reading(node: KvNode) -> Read:
    """What answers peers that want KV of a node."""
    handler: Read = node.node._transport._rpc.serving.handlers[READ]  # type: ignore[assignment]
    return handler


def read_instead(node: KvNode, handler: Read) -> None:
    node.node._transport.handle(READ, handler)


@pytest.fixture(autouse=True)
def _a_page_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_exports, "_PART_BYTES", 1)


@pytest.mark.parametrize("kind", ["tiny_model_path", pytest.param("tiny_gemma_path", marks=pytest.mark.cluster)])
def test_prompt_computed_on_one_node_is_decoded_on_another(
    tmp_path: Path, kind: str, request: pytest.FixtureRequest
) -> None:
    """Greedy and seeded answers over KV of another node are those of one node, and next to nothing is computed."""
    path: Path = request.getfixturevalue(kind)
    asked = [prompt(1), prompt(2, temperature=1.0, seed=5)]

    async def work() -> None:
        expected = await alone(path, asked)
        async with two_nodes(tmp_path, path) as (a, b):
            for number, one in enumerate(asked, 1):
                assert (await a.answer(one)).text == expected[number - 1]
                await b.knows(a, one)
                answer = await b.answer(one)
                assert answer.text == expected[number - 1]
                assert b.moved.num_loads == number
                assert answer.usage is not None
                assert answer.usage.prompt_tokens - answer.usage.prompt_tokens_details.cached_tokens <= 16
            assert b.moved.tokens > 300
            assert a.moved.bytes_sent == b.moved.bytes > 0
            assert (b.moved.failed, b.moved.refused) == (0, 0)
            await a.is_idle()
            await b.is_idle()

    run(work())


def test_kv_goes_to_nobody_else(tmp_path: Path, tiny_model_path: Path) -> None:
    """Another tenant's KV is not found, nor that of private requests; what is computed sooner is not fetched."""

    async def work() -> None:
        async with two_nodes(tmp_path, tiny_model_path) as (a, b):
            ours, theirs, secret = prompt(1, tenant="ours"), prompt(1, tenant="theirs"), prompt(2, private=True)
            public = msgspec.structs.replace(secret, private=False)
            await a.answer(ours)
            await collect(a.link.chat(secret))
            await b.knows(a, ours)
            peer = b.peer(a)
            assert not [held for held, _ in b.node.router.holders(public)]
            for one in (theirs, public):  # even where a digest says so
                peer.warm.add(b.node.router._keys(one))
                await b.answer(one)
                assert (b.moved.num_loads, b.moved.failed) == (0, 0)
            await collect(b.link.chat(msgspec.structs.replace(ours, private=True)))
            assert b.moved.num_loads == 0
            b.model.drop_kv()
            b.seem(1e-9)
            other = prompt(3, tenant="ours")
            await a.answer(other)
            await b.knows(a, other)
            await b.answer(other)
            assert b.moved.num_loads == 0
            b.seem(10.0)
            await b.answer(ours)
            assert b.moved.num_loads == 1

    run(work())


@pytest.mark.parametrize(
    "field", ["kv_dtype", *(pytest.param(field, marks=pytest.mark.cluster) for field in ("rope", "weights"))]
)
def test_kv_that_is_not_alike_is_refused(
    tmp_path: Path, tiny_model_path: Path, caplog: pytest.LogCaptureFixture, field: str
) -> None:
    """KV of another data type, rope or model of the same name is refused by the field's name, and computed instead."""
    other = {
        "kv_dtype": tiny_model_path,
        "rope": write_tiny_model(tmp_path / "rope.gguf", llama__rope__freq_base=20_000.0),
        "weights": write_tiny_model(tmp_path / "seed.gguf", seed=8),
    }[field]
    kv_type = "f32" if field == "kv_dtype" else "bf16"

    async def work() -> None:
        (expected,) = await alone(other, [prompt(1)], kv_type=kv_type)
        async with two_nodes(tmp_path, tiny_model_path, other, kv_types=("bf16", kv_type)) as (a, b):
            await a.answer(prompt(1))
            await b.knows(a, prompt(1))
            with caplog.at_level(logging.WARNING):
                assert (await b.answer(prompt(1))).text == expected
            assert (b.moved.refused, b.moved.num_loads) == (1, 0)
            assert f"KV of 'tiny' is not alike: {field} is " in caplog.text

    run(work())


def test_node_that_dies_while_it_is_read_costs_time_alone(tmp_path: Path, tiny_model_path: Path) -> None:
    """When the other node ends between two layers, the prompt is computed: the answer is right, and no page is lost."""

    async def work() -> None:
        expected = await alone(tiny_model_path, [prompt(1), prompt(2)])
        async with two_nodes(tmp_path, tiny_model_path) as (a, b):
            original, is_begun = reading(a), asyncio.Event()

            async def stuck(peer: str, payload: bytes, buffers: Sequence[memoryview]) -> AsyncGenerator[Reply, None]:
                async for reply in original(peer, payload, buffers):
                    yield reply
                    is_begun.set()
                    await asyncio.Event().wait()

            read_instead(a, stuck)
            for one in (prompt(1), prompt(2)):
                await a.answer(one)
                await b.knows(a, one)
            b.node._kv.patience = 10.0  # a busy machine is slow to say what it has
            b.seem(0.003)  # late, not lost: after a second the prompt is computed
            assert (await b.answer(prompt(1))).text == expected[0]
            assert b.moved.failed == 1
            await b.is_idle()
            is_begun.clear()
            b.seem(10.0)
            answering = asyncio.create_task(b.answer(prompt(2)))
            await is_begun.wait()
            await a.node.stop()
            assert (await answering).text == expected[1]
            assert (b.moved.num_loads, b.moved.failed) == (0, 2)
            await b.is_idle()
            await a.is_idle()

    run(work())


def _changed(reply: Reply, **fields: object) -> Reply:
    return Reply(part_codec.encode(msgspec.structs.replace(part_codec.decode(reply.payload), **fields)), reply.buffers)


def _resized(reply: Reply) -> Reply:
    part = part_codec.decode(reply.payload)
    pages, layers, size = part.tensor.shape
    shorter = Tensor("kv", "uint8", (pages, layers, size - 16))
    return Reply(
        part_codec.encode(msgspec.structs.replace(part, tensor=shorter)), [bytes(pages * layers * (size - 16))]
    )


HOSTILE: dict[str, Callable[[list[Reply]], list[Reply]]] = {
    "a layer is missing": lambda parts: parts[:-1],
    "a layer comes twice": lambda parts: [parts[0], *parts],
    "layers come in another order": lambda parts: parts[::-1],
    "bytes are missing": lambda parts: [Reply(parts[0].payload, [bytes(8)]), *parts[1:]],
    "bytes are missing, and told": lambda parts: [_resized(parts[0]), *parts[1:]],
    "no bytes at all": lambda parts: [Reply(parts[0].payload), *parts[1:]],
    "another prompt's": lambda parts: [_changed(parts[0], key=bytes(16)), *parts[1:]],
    "a layer far away": lambda parts: [_changed(parts[0], first_layer=1 << 31), *parts[1:]],
    "no message": lambda parts: [Reply(b"\xc1 nonsense", parts[0].buffers), *parts[1:]],
}


def test_hostile_replies_are_refused(tmp_path: Path, tiny_model_path: Path) -> None:
    """Layers that are missing, doubled, of other lengths or another prompt's are dropped, and nothing is kept."""
    asked = [prompt(number) for number in range(len(HOSTILE))]

    async def work() -> None:
        expected = await alone(tiny_model_path, asked)
        async with two_nodes(tmp_path, tiny_model_path) as (a, b):
            original = reading(a)
            for number, (what, change) in enumerate(HOSTILE.items()):

                async def hostile(
                    peer: str, payload: bytes, buffers: Sequence[memoryview], change: object = change
                ) -> AsyncGenerator[Reply, None]:
                    parts = [reply async for reply in original(peer, payload, buffers)]
                    for reply in change(parts):  # type: ignore[operator]
                        yield reply

                read_instead(a, hostile)
                b.peer(a).kv = KvPeer()  # one that gave nothing for long is not asked
                await a.answer(asked[number])
                await b.knows(a, asked[number])
                assert (await b.answer(asked[number])).text == expected[number], what
                assert (b.moved.num_loads, b.moved.failed) == (0, number + 1), what
                await b.is_idle()

    run(work())


def test_peer_that_reads_too_much_or_never_ends_is_stopped(
    tmp_path: Path, tiny_model_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page is read once at most; a move that is not taken ends, and leaves its memory and its place."""

    async def work() -> None:
        async with two_nodes(tmp_path, tiny_model_path) as (a, b):
            original, payloads = reading(a), list[bytes]()

            async def noting(peer: str, payload: bytes, buffers: Sequence[memoryview]) -> AsyncGenerator[Reply, None]:
                payloads.append(payload)
                async for reply in original(peer, payload, buffers):
                    assert part_codec.decode(reply.payload).tensor.shape[:2] == (1, 1), "a page of a layer at a time"
                    yield reply

            read_instead(a, noting)
            await a.answer(prompt(1))
            await b.knows(a, prompt(1))
            await b.answer(prompt(1))
            ask = read_codec.decode(payloads[0])
            twice = read_codec.encode(msgspec.structs.replace(ask, wanted=2 * ask.wanted))
            with pytest.raises(RequestError, match="rising order"):
                await anext(b.node._transport.stream(a.node.keys.node_id, READ, twice))
            await a.is_idle()
            monkeypatch.setattr(kv_exports, "_LONGEST_SECONDS", 0.01)
            stuck = [original("b", payloads[0], []) for _ in range(kv_exports.MAX_EXPORTS)]
            for one in stuck:
                with contextlib.suppress(KvLostError):
                    await anext(one)
            await a.is_idle()
            monkeypatch.undo()
            assert [reply async for reply in original("b", payloads[0], [])]
            for one in stuck:
                await one.aclose()
            await a.is_idle()

    run(work())


def test_decode_node_has_prompts_computed_elsewhere(
    tmp_path: Path, tiny_model_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A `decode` node answers with KV that a `prefill` node computes for it; without that node it computes itself."""
    asked = [prompt(1), prompt(2, temperature=1.0, seed=3), prompt(3)]

    async def work() -> None:
        expected = await alone(tiny_model_path, asked)
        async with two_nodes(tmp_path, tiny_model_path, roles=("prefill", "decode")) as (a, b):
            assert not any(peer.is_usable for peer in b.node.router)  # it answers no chats of peers
            for number, one in enumerate(asked[:2]):
                answer = await b.answer(one)
                assert answer.text == expected[number]
                assert b.moved.num_loads == number + 1
                assert answer.usage is not None
                assert answer.usage.prompt_tokens - answer.usage.prompt_tokens_details.cached_tokens <= 16
            write_status(b.node.status())
            shown = capsys.readouterr().out
            assert "models tiny; role decode;" in shown
            assert "tiny; role prefill" in shown
            assert "    KV of 2 prompts came from it (" in shown
            write_status(a.node.status())
            assert f"{format_bytes(b.moved.bytes)} went to it" in capsys.readouterr().out
            assert a.node.status().num_answered_for_peers == 2
            await a.node.stop()
            assert (await b.answer(asked[2])).text == expected[2]

    run(work())


class Prefilling:
    """Answers nodes that want prompts computed by a node; where it `hangs`, never."""

    def __init__(self, node: KvNode) -> None:
        self._original = node.node._transport._rpc.serving.handlers[PREFILL]
        self.num_asked = 0
        self.hangs = False
        node.node._transport.handle(PREFILL, self._answer)

    async def _answer(self, peer: str, payload: bytes, buffers: Sequence[memoryview]) -> Reply:
        self.num_asked += 1
        if self.hangs:
            await asyncio.Event().wait()
        return await self._original(peer, payload, buffers)  # type: ignore[misc, no-any-return]


def test_prefill_node_that_hangs_is_left_alone_for_a_while(tmp_path: Path, tiny_model_path: Path) -> None:
    """It costs one request the time of computing, the next ones nothing; later it is asked again."""
    asked = [prompt(number) for number in range(4)]

    async def work() -> None:
        expected = await alone(tiny_model_path, asked)
        async with two_nodes(tmp_path, tiny_model_path, roles=("prefill", "decode")) as (a, b):
            clock = Clock()
            b.peer(a).kv = KvPeer(clock)
            prefilling = Prefilling(a)
            prefilling.hangs = True
            b.seem(0.002)
            assert (await b.answer(asked[0])).text == expected[0]
            assert (prefilling.num_asked, b.moved.failed) == (1, 1)
            prefilling.hangs = False
            b.seem(SLOW)
            assert (await b.answer(asked[1])).text == expected[1]
            assert (prefilling.num_asked, b.moved.failed) == (1, 1)
            clock.now += 5.0
            b.seem(SLOW)
            assert (await b.answer(asked[2])).text == expected[2]
            assert (prefilling.num_asked, b.moved.num_loads) == (2, 1)
            assert (await b.answer(asked[3])).text == expected[3]
            assert (prefilling.num_asked, b.moved.num_loads) == (3, 2)
            await a.is_idle()
            await b.is_idle()

    run(work())


def test_prompts_are_computed_by_all_prefill_nodes(tmp_path: Path, tiny_model_path: Path) -> None:
    """Of prompts that come at once one goes to each, before any told its load; one that is late keeps none from it."""

    async def work() -> None:
        models, kv_types, roles = [tiny_model_path] * 3, ["bf16"] * 3, ["prefill", "prefill", "decode"]
        async with kv_nodes(tmp_path, models, kv_types, roles) as (a, b, decoding):  # type: ignore[arg-type]
            prefilling = [Prefilling(a), Prefilling(b)]
            await asyncio.gather(*(decoding.answer(prompt(number)) for number in range(4)))
            assert all(one.num_asked for one in prefilling)
            clock, num_asked = Clock(), prefilling[1].num_asked
            for late in (a, b):
                decoding.peer(late).kv = KvPeer(clock)
            breaker = decoding.peer(a).kv.prefill
            failing = breaker.acquire()
            assert failing is not None
            breaker.fail(failing, "late")
            clock.now += 5.0
            assert breaker.acquire() is not None  # a request finds out whether it is quick again
            await decoding.answer(prompt(5))
            assert prefilling[1].num_asked == num_asked + 1

    run(work())


def test_very_long_prompt_is_no_fault_of_a_prefill_node(tmp_path: Path, tiny_model_path: Path) -> None:
    """Prompts of 200,000 tokens are asked for; one that no node takes is not, and other prompts are computed there."""

    async def work() -> None:
        async with two_nodes(tmp_path, tiny_model_path, roles=("prefill", "decode")) as (a, b):
            prefilling, layout = Prefilling(a), b.node._kv._offered["tiny"].cache.layout
            with pytest.raises(ContextOverflowError):
                await b.node._kv._have_computed(KvPrompt("tiny", [1] * 200_000, PLAIN_KEY, prompt()), layout)
            longest = KvPrompt("tiny", [1] * 300_000, PLAIN_KEY, prompt())
            assert await b.node._kv._have_computed(longest, layout) is None
            assert prefilling.num_asked == 1
            assert b.peer(a).kv.prefill.state == "closed"

    run(work())


def test_first_prompt_of_a_decode_node_is_computed_elsewhere(tmp_path: Path, tiny_model_path: Path) -> None:
    """Though nothing was ever computed on it, and no request came before."""

    async def work() -> None:
        (expected,) = await alone(tiny_model_path, [prompt(1)])
        async with two_nodes(tmp_path, tiny_model_path, roles=("prefill", "decode")) as (a, b):
            prefilling = Prefilling(a)
            for node in (a, b):
                node.seem(None)
            assert (await b.answer(prompt(1))).text == expected
            assert prefilling.num_asked == 1

    run(work())


def test_prompt_of_a_peer_is_admitted_as_its_requests_are(tmp_path: Path, tiny_model_path: Path) -> None:
    """A node that drains computes no prompts for peers; what it computes is counted, and drains wait for it."""

    async def work() -> None:
        async with two_nodes(tmp_path, tiny_model_path, roles=("prefill", "decode")) as (a, b):
            prefilling = Prefilling(a)
            await b.answer(prompt(1))
            assert prefilling.num_asked == b.moved.num_loads == 1
            a.node._answering.is_draining = True  # before it has told so
            for number in range(2, 12):  # until one comes before the next heartbeat
                b.peer(a).load = IDLE
                assert (await b.answer(prompt(number))).text
                if prefilling.num_asked > 1:
                    break
            assert (prefilling.num_asked, b.moved.num_loads, b.moved.failed) == (2, 1, 1)
            assert b.peer(a).kv.prefill.reason == "the node is draining; ask another"
            assert a.node.status().num_answered_for_peers == 1

    run(work())


def test_rate_that_was_measured_is_forgotten(tmp_path: Path, tiny_model_path: Path) -> None:
    """A peer that was slow once is not asked, and some time later it is."""

    async def work() -> None:
        expected = await alone(tiny_model_path, [prompt(1)])
        async with two_nodes(tmp_path, tiny_model_path) as (a, b):
            clock = Clock()
            b.peer(a).kv = KvPeer(clock)
            b.peer(a).kv.note_move(1, 1e6)
            await a.answer(prompt(1))
            await b.knows(a, prompt(1))
            assert (await b.answer(prompt(1))).text == expected[0]
            assert b.moved == KvMoveStats()
            b.model.drop_kv()
            b.seem(SLOW)
            clock.now += RATE_SECONDS
            assert (await b.answer(prompt(1))).text == expected[0]
            assert (b.moved.num_loads, b.peer(a).kv.num_loads) == (1, 1)
            assert b.peer(a).kv.loaded_bytes == a.peer(b).kv.sent_bytes == b.moved.bytes

    run(work())


def test_node_whose_role_needs_what_it_has_not_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A `prefill` node without an engine that moves KV computes for no peer: the log names what is missing."""

    async def work() -> None:
        join(tmp_path / "a", None)
        with caplog.at_level(logging.WARNING):
            async with running_node(tmp_path / "a", [], role="prefill"):
                assert 'cluster.role is "prefill", but no engine here moves KV' in caplog.text

    run(work())


def test_node_whose_engine_keeps_its_kv_says_so(
    tmp_path: Path, tiny_model_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With an engine in a process of its own, `pyagent cluster status` says that KV does not move, and why."""

    async def work() -> None:
        join(tmp_path / "a", None)
        for is_apart in (True, False):
            async with (
                engine_of(tiny_model_path, process=is_apart) as link,
                running_node(tmp_path / "a", [link]) as node,
            ):
                write_status(node.status())
                assert ("engine.process = false" in capsys.readouterr().out) == is_apart

    run(work())


def test_equal_prompts_at_once_are_fetched_once(tmp_path: Path, tiny_model_path: Path) -> None:
    """Of requests that begin alike and come together, one fetches; the others wait for it."""

    async def work() -> None:
        (expected,) = await alone(tiny_model_path, [prompt(1)])
        async with two_nodes(tmp_path, tiny_model_path) as (a, b):
            await a.answer(prompt(1))
            await b.knows(a, prompt(1))
            answers = await asyncio.gather(*(b.answer(prompt(1)) for _ in range(4)))
            assert [answer.text for answer in answers] == [expected] * 4
            assert b.moved.num_loads == 1
            await b.is_idle()

    run(work())
