"""Several models in one process: shared ledger, loaded on demand, unloaded by use, never while in use."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
import weakref
from collections.abc import Coroutine
from contextlib import aclosing
from pathlib import Path

import pytest
from support.tiny_model import vocabulary as tiny_vocabulary
from support.tiny_model import write_tiny_model
from support.waiting import until

from pyagent.assembly import make_chain, make_host
from pyagent.core.backends import Answer, collect
from pyagent.core.config import load_settings
from pyagent.core.errors import CapacityError, ModelError, RequestError
from pyagent.core.messages import (
    ChatRequest,
    JsonObject,
    JsonSchemaFormat,
    Message,
    ResponseFormat,
    SamplingParams,
)
from pyagent.core.runners.factory import RunnerOptions
from pyagent.core.settings import Settings
from pyagent.infrastructure.engine.backend import NativeBackend
from pyagent.infrastructure.engine.client import LocalEngine
from pyagent.infrastructure.engine.memory.ledger import Ledger
from pyagent.infrastructure.engine.models import model_pool
from pyagent.infrastructure.engine.models.memory_estimate import Estimates
from pyagent.infrastructure.engine.models.model_pool import ModelPool
from pyagent.infrastructure.engine.options import EngineOptions, SchedulerLimits

KV_BYTES = 512 * 256  # of the tiny model: its context of 512 tokens


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three models that say different things."""
    folder = tmp_path_factory.mktemp("models")
    for seed, name in enumerate("abc"):
        write_tiny_model(folder / f"{name}.gguf", seed)
    return folder


OPTIONS = EngineOptions(
    runner=RunnerOptions(threads=1, kv_bytes=KV_BYTES),
    limits=SchedulerLimits(max_num_seqs=24, max_num_batched_tokens=64),
)


async def room_for(folder: Path, number: int) -> int:
    """Bytes for so many of the models and half of one more; one that loads holds its estimates."""
    path = folder / "a.gguf"
    pool = ModelPool(lambda _: path, OPTIONS, Ledger(1 << 30))
    await LocalEngine(pool).load("a")
    held = sum(pool.ledger.accounts().values())
    pool.close()
    return int((number - 0.5) * held) + Estimates.of(OPTIONS.runner_for(path)[1], OPTIONS, 1 << 30).least_bytes


def own_threads() -> set[threading.Thread]:
    """The threads that engines started; those of earlier tests may not have ended yet."""
    return {thread for thread in threading.enumerate() if thread.name.startswith("pyagent-")}


async def backend_of(folder: Path, num_fitting: int, more_bytes: int = 0) -> NativeBackend:
    room_bytes = await room_for(folder, num_fitting) + more_bytes
    pool = ModelPool(lambda name: folder / f"{name}.gguf", OPTIONS, Ledger(room_bytes))
    return NativeBackend(["a", "b", "c"], LocalEngine(pool), look=lambda _: "loads on first use")


def ask(model: str = "", **sampling: object) -> ChatRequest:
    params = SamplingParams(**{"temperature": 0, "max_tokens": 12, "ignore_eos": True, **sampling})  # type: ignore[arg-type]
    return ChatRequest(model=model, messages=[Message("user", "the user")], sampling=params)


def run(work: Coroutine[None, None, None]) -> None:
    asyncio.run(work)


async def loaded(backend: NativeBackend) -> set[str]:
    return {model.id for model in await backend.models() if model.is_loaded}


def test_request_chooses_its_model(folder: Path) -> None:
    """A request is answered by the model it names, by name or link; one that names none by the first."""

    async def work() -> None:
        backend = await backend_of(folder, 3)
        answers: dict[str, Answer] = {}
        for name in ("", "a", "b", "c", "native:b", "native"):
            answers[name] = await collect(backend.chat(ask(name)))
        assert answers[""].text == answers["a"].text == answers["native"].text
        assert answers["b"].text == answers["native:b"].text
        assert len({answer.text for answer in answers.values()}) == 3
        assert (answers["b"].last.model, answers["b"].last.backend) == ("b", "native:b")
        with pytest.raises(RequestError, match=r"does not offer model 'd'; it offers a, b, c \(engine\.models\)"):
            await collect(backend.chat(ask("d")))
        assert (await backend.health()).detail == "a loaded; b loaded; c loaded"
        await backend.close()

    run(work())


def test_models_answer_at_once_as_they_do_alone(folder: Path) -> None:
    """Three models answering eight requests each at the same time give the texts each gives alone."""

    async def work() -> None:
        backend = await backend_of(folder, 3)
        asked = [ask("abc"[number % 3], seed=number, temperature=1.0) for number in range(24)]
        alone = [(await collect(backend.chat(request))).text for request in asked]
        together = await asyncio.gather(*(collect(backend.chat(request)) for request in asked))
        assert [answer.text for answer in together] == alone
        await backend.close()

    run(work())


def test_model_is_placed_beside_the_others_or_not_at_all(folder: Path) -> None:
    """With room for two, a third that is placed is refused at once and unloads nothing; a request for it does."""

    async def work() -> None:
        backend = await backend_of(folder, 2)
        await collect(backend.chat(ask("a")))
        assert list(await backend.placeable(["a", "b", "d"])) == ["b"]
        await backend.place("b")
        with pytest.raises(CapacityError, match="c needs"):
            await asyncio.wait_for(backend.place("c"), 20)
        assert await loaded(backend) == {"a", "b"}
        await collect(backend.chat(ask("c")))
        assert await loaded(backend) == {"b", "c"}
        await backend.sleep()
        assert await backend.placeable(["a"]) == {}
        await backend.close()

    run(work())


def test_placed_model_that_takes_more_than_its_estimate_unloads_none(folder: Path) -> None:
    """Weights and tokenizer are known when they are loaded: where they do not fit beside the others, it is refused."""

    async def work() -> None:
        pool = ModelPool(lambda name: folder / f"{name}.gguf", OPTIONS, Ledger(1 << 30))
        backend = NativeBackend(["a", "b"], LocalEngine(pool), look=lambda _: "loads on first use")
        await backend.load()
        reclaimed = ("kv:", "grammars:")
        held = sum(size for name, size in pool.ledger.accounts().items() if not name.startswith(reclaimed))
        estimate = Estimates.of(OPTIONS.runner_for(folder / "b.gguf")[1], OPTIONS, 1 << 30)
        pool.ledger.total_bytes = held + estimate.least_bytes + 1000
        with pytest.raises(CapacityError, match=r"(weights|tokenizer):b needs"):
            await backend.place("b")
        assert await loaded(backend) == {"a"}
        await backend.close()

    run(work())


def test_request_for_a_model_that_is_placed_in_vain_is_answered(folder: Path) -> None:
    """One that waits for a load that may unload nothing, and fails, has the model loaded for itself."""

    async def work() -> None:
        may_load, room_bytes = threading.Event(), await room_for(folder, 1)

        def locate(name: str) -> Path:
            assert name == "a" or may_load.wait(60)
            return folder / f"{name}.gguf"

        pool = ModelPool(locate, OPTIONS, Ledger(room_bytes))
        backend = NativeBackend(["a", "b"], LocalEngine(pool), look=lambda _: "loads on first use")
        await collect(backend.chat(ask("a")))
        placed = asyncio.create_task(backend.place("b"))
        await asyncio.sleep(0)
        asked = asyncio.create_task(collect(backend.chat(ask("b"))))
        await until(lambda: pool._entries["b"].users == 2)
        may_load.set()
        with pytest.raises(CapacityError):
            await placed
        assert (await asked).text
        assert await loaded(backend) == {"b"}
        await backend.close()

    run(work())


def test_longest_unused_model_is_unloaded_when_memory_is_short(folder: Path) -> None:
    """With room for two, the third model takes the place of the one used longest ago, and texts stay the same."""

    async def work() -> None:
        threads_before = own_threads()
        backend = await backend_of(folder, 2)
        first = {name: (await collect(backend.chat(ask(name)))).text for name in "ab"}
        gone = weakref.ref(await backend.engine.load("b"))
        assert (await collect(backend.chat(ask("a")))).text == first["a"]
        assert await loaded(backend) == {"a", "b"}
        await collect(backend.chat(ask("c")))
        assert await loaded(backend) == {"a", "c"}
        gc.collect()
        assert gone() is None
        assert (await collect(backend.chat(ask("b")))).text == first["b"]
        assert await loaded(backend) == {"b", "c"}
        held = backend.engine.models.ledger
        parts = ("weights", "kv", "tokenizer", "workspace", "sessions")
        assert set(held.accounts()) == {f"{part}:{model}" for part in parts for model in "bc"}
        await backend.close()
        assert held.accounts() == {}
        assert not own_threads() - threads_before

    run(work())


def test_model_in_use_is_never_unloaded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With room for one and that one answering, another model waits until it is idle, or is refused for now."""

    async def work() -> None:
        backend = await backend_of(folder, 1)
        stream = backend.chat(ask("a", max_tokens=400))
        await anext(stream)
        waiting = asyncio.create_task(collect(backend.chat(ask("b"))))
        await asyncio.sleep(0.1)
        assert await loaded(backend) == {"a"}
        assert (await collect(stream)).last.finish_reason == "length"
        assert (await waiting).last.finish_reason == "length"
        assert await loaded(backend) == {"b"}

        monkeypatch.setattr(model_pool, "_PATIENCE_SECONDS", 0.05)
        async with aclosing(backend.chat(ask("b", max_tokens=450))) as stream:
            await anext(stream)
            async with backend.engine.models.using("b"):
                with pytest.raises(CapacityError, match=r":a needs .* held by: .*weights:b") as caught:
                    await collect(backend.chat(ask("a")))
        assert caught.value.retry_after_seconds
        assert (await collect(backend.chat(ask("a")))).deltas
        await backend.close()

    run(work())


def test_model_that_can_never_fit_is_refused_for_good(folder: Path) -> None:
    """A model larger than the whole of the engine's memory is refused with the sizes and the setting to raise."""

    async def work() -> None:
        options = EngineOptions(runner=RunnerOptions(threads=1, kv_bytes=KV_BYTES))
        pool = ModelPool(lambda name: folder / f"{name}.gguf", options, Ledger(100_000))
        backend = NativeBackend(["a"], LocalEngine(pool), look=lambda _: "")
        with pytest.raises(ModelError, match=r"a needs .* for its weights, .* may use 100\.0 kB; raise engine\.memory"):
            await collect(backend.chat(ask()))
        assert pool.ledger.accounts() == {}
        await backend.close()

    run(work())


def test_many_askers_load_a_model_once(folder: Path) -> None:
    """Fifty requests for a model that is not loaded load it once; those cancelled meanwhile do not keep it."""
    located: list[str] = []
    are_some_gone = threading.Event()

    def locate(name: str) -> Path:
        located.append(name)
        assert are_some_gone.wait(60)
        return folder / f"{name}.gguf"

    async def work() -> None:
        pool = ModelPool(locate, EngineOptions(runner=RunnerOptions(threads=1, kv_bytes=KV_BYTES)), Ledger(1 << 30))
        backend = NativeBackend(["a"], LocalEngine(pool), look=lambda _: "")
        tasks = [asyncio.create_task(collect(backend.chat(ask()))) for _ in range(50)]
        await until(lambda: located == ["a"])
        for task in tasks[::2]:
            task.cancel()
        are_some_gone.set()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert len({result.text for result in results if isinstance(result, Answer)}) == 1
        assert sum(isinstance(result, Answer) for result in results) == 25
        assert located == ["a"]
        pool.ledger.reserve("others", pool.ledger.total_bytes)
        assert await loaded(backend) == set()
        await backend.close()

    run(work())


def settings_for(folder: Path, **more: object) -> Settings:
    models = [str(folder / f"{name}.gguf") for name in "ab"]
    return load_settings(overrides={"engine.models": models, "paths.data": str(folder), **more}).settings


def test_links_of_a_chain_share_models_and_ledger(folder: Path) -> None:
    """`native` offers all of engine.models and `native:FILE` one; both speak to one engine, closed with the last."""

    async def work() -> None:
        settings = settings_for(folder)
        a, b = (Path(file).stem for file in settings.engine.models)
        host = make_host(settings)
        chain = make_chain(settings, host, ["native", f"native:{settings.engine.models[1]}"])
        every, one = chain.links
        assert isinstance(every, NativeBackend)
        assert isinstance(one, NativeBackend)
        assert (every.name, one.name) == ("native", f"native:{b}")
        assert every.engine is one.engine
        assert [model.id for model in await chain.models()] == [a, b, b]
        answers = {name: (await collect(chain.chat(ask(name)))).text for name in ("", a, b, f"native:{a}")}
        assert answers[""] == answers[a] == answers[f"native:{a}"] != answers[b]
        model = await every.load()
        await every.close()
        await every.close()
        assert (await collect(one.chat(ask()))).text == answers[b]
        await one.close()
        assert one.engine.is_closed
        (again,) = make_chain(settings, host, ["native"]).links
        assert isinstance(again, NativeBackend)
        assert again.engine is not one.engine
        assert (await again.load()) is not model
        await again.close()

    run(work())


def test_grammars_hold_memory_and_give_way(folder: Path) -> None:
    """A compiled form's bytes are in the ledger; what is remembered goes when others need it, or another form does."""
    schema: JsonObject = {"enum": ["a" * 200, "b"]}
    form = ResponseFormat(type="json_schema", json_schema=JsonSchemaFormat(schema=schema))

    async def work() -> None:
        library = 0 if "llguidance" in sys.modules else 6_600_000
        backend = await backend_of(folder, 3, library)
        asked = ChatRequest(model="a", prompt="x", response_format=form, sampling=SamplingParams(max_tokens=3))
        await collect(backend.chat(asked))
        assert isinstance(backend.engine, LocalEngine)
        ledger = backend.engine.models.ledger
        vocabulary = library + 390 * len(tiny_vocabulary()[0])
        assert ledger.accounts()["grammars:a"] > vocabulary + 100 * 200
        model = await backend.engine.load("a")
        model.grammars.give_back()
        assert ledger.accounts()["grammars:a"] == vocabulary
        async with backend.engine.models.using("a"):
            fixed = sum(size for name, size in ledger.accounts().items() if name != "kv:a")
            rest = ledger.reserve("others", ledger.total_bytes - fixed)  # KV memory gives way
            assert "kv:a" not in ledger.accounts()
            with pytest.raises(CapacityError, match=r"grammars:a needs"):
                await collect(backend.chat(asked))
        rest.release()
        assert (await collect(backend.chat(asked))).deltas
        await backend.close()

    run(work())


@pytest.mark.parametrize(
    ("kv_bytes", "kv_tokens", "expected"), [(40 * 256, None, 40), (None, 64, 64), (128 * 256, 64, 64)]
)
def test_kv_memory_is_bounded_in_bytes_or_tokens(
    folder: Path, kv_bytes: int | None, kv_tokens: int | None, expected: int
) -> None:
    """The smaller bound holds; without one, KV is for all sequences."""
    options = EngineOptions(runner=RunnerOptions(threads=1, kv_bytes=kv_bytes), kv_tokens=kv_tokens)
    needs = OPTIONS.runner_for(folder / "a.gguf")[1]
    assert Estimates.of(needs, options, 1 << 30).most_kv == expected * 256
    assert Estimates.of(needs, EngineOptions(), 1 << 30).most_kv > 512 * 256
