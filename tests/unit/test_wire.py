"""Frames, hellos and faults: what arrives is a whole message or a named error, whatever the bytes are."""

from __future__ import annotations

import contextlib
import inspect
import io
import math
import tracemalloc

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyagent.core import errors
from pyagent.core.errors import (
    BackendError,
    ContextOverflowError,
    InvalidOutputError,
    PyAgentError,
    RequestError,
    UnsupportedError,
    WireError,
)
from pyagent.core.messages import ChatDelta, ChatRequest, Message
from pyagent.infrastructure.engine.subprocess.protocol import (
    HELLO,
    Call,
    Failed,
    FromEngine,
    Outputs,
    Pong,
    Submit,
    TakeHint,
    ToEngine,
    from_engine,
    to_engine,
)
from pyagent.infrastructure.wire.codec import Codec, read_frame, with_length
from pyagent.infrastructure.wire.fault import Fault
from pyagent.infrastructure.wire.hello import Hello

PEER = "the other end"
TO_ENGINE: list[ToEngine] = [Submit(1, ChatRequest(messages=[Message("user", "hé")], prompt_token_ids=(1, 2)))]
FROM_ENGINE: list[FromEngine] = [
    HELLO,
    Pong(0.5),
    Outputs(7, ChatDelta(content="a", tool_calls=[]), (1, 2, 3), b"\0\0\0\1"),
    Failed(7, Fault("RequestError", "no", {"param": "n"})),
]


@pytest.mark.parametrize("message", TO_ENGINE)
def test_message_to_the_engine_crosses_whole(message: ToEngine) -> None:
    """What is decoded is what was encoded."""
    assert to_engine.decode(to_engine.encode(message)) == message


@pytest.mark.parametrize("message", FROM_ENGINE)
def test_message_from_the_engine_crosses_whole(message: FromEngine) -> None:
    """What is decoded is what was encoded."""
    assert from_engine.decode(from_engine.encode(message)) == message


@given(st.binary(max_size=200))
def test_bytes_are_a_message_or_a_wire_error(data: bytes) -> None:
    """No bytes raise anything but `WireError`."""
    for codec in (to_engine, from_engine):
        with contextlib.suppress(WireError):
            codec.decode(data)


@given(st.sampled_from(FROM_ENGINE), st.data())
def test_damaged_frame_is_a_message_or_a_wire_error(message: FromEngine, data: st.DataObject) -> None:
    """A frame cut short is never a message; one with a byte changed is another message or a `WireError`."""
    frame = from_engine.encode(message)
    with pytest.raises(WireError, match="no message of its protocol"):
        from_engine.decode(frame[: data.draw(st.integers(0, len(frame) - 1))])
    at = data.draw(st.integers(0, len(frame) - 1))
    changed = frame[:at] + bytes([data.draw(st.integers(0, 255))]) + frame[at + 1 :]
    with contextlib.suppress(WireError):
        from_engine.decode(changed)


@pytest.mark.parametrize("claim", [b"\xdd", b"\xdf", b"\xdb", b"\xc6", b"\xc9"])
@pytest.mark.parametrize("num_levels", [1, 400])
def test_claimed_length_allocates_nothing(claim: bytes, num_levels: int) -> None:
    """Arrays, maps, texts and bytes that claim four billion entries are refused without room for them."""
    frame = b"\x83\xa4type\xa6Failed\xa2id\x01\xa5fault\x83\xa4kind\xa1a\xa4text\xa1b\xa5facts\x81\xa1x"
    hostile = frame + (claim + b"\xff\xff\xff\xff") * num_levels
    tracemalloc.start()
    try:
        with pytest.raises(WireError):
            from_engine.decode(hostile)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_deep_nesting_is_a_wire_error() -> None:
    """A hundred thousand arrays in one another end in an error, not in the stack's end."""
    frame = b"\x83\xa4type\xa6Failed\xa2id\x01\xa5fault\x83\xa4kind\xa1a\xa4text\xa1b\xa5facts\x81\xa1x"
    with pytest.raises(WireError, match="no message"):
        from_engine.decode(frame + b"\x91" * 100_000)


def test_frame_above_the_bound_is_refused_both_ways() -> None:
    """A codec neither sends nor reads a frame that is longer than its bound."""
    small: Codec[Hello] = Codec(Hello, PEER, max_bytes=40)
    long = Hello("a" * 50, "1")
    with pytest.raises(WireError, match="bytes, the most is 40"):
        small.encode(long)
    with pytest.raises(WireError, match="bytes, the most is 40"):
        small.decode(Codec(Hello, PEER).encode(long))


@pytest.mark.parametrize("value", ["\ud800", 2**80, object(), {1: (None, {2: object()})}])
def test_value_without_an_encoding_is_a_wire_error(value: object) -> None:
    """Lone surrogates, huge numbers and objects of programs are refused by name when they are sent."""
    with pytest.raises(WireError, match="no encoding"):
        from_engine.encode(Failed(1, Fault("RequestError", "", {"x": value})))


# -- streams ------------------------------------------------------------------------------------------------------


@given(st.lists(st.binary(max_size=70_000), max_size=3))
def test_stream_gives_its_frames_back(frames: list[bytes]) -> None:
    """Frames written one after the other are read one after the other."""
    stream = io.BytesIO(b"".join(map(with_length, frames)))
    assert [read_frame(stream.read, PEER) for _ in frames] == frames
    with pytest.raises(WireError, match="hung up after 0 of 4"):
        read_frame(stream.read, PEER)


@given(st.binary(min_size=1, max_size=100), st.data())
def test_stream_cut_short_is_a_wire_error(frame: bytes, data: st.DataObject) -> None:
    """A stream that ends inside a frame ends in an error that says how far it came."""
    whole = with_length(frame)
    stream = io.BytesIO(whole[: data.draw(st.integers(0, len(whole) - 1))])
    with pytest.raises(WireError, match="hung up after"):
        read_frame(stream.read, PEER)


def test_stream_allocates_what_comes_not_what_is_claimed() -> None:
    """A length of 200 MB before ten bytes takes no 200 MB; one above the bound is refused unread."""
    tracemalloc.start()
    try:
        with pytest.raises(WireError, match="hung up after 10 of 200000000"):
            read_frame(io.BytesIO((200_000_000).to_bytes(4, "big") + b"0" * 10).read, PEER)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
    with pytest.raises(WireError, match="announced a message of 4294967295 bytes"):
        read_frame(io.BytesIO(b"\xff" * 100).read, PEER)


# -- versions -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("theirs", [Hello("pyagent-engine", "0.0.1"), Hello("pyagent-cluster", HELLO.version)])
def test_other_version_is_refused_by_name(theirs: Hello) -> None:
    """A peer of another protocol or version is told apart, and the error says both and what to do."""
    HELLO.check(HELLO, PEER)
    with pytest.raises(WireError, match=f"the other end speaks '{theirs.protocol}' version.*restart both") as caught:
        HELLO.check(theirs, PEER)
    assert HELLO.version in str(caught.value)


# -- faults -------------------------------------------------------------------------------------------------------

KINDS = [kind for kind in vars(errors).values() if inspect.isclass(kind) and issubclass(kind, PyAgentError)]
VALUES = {
    "num_tokens": 9,
    "limit": 5,
    "retry_after_seconds": 1.5,
    "retryable": False,
    "status": 503,
    "fields": ["n"],
    "options": ("yes", "no"),
    "faults": (errors.FieldFault("what went wrong", "tools", "invalid_request"),),
}


def made(kind: type[PyAgentError]) -> PyAgentError:
    """An error of this class, all its facts given."""
    names = [one.name for one in inspect.signature(kind.__init__).parameters.values() if one.kind is one.KEYWORD_ONLY]
    return kind("what went wrong", **{name: VALUES.get(name, "tools") for name in names})


def crossed(error: BaseException) -> PyAgentError:
    """The error as it arrives."""
    message = from_engine.decode(from_engine.encode(Failed(1, Fault.of(error, "native"))))
    assert isinstance(message, Failed)
    return message.fault.error("native")


@pytest.mark.parametrize("kind", KINDS)
def test_error_comes_back_as_the_same_class(kind: type[PyAgentError]) -> None:
    """Class, text and attributes of every error of the tree cross."""
    error = made(kind)
    back = crossed(error)
    assert type(back) is kind
    assert str(back) == str(error)
    assert vars(back) == vars(error)


class OwnError(UnsupportedError):
    """A plugin's subclass."""


class ContextOverflow(ContextOverflowError):
    """A subclass with a name of its own."""


RequestErrorElsewhere = type("RequestError", (Exception,), {})


def test_subclass_crosses_as_its_ancestor() -> None:
    """A plugin's subclass arrives as the class of the tree that it extends."""
    back = crossed(OwnError("no", backend="b", fields=["n"]))
    assert type(back) is UnsupportedError
    assert (back.backend, back.fields) == ("b", ("n",))
    assert type(crossed(ContextOverflow("long", num_tokens=2, limit=1))) is ContextOverflowError


@pytest.mark.parametrize(
    "error", [ValueError("bad \ud800"), RequestErrorElsewhere("no"), BackendError("x", backend="b", status=2**70)]
)
def test_foreign_error_crosses_as_a_backend_error(error: Exception) -> None:
    """A bug, a class that has only a name in common with ours, and a fact without an encoding arrive all the same."""
    back = crossed(error)
    assert type(back) is BackendError
    assert str(back).startswith(f"native failed: {type(error).__name__}: ")
    assert not back.retryable


@given(
    st.one_of(st.sampled_from([kind.__name__ for kind in KINDS]), st.text(max_size=20)),
    st.text(max_size=20),
    st.dictionaries(
        st.one_of(st.sampled_from([*VALUES, "param", "self", "message", "code"]), st.text(max_size=5)),
        st.recursive(
            st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5), st.binary(max_size=5)),
            lambda inner: st.lists(inner, max_size=3),
        ),
    ),
)
def test_hostile_fault_is_an_error_of_ours(kind: str, text: str, facts: dict[str, object]) -> None:
    """Whatever class and facts a peer names, an error of the tree with its text comes of it."""
    error = Fault(kind, text, facts).error("native")
    assert type(error) in KINDS
    assert str(error) == text


def test_fault_passes_facts_of_the_right_type_only() -> None:
    """A fact of another type than its class says makes the fault a `BackendError`; facts that it lacks are ignored."""
    assert type(Fault("ContextOverflowError", "", {"num_tokens": "9", "limit": 1}).error("b")) is BackendError
    assert type(Fault("ContextOverflowError", "", {}).error("b")) is BackendError
    back = Fault("InvalidOutputError", "", {"param": "tools", "code": "x", "__class__": "y"}).error("b")
    assert isinstance(back, InvalidOutputError)
    assert back.code == "tool_use_failed"
    assert isinstance(Fault("CapacityError", "", {"retry_after_seconds": math.inf}).error("b"), PyAgentError)


def test_request_error_names_its_param() -> None:
    """The field at fault crosses, as OpenAI's errors have it."""
    back = crossed(RequestError("n is too large", param="n", code="bad"))
    assert isinstance(back, RequestError)
    assert (back.param, back.code) == ("n", "bad")


def test_protocol_reads_only_its_own_types() -> None:
    """What is no message of a direction is refused there, messages of the other direction included."""
    with pytest.raises(WireError):
        to_engine.decode(from_engine.encode(Pong()))
    with pytest.raises(WireError):
        to_engine.decode(msgspec.msgpack.encode({"type": "Call", "id": 1, "command": {"type": "Exec", "code": "1"}}))
    with pytest.raises(WireError):
        to_engine.encode(Call(1, TakeHint(object())))  # type: ignore[arg-type]
