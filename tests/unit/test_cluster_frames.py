"""Messages between nodes: any bytes and any order of messages end in a message or a `WireError`, and hold no memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyagent.core.errors import WireError
from pyagent.infrastructure.cluster import frames
from pyagent.infrastructure.cluster.frames import HELLO, Limits, Message, agree, codec_for
from pyagent.infrastructure.cluster.peer import Path, Peer
from pyagent.infrastructure.cluster.rpc import Rpc
from pyagent.infrastructure.cluster.waiting import Reply
from pyagent.infrastructure.wire.fault import Fault
from pyagent.infrastructure.wire.hello import Hello

LIMITS = Limits(max_in_flight=3, max_message_bytes=100, max_held_bytes=150, max_transfers=4, window_bytes=20)


@given(st.binary(max_size=300))
def test_codec_reads_any_bytes_as_a_message_or_an_error(data: bytes) -> None:
    """Bytes from a peer raise nothing but `WireError`."""
    try:
        message = codec_for("x").decode(data)
    except WireError:
        return
    assert isinstance(message, msgspec.Struct)


@pytest.mark.parametrize(
    ("theirs", "version"), [("1-1", 1), ("1-9", 1), ("0-1", 1), ("2-3", None), ("0-0", None), ("", None), ("1", None)]
)
def test_agree_finds_the_newest_version_of_both(theirs: str, version: int | None) -> None:
    """Ranges that meet have a version; the others are an error that says which."""
    if version is None:
        with pytest.raises(WireError, match="version"):
            agree(HELLO, Hello(HELLO.protocol, theirs), "x")
    else:
        assert agree(HELLO, Hello(HELLO.protocol, theirs), "x") == version


SMALL = st.integers(-1, 4)
METHODS = st.sampled_from(["echo", "count", "none"])
LONG = st.one_of(
    st.builds(frames.Call, SMALL, METHODS, st.one_of(st.none(), st.floats())),
    st.builds(frames.Stream, SMALL, METHODS, SMALL, st.one_of(st.none(), st.floats())),
    st.builds(frames.Returned, SMALL),
    st.builds(frames.Item, SMALL),
)
MESSAGES: st.SearchStrategy[Message] = st.one_of(
    LONG,
    st.builds(frames.Cast, METHODS, st.binary(max_size=3)),
    st.builds(frames.End, SMALL),
    st.builds(frames.Raised, SMALL, st.builds(Fault, st.text(max_size=5), st.text(max_size=5))),
    st.builds(frames.Credit, SMALL, SMALL),
    st.builds(frames.Cancel, SMALL),
    st.builds(
        frames.Begin,
        SMALL,
        st.one_of(st.binary(max_size=5), LONG.map(msgspec.msgpack.encode)),
        st.lists(st.integers(-1, 60), max_size=3).map(tuple),
    ),
    st.builds(frames.Grant, SMALL, st.integers(-5, 500)),
    st.builds(frames.Chunk, SMALL, st.integers(-1, 60)),
    st.builds(frames.Received, SMALL),
    st.builds(frames.Reject, SMALL, st.text(max_size=5)),
    st.builds(frames.Abandon, SMALL),
)
SENT = st.tuples(MESSAGES, st.lists(st.binary(max_size=30), max_size=2))


async def echo(_peer: str, payload: bytes, buffers: Sequence[memoryview]) -> Reply:
    return Reply(payload, buffers)


async def count(_peer: str, _payload: bytes, _buffers: Sequence[memoryview]) -> AsyncIterator[Reply]:
    for _ in range(5):
        yield Reply(bytes(30))


@settings(max_examples=80)
@given(st.lists(SENT, max_size=25))
def test_any_order_of_messages_is_taken_or_refused(sent: list[tuple[Message, list[bytes]]]) -> None:
    """A peer's messages raise nothing but `WireError`, and once its connection is closed nothing is held for it."""

    async def test() -> None:
        path = Path(Peer("x", LIMITS), lambda _: True, lambda *_: None, is_incoming=True)

        async def same_path(_peer: Peer, path: Path) -> Path:
            return path

        rpc = Rpc("me", LIMITS, same_path)
        rpc.serving.handlers.update(echo=echo, count=count)
        reading = [
            asyncio.create_task(rpc.call(path.peer, "m", bytes(99_999), (), 5)),
            asyncio.create_task(read(rpc, path)),
        ]
        path.peer.incoming.append(path)
        path.channel = "calls"
        await asyncio.sleep(0)
        for message, buffers in sent:
            try:
                rpc.receive(path, message, [memoryview(data) for data in buffers])
            except WireError:
                break
            await asyncio.sleep(0)
            assert path.peer.num_serving <= LIMITS.max_in_flight
        path.close("over")
        rpc.path_closed(path)
        await asyncio.gather(*reading, return_exceptions=True)
        await rpc.serving.stop()
        await asyncio.sleep(0)
        assert path.peer.num_serving == 0
        assert not path.peer.waiting
        assert rpc.transfers.is_empty

    asyncio.run(test())


async def read(rpc: Rpc, path: Path) -> None:
    async for _ in rpc.stream(path.peer, "m", b"", (), 5):
        pass
