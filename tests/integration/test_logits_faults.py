"""Logits processors that fail: their requests end with a reason that names the plugin, and no other changes a byte."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from support import logits_plugin
from support.installed import install
from support.native import engine_of, run
from support.waiting import until

from pyagent.core.backends import Answer, collect
from pyagent.core.errors import BackendError, PluginError, PyAgentError, RequestError
from pyagent.core.messages import ChatRequest
from pyagent.infrastructure.engine.backend import NativeBackend

from .test_logits_processors import asked, engine

NEIGHBOURS = [
    asked("the user is", temperature=0.9, seed=4),
    asked("at ease", "walk", {"key": 4}),
    asked("at ease, and", "crowd", {"key": 5}, temperature=1.0, seed=2),
    asked("hello", "bad", {}),
]


async def with_neighbours(backend: NativeBackend, request: ChatRequest, alone: list[str]) -> PyAgentError:
    """Ask for something that fails beside what must not notice, and has its text; return the failure."""
    answers = await asyncio.gather(
        *(collect(backend.chat(one)) for one in [*NEIGHBOURS, request]), return_exceptions=True
    )
    *others, failure = answers
    assert [one.text if isinstance(one, Answer) else one for one in others] == alone
    assert isinstance(failure, PyAgentError), failure
    return failure


FAULTS: Mapping[str, tuple[str, str]] = {
    "raises": ("raised KeyError: 'secret of another'", "raised KeyError"),
    "exits": ("raised SystemExit: 3", "raised SystemExit"),
    "nan": ("made the logit of token 5 NaN", "made the logit of token 5 NaN"),
    "infinite": ("made the logit of token 5 inf", "made the logit of token 5 inf"),
    "none left": ("excluded every token that could be sampled",) * 2,
    "short": ("returned 2 values of format 'f', expected",) * 2,
    "long": ("floats of 32 bits ('f'), or None",) * 2,
    "doubles": ("values of format 'd', expected",) * 2,
    "text": ("raised TypeError: memoryview: a bytes-like object is required", "raised TypeError"),
}


@pytest.mark.parametrize("name", ["bad", "bad-batch"])
def test_processor_that_fails_ends_its_request_alone(tiny_model_path: Path, name: str) -> None:
    """Whatever a processor does wrong is the reason of its request's end, with its name and the plugin's."""

    async def work() -> None:
        async with engine(tiny_model_path) as backend:
            alone = [(await collect(backend.chat(one))).text for one in NEIGHBOURS]
            for how, expected in FAULTS.items():
                failure = await with_neighbours(backend, asked("hello", name, {"how": how}), alone)
                assert isinstance(failure, BackendError)
                assert f"plugin 'tests': its logits processor '{name}' " in str(failure)
                assert expected[name == "bad-batch"] in str(failure), how
                assert ("secret" in str(failure)) == (name == "bad" and how == "raises")
            assert (await collect(backend.chat(asked("hello", name, {})))).text

    run(work())


@pytest.mark.parametrize(("name", "how"), [("bad", "spins"), ("bad-batch", "sleeps")])
def test_processor_that_hangs_ends_its_request_alone(tiny_model_path: Path, name: str, how: str) -> None:
    """A processor that takes too long is left behind; it is refused while it goes on, and taken again after that."""
    if how == "sleeps" and sys.gettrace() is not None:
        pytest.skip("where lines are counted, no thread begins while the one that was left behind sleeps")

    async def work() -> None:
        logits_plugin.WAKE.clear()
        async with engine(tiny_model_path, **{"engine.logits_processor_seconds": 0.5}) as backend:
            alone = [(await collect(backend.chat(one))).text for one in NEIGHBOURS]
            failure = await with_neighbours(backend, asked("hello", name, {"how": how}), alone)
            assert f"its logits processor '{name}' took longer than 0.5 s" in str(failure)
            if how == "sleeps":
                with pytest.raises(PluginError, match="is busy still"):
                    await collect(backend.chat(asked("hello", name, {})))
            logits_plugin.WAKE.set()
            model = await backend.load()
            await until(lambda: not model.logits.step.is_stuck(name))
            assert (await collect(backend.chat(asked("hello", name, {})))).text

    run(work())


@pytest.mark.parametrize(
    ("how", "kind", "message"),
    [
        ("fails to be made", PluginError, "plugin 'tests': its logits processor 'bad' cannot be made: RuntimeError"),
        (
            "hangs when made",
            PluginError,
            "plugin 'tests': its logits processor 'bad' took longer than 0.5 s to be made",
        ),
        ("is no function", PluginError, "`make` returned 5, expected a function or None"),
        ("refuses", RequestError, "cannot take these args: how cannot be so"),
    ],
)
def test_processor_that_cannot_be_made_never_reaches_the_loop(
    tiny_model_path: Path, how: str, kind: type[PyAgentError], message: str
) -> None:
    """What a factory raises is told before the request begins: wrong args are the caller's, the rest the plugin's."""

    async def work() -> None:
        async with engine(tiny_model_path, **{"engine.logits_processor_seconds": 0.05}) as backend:
            with pytest.raises(kind, match=message):
                await collect(backend.chat(asked("hello", "bad", {"how": how})))

    run(work())


def test_processor_that_is_not_needed_costs_nothing(tiny_model_path: Path) -> None:
    """Where a factory makes nothing for some args, the request is as one that names none."""

    async def work() -> None:
        async with engine(tiny_model_path) as backend:
            plain = await collect(backend.chat(asked("hello")))
            same = await collect(backend.chat(asked("hello", "bad", {"how": "is nothing"})))
            assert same.text == plain.text

    run(work())


@pytest.mark.parametrize("name", ["bad", "bad-batch"])
def test_logits_that_a_plugin_keeps_are_no_others(tiny_model_path: Path, name: str) -> None:
    """What a processor keeps of its logits is never lent again, so that it changes nobody's answer later."""

    async def work() -> None:
        async with engine(tiny_model_path) as backend:
            kept = asked("hello", name, {"how": "keeps"})
            alone = (await collect(backend.chat(kept))).text
            plain = (await collect(backend.chat(asked("hello")))).text
            assert alone == plain
            for view in logits_plugin.kept:
                try:
                    view.cast("B")[:] = bytes(view.nbytes)
                except ValueError:  # released
                    continue
            assert (await collect(backend.chat(kept))).text == alone

    run(work())
    logits_plugin.kept.clear()


def test_cancelled_requests_leave_their_rows(tiny_model_path: Path) -> None:
    """A caller that leaves takes its row of a batch processor along; the others go on as they were."""

    async def work() -> None:
        async with engine(tiny_model_path) as backend:
            staying = [asked("at ease", "crowd", {"key": key}, max_tokens=40) for key in range(3)]
            alone = [(await collect(backend.chat(one))).text for one in staying]

            async def leave(key: int) -> None:
                stream = backend.chat(asked("the user", "crowd", {"key": key}, max_tokens=200))
                async for delta in stream:
                    if delta.content:
                        break
                await stream.aclose()  # type: ignore[attr-defined]

            answers = [collect(backend.chat(one)) for one in staying]
            leaving = [leave(key) for key in range(4)]
            results = await asyncio.gather(leaving[0], answers[0], leaving[1], *answers[1:], *leaving[2:])
            assert [one.text for one in results if isinstance(one, Answer)] == alone

    run(work())


@pytest.mark.slow
def test_engine_in_its_own_process_survives_processors(
    tiny_model_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a process of its own the engine runs the same plugins, and one that kills it ends its request alone."""
    install(monkeypatch, tmp_path, "walker", Path(logits_plugin.__file__).read_text(), "logits_processors")
    walking = asked("at ease", "walk", {"key": 4}, max_tokens=30)

    async def work() -> None:
        async with engine_of(tiny_model_path, process=False) as backend:
            alone = (await collect(backend.chat(walking))).text
        async with engine_of(tiny_model_path) as backend:
            other = asyncio.create_task(collect(backend.chat(walking)))
            with pytest.raises(PyAgentError, match="engine's process"):
                await collect(backend.chat(asked("hello", "bad", {"how": "dies"})))
            assert (await other).text == alone
            with pytest.raises(RequestError, match="there is no logits processor 'wlak'; did you mean 'walk'"):
                await collect(backend.chat(asked("hello", "wlak")))

    run(work())
