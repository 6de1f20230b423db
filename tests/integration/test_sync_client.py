"""`with pyagent.Engine(...)`: the words of the asynchronous client for programs without an event loop."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest
from support.waiting import wait_until

from pyagent import CapacityError, ChatRequest, Engine, InvalidOutputError, PyAgentError, RequestError, SamplingParams
from pyagent.infrastructure.engine.backend import NativeBackend

GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
ASKED = ["the user", "the system", "and on", "12 more"]


@pytest.mark.parametrize("num_copies", [1, 2])
def test_both_clients_say_the_same(tiny_model_path: Path, num_copies: int) -> None:
    """Whole answers, several at once, and streams are those of the asynchronous client, of one engine or of copies."""

    async def asynchronously() -> list[str]:
        async with Engine(tiny_model_path, threads=1) as engine:
            return [answer.text for answer in await engine.chat_all(ASKED, GREEDY)]

    expected = asyncio.run(asynchronously())
    with Engine(tiny_model_path, threads=num_copies, data_parallel=num_copies) as engine:
        engine.load()
        assert engine.chat(ASKED[0], GREEDY).text == expected[0]
        assert [answer.text for answer in engine.chat_all(ASKED, GREEDY)] == expected
        assert "".join(delta.content for delta in engine.stream(ASKED[1], GREEDY)) == expected[1]
        assert [answer.text for answer in engine.stream_answers(ASKED[2], GREEDY)][-1] == expected[2]
        assert engine.generate("yes or no", choice=["yes", "no"]) in {"yes", "no"}


def test_errors_are_raised_where_the_program_waits(tiny_model_path: Path) -> None:
    """What is wrong is the same error as in an event loop; one of several ends them all; the engine goes on."""
    with Engine(tiny_model_path, threads=1) as engine:
        with pytest.raises(RequestError, match="temperature"):
            engine.chat("a", SamplingParams(temperature=-1))
        with pytest.raises(RequestError, match="temperature"):
            list(engine.stream("a", SamplingParams(temperature=-1)))
        bad = ChatRequest(prompt="a", sampling=SamplingParams(temperature=-1))
        with pytest.raises(RequestError, match="temperature"):
            engine.chat_all([ChatRequest(prompt="a", sampling=GREEDY), bad])
        with pytest.raises(InvalidOutputError):
            engine.generate("a", schema={"type": "object", "required": ["a"]}, sampling=SamplingParams(max_tokens=2))
        with pytest.raises(RequestError, match="cannot embed"):
            engine.embed(["a"])
        assert engine.chat("a", GREEDY).usage.completion_tokens == 12


def test_stream_that_is_left_aborts_its_request(tiny_model_path: Path) -> None:
    """A loop that breaks off ends the request in the engine, and threads may ask at the same time."""
    maker = Engine(tiny_model_path, threads=1)
    [backend] = maker.backend.links
    assert isinstance(backend, NativeBackend)
    with maker as engine:
        for _ in engine.stream("the user", SamplingParams(max_tokens=450, ignore_eos=True)):
            break
        wait_until(lambda: backend.engine.life.num_running == 0)  # type: ignore[attr-defined]
        texts: list[str] = []
        threads = [threading.Thread(target=lambda: texts.append(engine.chat("a", GREEDY).text)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(texts) == 4
        assert len(set(texts)) == 1
        engine.close()
        engine.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "pyagent-sync"]


def test_close_ends_answers_of_other_threads_and_works_in_a_running_loop(tiny_model_path: Path) -> None:
    """Threads that wait for answers get an end when the engine is closed; the program that closes may have a loop."""

    async def program() -> list[object]:
        ends: list[object] = []
        with Engine(tiny_model_path, threads=1) as engine:
            sampling = SamplingParams(max_tokens=100_000, ignore_eos=True, temperature=0)
            begun = threading.Event()

            def read() -> None:
                try:
                    for _ in engine.stream("the user", sampling):
                        begun.set()
                    ends.append("complete")
                except PyAgentError as error:
                    ends.append(error)

            thread = threading.Thread(target=read)
            thread.start()
            assert begun.wait(60)
        thread.join(60)
        assert not thread.is_alive()
        with pytest.raises(CapacityError, match="closed"):
            engine.chat("a")
        return ends

    assert len(asyncio.run(program())) == 1
