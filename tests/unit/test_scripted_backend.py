"""The scripted backends that tests of agents and chains stand on."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import pytest

import pyagent.testing
from pyagent.core.backends import collect
from pyagent.core.errors import BackendError, RequestError
from pyagent.core.messages import ChatRequest, EmbedRequest, FunctionCall, Message, ToolCall
from pyagent.core.plugin_checks import backend_problem
from pyagent.testing import EchoBackend, Reply, ScriptedBackend

HELLO = ChatRequest(messages=[Message("user", "hello out there")])


def test_script_is_followed_in_order() -> None:
    """Replies come in turn, a word a piece, with tokens counted; past the end it is an error."""

    async def main() -> None:
        backend = ScriptedBackend(["one two", Reply(pieces=("a", "b"), finish_reason="length")])
        first = await collect(backend.chat(HELLO))
        assert [delta.content for delta in first.deltas] == ["one", " two", ""]
        assert (first.usage.prompt_tokens, first.usage.completion_tokens, first.usage.total_tokens) == (3, 2, 5)
        second = await collect(backend.chat(HELLO))
        assert (second.text, second.last.finish_reason) == ("ab", "length")
        with pytest.raises(BackendError, match="has 2 replies, request 3 came"):
            await collect(backend.chat(HELLO))
        assert backend.requests == [HELLO] * 3

    asyncio.run(main())


@pytest.mark.parametrize("fail_at", [0, 1, 2])
def test_failure_comes_at_the_chosen_piece(fail_at: int) -> None:
    """An error is raised before the piece of the chosen index, also after the last one."""

    async def main() -> None:
        backend = ScriptedBackend([Reply("one two", error=BackendError("gone", backend="x"), fail_at=fail_at)])
        pieces: list[str] = []

        async def read() -> None:
            async for delta in backend.chat(HELLO):
                pieces.append(delta.content)  # noqa: PERF401 - what came before the error counts

        with pytest.raises(BackendError, match="gone"):
            await read()
        assert len(pieces) == fail_at

    asyncio.run(main())


def test_aborted_streams_are_counted() -> None:
    """Closing a stream early and cancelling its reader both count; reading to the end does not."""

    async def main() -> None:
        backend = ScriptedBackend(lambda _: Reply("one two three", delay_seconds=0.01))
        stream = backend.chat(HELLO)
        await anext(stream)
        await stream.aclose()  # type: ignore[attr-defined]
        assert backend.num_aborted == 1
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(collect(backend.chat(HELLO)), 0.015)
        assert backend.num_aborted == 2
        await collect(backend.chat(HELLO))
        assert backend.num_aborted == 2

    asyncio.run(main())


def test_tool_calls_end_the_answer() -> None:
    """A reply with tool calls ends with them."""
    call = ToolCall(id="c", function=FunctionCall("add"))
    answer = asyncio.run(collect(ScriptedBackend([Reply(tool_calls=(call,))]).chat(HELLO)))
    assert (answer.last.finish_reason, answer.tool_calls) == ("tool_calls", [call])


def test_echo_is_a_backend() -> None:
    """The echo backend answers with the last message and fills the whole protocol."""

    async def main() -> None:
        backend = EchoBackend()
        assert backend_problem(backend, "echo") is None
        assert (await collect(backend.chat(HELLO))).text == "hello out there"
        assert (await collect(backend.chat(ChatRequest(prompt="raw")))).text == "raw"
        assert [model.id for model in await backend.models()] == ["echo"]
        assert (await backend.health()).is_ready
        with pytest.raises(RequestError, match="cannot embed"):
            await backend.embed(EmbedRequest(model="m", input=["x"]))
        await backend.close()
        assert not (await backend.health()).is_ready

    asyncio.run(main())


def test_testing_kit_brings_a_server_only_when_asked() -> None:
    """Importing the kit does not import the web server; all it promises is there."""
    code = "import pyagent.testing, sys; print('uvicorn' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"
    assert all(getattr(pyagent.testing, name) for name in pyagent.testing.__all__)
    with pytest.raises(AttributeError, match="has no 'Nothing'"):
        _ = pyagent.testing.Nothing  # type: ignore[attr-defined]
