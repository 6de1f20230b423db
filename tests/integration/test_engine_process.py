"""The engine in a process of its own: the same answers, also when it is killed, hangs, or a request kills it."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from support.engine_process import (
    POISON,
    answers_in_this_process,
    ask,
    eight,
    killed_in_mid_stream,
    process_id,
    remote,
    told,
)
from support.installed import install
from support.native import engine_of, run
from support.tiny_model import write_tiny_model
from support.waiting import until

from pyagent.core.backends import Answer, collect
from pyagent.core.errors import (
    BackendError,
    CapacityError,
    ContextOverflowError,
    DeadlineError,
    ModelError,
    RequestError,
)
from pyagent.core.messages import (
    ChatRequest,
    Message,
    Origin,
    SamplingParams,
)
from pyagent.infrastructure.engine.backend import NativeBackend
from pyagent.infrastructure.engine.lifecycle import State
from pyagent.infrastructure.engine.subprocess import supervisor as supervisor_module


def test_process_answers_as_this_one_does(tiny_model_path: Path) -> None:
    """Texts, reasons, counts and log probabilities are the same over the socket; so is what the backend tells."""

    async def work() -> None:
        requests = eight(60)
        expected = await answers_in_this_process(tiny_model_path, requests)
        async with engine_of(tiny_model_path) as backend:
            assert (await backend.engine_state()).process_id is None
            assert (await backend.health()).detail == "loads on first use"
            asked = [asyncio.create_task(collect(backend.chat(request))) for request in requests]
            await until(lambda: remote(backend).life.num_running == 8)
            starting = await backend.engine_state()
            assert (starting.process_id, starting.num_arriving) == (None, 8)
            assert starting.num_arriving_tokens > 0
            assert [told(answer) for answer in await asyncio.gather(*asked)] == [told(answer) for answer in expected]
            state = await backend.engine_state()
            assert (state.num_arriving, state.num_arriving_tokens) == (0, 0)
            assert state.process_id not in {None, os.getpid()}
            assert [model.context_length for model in await backend.models()] == [512]
            kinds = ("weights", "kv", "workspace", "tokenizer", "grammars", "sessions", "drafts")
            assert set(state.memory) == {"process", *(f"{kind}:tiny" for kind in kinds)}
            assert (await backend.health()).detail == "loaded"

    run(work())


def test_killed_process_is_replaced_and_texts_go_on(tiny_model_path: Path) -> None:
    """Kill -9 in mid-stream of eight requests: each text, its log probabilities and counts are as if nothing was."""

    async def work() -> None:
        requests = eight(400)
        expected = [told(answer) for answer in await answers_in_this_process(tiny_model_path, requests)]
        for num_pieces in (1, 40, 300):
            async with engine_of(tiny_model_path) as backend:
                await backend.load()
                answers = await killed_in_mid_stream(backend, requests, num_pieces)
                assert [told(answer) for answer in answers] == expected
                assert (await backend.engine_state()).num_restarts == 1

    run(work())


@pytest.mark.parametrize(("session", "is_noticed"), [(None, True), ("s", True), (None, False)])
def test_conversations_go_on_over_a_kill(tiny_model_path: Path, session: str | None, is_noticed: bool) -> None:
    """A process killed between the turns of conversations, all of them answered: each next turn goes on from the same
    tokens, and its text is the one without a kill. So it is when the death is noticed only while they are asked."""

    async def talk(backend: NativeBackend, kills: set[int]) -> list[tuple[str, int, int]]:
        talks = [[Message("user", text)] for text in ("the user", "and the system is at", "12 more")]
        said: list[tuple[str, int, int]] = []
        for turn in range(4):
            if turn in kills:
                await kill(backend, is_noticed=is_noticed)
            sampling = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)
            names = [None if session is None else f"{session}{place}" for place in range(len(talks))]
            requests = [
                ChatRequest(messages=list(messages), sampling=sampling, session=name)
                for messages, name in zip(talks, names, strict=True)
            ]
            answers = await asyncio.gather(*(collect(backend.chat(request)) for request in requests))
            for messages, answer in zip(talks, answers, strict=True):
                assert answer.usage.cache is not None
                num_log = answer.usage.cache.log_tokens if is_noticed else 0
                said.append((answer.text, answer.usage.prompt_tokens, num_log))
                assert answer.usage.cache.cached_tokens <= answer.usage.prompt_tokens
                messages += [Message("assistant", answer.text), Message("user", "and then?")]
        return said

    async def work() -> None:
        async with engine_of(tiny_model_path, process=False) as backend:
            expected = await talk(backend, set())
        async with engine_of(tiny_model_path) as backend:
            assert await talk(backend, {1, 3}) == expected
            assert (await backend.engine_state()).num_restarts == 2

    run(work())


def test_begun_answers_go_on_over_a_kill(tiny_model_path: Path) -> None:
    """Answers with an `assistant_prefix` go on over a kill in mid-stream; so does their conversation after the next."""

    async def talk(backend: NativeBackend, num_pieces: int | None) -> list[object]:
        chats = [request for request in eight(60) if request.messages]
        asked = [msgspec.structs.replace(request, assistant_prefix="the user is") for request in chats]
        if num_pieces is None:
            answers = [await collect(backend.chat(request)) for request in asked]
        else:
            answers = await killed_in_mid_stream(backend, asked, num_pieces)
            await kill(backend, is_noticed=True)
        said = [told(answer) for answer in answers]
        for request, answer in zip(asked, answers, strict=True):
            begun = Message("assistant", "the user is" + answer.text)
            messages = [*request.messages, begun, Message("user", "and then?")]
            sampling = SamplingParams(temperature=0, max_tokens=9)
            following = await collect(backend.chat(ChatRequest(messages=messages, sampling=sampling)))
            said.append((following.text, following.usage.prompt_tokens))
        return said

    async def work() -> None:
        async with engine_of(tiny_model_path, process=False) as backend:
            expected = await talk(backend, None)
        async with engine_of(tiny_model_path) as backend:
            assert await talk(backend, 30) == expected

    run(work())


def test_several_answers_are_told_once_over_a_kill(tiny_model_path: Path) -> None:
    """Three answers to one prompt, and the best of four, are whole and told once each when the process is killed."""

    def by_index(answer: Answer) -> dict[int, tuple[str, int]]:
        texts: dict[int, tuple[str, int]] = {}
        for delta in answer.deltas:
            text, num_ends = texts.get(delta.index, ("", 0))
            texts[delta.index] = (text + delta.content, num_ends + (delta.finish_reason is not None))
        return texts

    async def work() -> None:
        sampling = SamplingParams(seed=5, max_tokens=300, ignore_eos=True, top_logprobs=1)
        requests = [ChatRequest(prompt="the user", sampling=sampling, n=3)]
        requests += [ChatRequest(prompt="the end", sampling=sampling, n=2, best_of=4)]
        expected = [by_index(answer) for answer in await answers_in_this_process(tiny_model_path, requests)]
        assert [len(texts) for texts in expected] == [3, 2]
        async with engine_of(tiny_model_path) as backend:
            await backend.load()
            answers = await killed_in_mid_stream(backend, requests, 60, times=2)
            assert [by_index(answer) for answer in answers] == expected
            assert (await backend.engine_state()).num_restarts >= 1

    run(work())


def test_what_is_told_of_prompts_is_told_once_over_a_kill(tiny_model_path: Path) -> None:
    """Echoed prompts and log probabilities of prompts come once with each answer when the process is killed."""
    params = {"max_tokens": 60, "ignore_eos": True, "seed": 3}
    requests = [
        ChatRequest(prompt="the user is", sampling=SamplingParams(echo=True, top_logprobs=1, **params)),
        ask("the system", prompt_logprobs=1, **params),
        ChatRequest(prompt="12 more", n=3, sampling=SamplingParams(echo=True, prompt_logprobs=2, **params)),
    ]

    def of_prompt(answer: Answer) -> list[tuple[int, object]]:
        return sorted((delta.index, delta.prompt_logprobs) for delta in answer.deltas if delta.prompt_logprobs)

    async def work() -> None:
        expected = await answers_in_this_process(tiny_model_path, requests)
        assert [len(of_prompt(answer)) for answer in expected] == [0, 1, 3]
        async with engine_of(tiny_model_path) as backend:
            answers = await killed_in_mid_stream(backend, requests, 60, times=2)
        for answer, other in zip(answers, expected, strict=True):
            for index in range(3):
                texts = ["".join(d.content for d in one.deltas if d.index == index) for one in (answer, other)]
                assert texts[0] == texts[1]
            assert of_prompt(answer) == of_prompt(other)
        assert told(answers[0]) == told(expected[0])

    run(work())


@pytest.mark.model
def test_real_model_goes_on_after_two_kills(smollm2_path: Path) -> None:
    """SmolLM2, killed twice while it talks to eight at once, says what it says undisturbed."""

    async def work() -> None:
        requests = eight(48)
        expected = [told(answer) for answer in await answers_in_this_process(smollm2_path, requests)]
        async with engine_of(smollm2_path) as backend:
            await backend.load()
            answers = await killed_in_mid_stream(backend, requests, 60, times=2)
            assert [told(answer) for answer in answers] == expected
            assert (await backend.engine_state()).num_restarts == 2

    run(work())


def test_death_is_noticed_before_silence_would_be(tiny_model_path: Path) -> None:
    """An idle engine whose process is killed is known to be starting at once, and answers again soon after."""

    async def work() -> None:
        async with engine_of(tiny_model_path) as backend:
            await backend.load()
            os.kill(process_id(backend), signal.SIGKILL)
            killed = time.perf_counter()
            noticed = await seconds_until(lambda: remote(backend).life.state is State.STARTING, killed)
            restarted = await seconds_until(lambda: remote(backend).life.state is State.READY, killed)
            print(f"noticed after {noticed * 1000:.1f} ms, restarted after {restarted:.2f} s")
            assert noticed < 10, "it is seen by its end, not by its silence"
            assert (await collect(backend.chat(ask()))).deltas

    run(work())


async def kill(backend: NativeBackend, *, is_noticed: bool) -> None:
    """Kill the process; with `is_noticed` wait until there is another."""
    killed, status = process_id(backend), remote(backend).copies.supervisors[0].status
    os.kill(killed, signal.SIGKILL)
    if is_noticed:
        await seconds_until(lambda: status.process_id not in {None, killed}, time.perf_counter())


async def seconds_until(is_so: Callable[[], bool], start: float) -> float:
    while not is_so():  # noqa: ASYNC110 - the state changes in a thread that tells nobody
        await asyncio.sleep(0.001)
    return time.perf_counter() - start


def test_process_that_hangs_is_replaced(tiny_model_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stopped process says nothing; it is killed, and the answer goes on in the next."""
    monkeypatch.setattr(supervisor_module, "_SILENCE_SECONDS", 2.0)

    async def work() -> None:
        request = ask(temperature=0, max_tokens=450)
        (expected,) = await answers_in_this_process(tiny_model_path, [request])
        async with engine_of(tiny_model_path) as backend:
            await backend.load()
            stream = backend.chat(request)
            first = await anext(stream)
            os.kill(process_id(backend), signal.SIGSTOP)
            rest = [delta async for delta in stream]
            assert first.content + "".join(delta.content for delta in rest) == expected.text
            state = await backend.engine_state()
            assert state.num_restarts == 1

    run(work())


HANGS = '''
"""A runner whose first step after a file is there never ends, in the engine's own process."""
import sys, time
from pathlib import Path
from pyagent.core.hooks import hookimpl
from pyagent.infrastructure.engine.runners.cpu import CpuRunner

marker, execute = Path(__file__).with_name("hang"), CpuRunner.execute

def hang(self, batch):
    if marker.exists():
        marker.unlink()
        time.sleep(3600)
    return execute(self, batch)

if sys.argv[0].endswith("subprocess/main.py"):
    CpuRunner.execute = hang

@hookimpl
def pyagent_register_queue_policies():
    return {}
'''


def test_options_of_plugins_reach_the_process(tiny_model_path: Path) -> None:
    """Tables of any shape below `plugins`, which PyAgent does not know, do not keep the process from starting."""

    async def work() -> None:
        more = {"plugins.other.depth": 2, "plugins.other.names": ["a", "b"], "plugins.other.word": "on"}
        async with engine_of(tiny_model_path, **more) as backend:
            assert (await collect(backend.chat(ask(max_tokens=3)))).text

    run(work())


@pytest.mark.parametrize("is_async", ["on", "off"])
def test_step_that_never_ends_is_a_death(
    tiny_model_path: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    is_async: str,
) -> None:
    """A process that answers pings but is stuck in a step is replaced when that has taken `engine.hang_seconds`; the
    answers go on where they stopped. One at rest is left alone."""
    install(monkeypatch, tmp_path, "hanging", HANGS)

    async def work() -> None:
        requests = [ask(temperature=0, max_tokens=450), ask("and on", seed=3, max_tokens=450)]
        expected = [answer.text for answer in await answers_in_this_process(tiny_model_path, requests)]
        more = {"engine.hang_seconds": 1.5, "engine.async_scheduling": is_async}
        async with engine_of(tiny_model_path, **more) as backend:
            await backend.load()
            await asyncio.sleep(2.5)
            assert (await backend.engine_state()).num_restarts == 0
            streams = [backend.chat(request) for request in requests]
            texts = [(await anext(stream)).content for stream in streams]
            (tmp_path / "hang").touch()
            for place, stream in enumerate(streams):
                texts[place] += "".join([delta.content async for delta in stream])
            assert texts == expected
            assert (await backend.engine_state()).num_restarts == 1

    run(work())
    assert "a step took longer than 1.5 s" in caplog.text


def test_request_that_kills_its_process_fails_alone(
    tiny_model_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request that kills its process twice alone is failed with the reason; seven others get their whole texts."""
    install(monkeypatch, tmp_path, "poison", POISON)

    async def work() -> None:
        requests = eight(300)
        expected = [told(answer) for answer in await answers_in_this_process(tiny_model_path, requests)]
        poison = ChatRequest(prompt="die", sampling=SamplingParams(ignore_eos=True), origin=Origin(client="poison"))
        async with engine_of(tiny_model_path, **{"engine.queues": {"default": {"policy": "poisoned"}}}) as backend:
            await backend.load()
            answers = await asyncio.gather(
                *(collect(backend.chat(request)) for request in [*requests[:4], poison, *requests[4:]]),
                return_exceptions=True,
            )
            failed = answers.pop(4)
            assert isinstance(failed, BackendError)
            assert "ended 2 times while it worked on this request alone" in str(failed)
            assert not failed.retryable
            assert [told(answer) for answer in answers if isinstance(answer, Answer)] == expected
            assert (await backend.engine_state()).num_restarts == 3
            assert (await collect(backend.chat(ask()))).deltas

    run(work())


def test_errors_cross_the_socket_as_they_are(tiny_model_path: Path, tmp_path: Path) -> None:
    """What is wrong with a request, a model or a deadline raises the same error, with its facts, as in this process."""
    broken = write_tiny_model(tmp_path / "broken.gguf")
    broken.write_bytes(broken.read_bytes()[:5000])

    async def work() -> None:
        async with engine_of(tiny_model_path, **{"engine.max_model_len": 40}) as backend:
            with pytest.raises(ContextOverflowError) as overflow:
                await collect(backend.chat(ChatRequest(prompt="z" * 60)))
            assert (overflow.value.num_tokens, overflow.value.limit, overflow.value.param) == (60, 40, "prompt")
            with pytest.raises(RequestError, match="temperature must be between 0 and 2") as wrong:
                await collect(backend.chat(ask(temperature=-1)))
            assert wrong.value.param == "temperature"
            with pytest.raises(RequestError, match="cannot be sent"):
                await collect(backend.chat(ask("\ud800")))
            with pytest.raises(DeadlineError):
                await collect(backend.chat(ChatRequest(prompt="a", timeout_seconds=0.0)))
            assert (await collect(backend.chat(ask("a", max_tokens=2)))).usage.completion_tokens == 2
        async with engine_of(broken) as backend:
            with pytest.raises(ModelError, match=r"broken\.gguf") as model:
                await backend.load()
            assert model.value.model == str(broken)

    run(work())


def test_closed_stream_ends_the_request_in_the_process(tiny_model_path: Path) -> None:
    """A reader that leaves aborts its request: the process soon has none, and others are not disturbed."""

    async def work() -> None:
        async with engine_of(tiny_model_path) as backend:
            other = asyncio.create_task(collect(backend.chat(ask(temperature=0, max_tokens=400))))
            tasks = [asyncio.create_task(collect(backend.chat(ask(max_tokens=450)))) for _ in range(20)]
            await asyncio.sleep(0.8)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            assert (await other).usage.completion_tokens == 400
            assert (await backend.engine_state()).num_running == 0
            assert remote(backend).copies.supervisors[0].num_requests == 0

    run(work())


def test_stream_that_is_closed_after_the_process_ended_raises_nothing(tiny_model_path: Path) -> None:
    """A reader that leaves while the engine is being closed leaves in peace: there is nothing left to abort."""

    async def work() -> None:
        async with engine_of(tiny_model_path) as backend:
            stream = backend.chat(ask(max_tokens=400))
            await anext(stream)
            remote(backend).copies.supervisors[0].close()
            await stream.aclose()  # type: ignore[attr-defined]

    run(work())


def test_close_ends_requests_process_and_thread(
    tiny_model_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Closing ends what runs with a reason; neither process nor thread nor socket folder is left."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # others have folders in the common one

    async def work() -> None:
        async with engine_of(tiny_model_path) as backend:
            stream = backend.chat(ask(max_tokens=450))
            await anext(stream)
            pid = process_id(backend)
            await backend.close()
            with pytest.raises(BackendError, match="the engine stopped"):
                async for _ in stream:
                    pass
            with pytest.raises(ProcessLookupError):
                os.kill(pid, 0)
            with pytest.raises(CapacityError, match="stopped"):
                await collect(backend.chat(ask()))

    run(work())
    assert not [thread for thread in threading.enumerate() if thread.name == "pyagent-supervisor"]
    assert not list(tmp_path.iterdir())


def test_process_that_cannot_start_fails_the_requests(tiny_model_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When no process comes up, requests fail with its exit code, again when asked again, and closing ends it."""
    false = shutil.which("false")
    assert false
    monkeypatch.setattr(sys, "executable", false)

    async def work() -> None:
        async with engine_of(tiny_model_path) as backend:
            for _ in range(2):
                with pytest.raises(BackendError, match=r"does not start \(exit code 1\)"):
                    await asyncio.wait_for(collect(backend.chat(ask())), 20)

    run(work())


PARENT = """
import asyncio, sys
from pyagent.assembly import make_chain, make_host
from pyagent.core.config import load_settings

async def main():
    settings = load_settings(overrides={"engine.models": [sys.argv[1]], "engine.process": True}).settings
    (backend,) = make_chain(settings, make_host(settings), ["native"]).links
    await backend.load()
    print((await backend.engine_state()).process_id, flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""


def test_engine_outlives_a_time_in_which_no_process_can_be_started(
    tiny_model_path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Without room for a process's folder requests fail with the reason; with room again, the next one is answered."""

    async def work() -> None:
        async with engine_of(tiny_model_path) as backend:
            with monkeypatch.context() as patched:
                patched.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
                with pytest.raises(BackendError, match=r"could not be started: .*missing"):
                    await collect(backend.chat(ask()))
            assert (await collect(backend.chat(ask()))).usage.completion_tokens == 12

    run(work())


def test_model_is_placed_in_a_process_of_its_own(tiny_model_path: Path, tmp_path: Path) -> None:
    """A second model is loaded there beside the first; what is wrong with a third is told as in this process."""

    paths = tiny_model_path, tmp_path / "b.gguf", tmp_path / "c.gguf"
    first, second, third = (path.stem for path in paths)
    num_bytes = write_tiny_model(paths[1], seed=2).stat().st_size
    paths[2].write_bytes(b"GGUF, it says")

    async def work() -> None:
        async with engine_of(tiny_model_path, **{"engine.models": [*map(str, paths)]}) as backend:
            await backend.load()
            assert await backend.placeable([first, second, "other"]) == {second: num_bytes}
            await backend.place(second)
            with pytest.raises(ModelError, match=r"c\.gguf"):
                await backend.place(third)
            assert {model.id for model in await backend.models() if model.is_loaded} == {first, second}
            assert not await backend.placeable([first, second])

    run(work())


def test_process_ends_with_the_one_that_started_it(tiny_model_path: Path) -> None:
    """When its parent is killed, the engine's process is gone at once."""
    with subprocess.Popen([sys.executable, "-c", PARENT, str(tiny_model_path)], stdout=subprocess.PIPE) as parent:
        assert parent.stdout
        child = int(parent.stdout.readline())
        parent.kill()
    until = time.monotonic() + 30  # some milliseconds on an idle machine; nobody asks it anything for 60 s
    while is_alive(child) and time.monotonic() < until:
        time.sleep(0.01)
    assert not is_alive(child)


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
