"""How far a load is: counted as weights come, told by the server, its metrics, to programs and in the log.

What a terminal shows is in `e2e/test_cli_loading.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import shutil
import signal
import threading
import time
from array import array
from collections.abc import Callable, Generator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest
from integration.test_metrics import scraped, value
from support.engine_process import process_id
from support.gguf_writer import write_gguf
from support.hybrid_model import write_hybrid
from support.native import engine_of, run
from support.quantised_model import write_quantised_experts, write_quantised_model
from support.slow_loads import go_on, install_slow_runner
from support.tiny_eagle import write_target
from support.tiny_encoder import write_encoder, write_gguf_encoder
from support.tiny_medusa import write_medusa
from support.tiny_model import metadata, split_tiny_model, tiny_tensors, write_tiny_model
from support.waiting import until, wait_until

import pyagent
from pyagent import LoadProgress, _rust
from pyagent.assembly import make_chain, make_host
from pyagent.cli.load_line import loads_shown
from pyagent.core.config import load_settings
from pyagent.core.errors import BackendError, ModelError
from pyagent.infrastructure.engine import load_watch
from pyagent.infrastructure.engine.drafts.options import DraftOptions
from pyagent.infrastructure.engine.load_watch import Load, LoadLog, LoadWatch
from pyagent.infrastructure.engine.memory.ledger import Ledger
from pyagent.infrastructure.engine.models.model_pool import ModelPool
from pyagent.infrastructure.engine.options import EngineOptions
from pyagent.infrastructure.server.app import create_app
from pyagent.testing import serve

HALF = 50
Write = Callable[[Path], Path]
DECODERS: dict[str, Write] = {
    "split": lambda folder: split_tiny_model(folder)[0],
    "quantised": lambda folder: write_quantised_model(folder / "model.gguf"),
    "experts": lambda folder: write_quantised_experts(folder / "model.gguf", "Q4_0"),
    "recurrent": lambda folder: write_hybrid(folder / "model.gguf", "mamba"),
}
ENCODERS: dict[str, Write] = {
    "folder": write_encoder,
    "gguf": lambda folder: write_gguf_encoder(folder / "encoder.gguf"),
}


@pytest.fixture
def slow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model whose load stops at half of its weights, until `go_on`."""
    install_slow_runner(monkeypatch, tmp_path / "site")
    path = tmp_path / "tiny.gguf"
    write_tiny_model(path)
    return path


# -- what is counted ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("write", DECODERS.values(), ids=DECODERS)
def test_weights_of_every_kind_are_counted(write: Write, tmp_path: Path) -> None:
    """Of a decoder's matrices each byte counts, so that what is left to the end of the load is its vectors."""
    path, progress = write(tmp_path), _rust.LoadProgress()
    progress.expect(_rust.describe_model(path)["weight_bytes"])
    _rust.CpuModel.load(path, threads=2, kv_bytes=1 << 20, progress=progress)
    assert 0.9 * progress.bytes_total <= progress.bytes_done <= progress.bytes_total


@pytest.mark.parametrize("write", ENCODERS.values(), ids=ENCODERS)
def test_weights_of_encoders_are_counted(write: Write, tmp_path: Path) -> None:
    """Each matrix of a folder of safetensors as of a GGUF file counts, the rows that are looked up included."""
    path, progress = write(tmp_path), _rust.LoadProgress()
    progress.expect(1 << 40)
    _rust.EncoderModel.load(path, threads=1, progress=progress)
    shapes = [dims for _, dims, *_ in _rust.read_model_header(path)["tensors"]]
    assert progress.bytes_done == sum(4 * math.prod(dims) for dims in shapes if len(dims) > 1)


def test_what_is_attached_counts_after_its_model(tmp_path: Path) -> None:
    """Heads of Medusa add to what their model counted, and both together are no more than was expected."""
    model, heads, progress = (
        write_target(tmp_path / "model.gguf"),
        write_medusa(tmp_path / "heads"),
        _rust.LoadProgress(),
    )
    about = _rust.describe_drafter(heads)
    assert about is not None
    progress.expect(_rust.describe_model(model)["weight_bytes"] + about["weight_bytes"])
    loaded = _rust.CpuModel.load(model, threads=1, kv_bytes=1 << 20, progress=progress)
    before = progress.bytes_done
    loaded.attach_drafter(heads, progress)
    assert 0.8 * about["weight_bytes"] < progress.bytes_done - before <= about["weight_bytes"]


class Counting(LoadWatch):
    """Keeps what each load had counted, and expected, before the rest was counted at its end."""

    def __init__(self) -> None:
        super().__init__()
        self.counted: dict[str, tuple[int, int]] = {}

    @contextlib.contextmanager
    def watching(self, model: str) -> Generator[Load]:
        with super().watching(model) as load:
            yield load
            self.counted[model] = load.counter.bytes_done, load.counter.bytes_total


@pytest.mark.parametrize("draft", ["draft.gguf", "heads"])
def test_what_drafts_for_a_model_counts_with_it(draft: str, tmp_path: Path) -> None:
    """A draft model, and heads that are attached, are expected from the beginning, so that no load begins anew."""
    own = _rust.describe_model(write_target(tmp_path / "model.gguf"))["weight_bytes"]
    shutil.copy(tmp_path / "model.gguf", tmp_path / "draft.gguf")
    heads = _rust.describe_drafter(write_medusa(tmp_path / "heads"))
    assert heads is not None
    drafts = DraftOptions(method="draft_model", models={"": draft})
    pool = ModelPool(lambda name: tmp_path / name, EngineOptions(drafts=drafts), Ledger(1 << 30))
    pool.watch = watch = Counting()
    run(loaded_and_closed(pool, pool.using("model.gguf")))
    done, total = watch.counted["model.gguf"]
    assert total == own + (own if draft == "draft.gguf" else heads["weight_bytes"])
    assert 0.9 * total < done <= total


def test_encoders_in_an_engine_are_counted(tmp_path: Path) -> None:
    """As a model that answers is, where an engine has both."""
    write_encoder(tmp_path / "encoder")
    pool = ModelPool(lambda name: tmp_path / name, EngineOptions(), Ledger(1 << 30))
    pool.encoders.watch = watch = Counting()
    run(loaded_and_closed(pool, pool.encoders.using("encoder")))
    done, total = watch.counted["encoder"]
    assert 0.7 * total < done < total


async def loaded_and_closed(pool: ModelPool, using: AbstractAsyncContextManager[object]) -> None:
    async with using:
        pass
    pool.close()


def test_load_that_fails_late_counted_what_came_before(tmp_path: Path) -> None:
    """A tensor that nothing reads ends the load after its weights are packed, each of which was counted by then."""
    path, progress = tmp_path / "more.gguf", _rust.LoadProgress()
    write_gguf(path, metadata(), tiny_tensors() | {"blk.0.unknown.weight": ((64,), array("f", [0.0]) * 64)})
    progress.expect(1 << 40)
    with pytest.raises(_rust.ModelFileError, match="unknown"):
        _rust.CpuModel.load(path, threads=1, kv_bytes=1 << 20, progress=progress)
    assert 0 < progress.bytes_done < path.stat().st_size


def test_counts_never_pass_the_total_and_never_go_back() -> None:
    """Whatever is counted twice, the end is the total; a load of a draft model more is expected, not begun again."""
    progress, seen = _rust.LoadProgress(), list[int]()
    progress.expect(10)
    for step in (lambda: progress.add(4), lambda: progress.add(9), lambda: progress.expect(5), progress.finish):
        step()
        seen.append(progress.bytes_done)
    assert (seen, progress.bytes_total) == ([4, 10, 10, 15], 15)


def test_what_is_left_is_told_at_the_rate_since_weights_load(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looking at a file, and waiting for other loads, is no part of that rate; 100 percent are all of the bytes."""
    clock = SimpleNamespace(monotonic=lambda: 100.0)
    monkeypatch.setattr(load_watch, "time", clock)
    load = Load("m", since=0.0)
    assert load.now() == LoadProgress(model="m", seconds=100.0)
    load.expect(1000)
    assert load.now() == LoadProgress(model="m", bytes_total=1000)
    clock.monotonic = lambda: 102.0
    load.counter.add(250)
    assert load.now() == LoadProgress(model="m", bytes_done=250, bytes_total=1000, seconds=2.0, seconds_left=6.0)
    load.counter.add(749)
    assert load.now().percent == 99


# -- who is told ----------------------------------------------------------------------------------------------------


def test_two_loads_are_told_apart_each_to_its_end() -> None:
    """Each is told under its model's name, further every time, and once that it is over, also one that fails."""
    watch, told = LoadWatch(tell_seconds=0.001), list[LoadProgress]()
    watch.watch = told.append

    def of(model: str) -> list[LoadProgress]:
        return [one for one in told if one.model == model]

    with watch.watching("one") as one:
        one.expect(100)
        with contextlib.suppress(ModelError), watch.watching("two") as two:
            two.expect(1000)
            two.counter.add(300)
            wait_until(lambda: bool(of("one") and of("two")) and of("two")[-1].bytes_done == 300)
            assert set(watch.now()) == {"one", "two"}
            raise ModelError("broken", model="two")
        one.counter.add(70)
        wait_until(lambda: of("one")[-1].bytes_done == 70)
    assert [(of(name)[-1].bytes_done, of(name)[-1].is_over) for name in ("one", "two")] == [(100, True), (300, True)]
    assert all(sum(load.is_over for load in of(name)) == 1 for name in ("one", "two"))
    assert all(
        sorted(load.bytes_done for load in of(name)) == [load.bytes_done for load in of(name)]
        for name in ("one", "two")
    )
    assert watch.now() == {}


def test_one_thread_tells_all_loads_and_ends_with_the_last() -> None:
    """Loads that follow each other at once, as of a model that cannot be opened, leave none behind."""

    before, watch = set(threading.enumerate()), LoadWatch(tell_seconds=3600)

    def num_threads() -> int:
        return sum(thread.name == "pyagent-load-watch" for thread in set(threading.enumerate()) - before)

    for number in range(50):
        with watch.watching(f"quick {number}"):
            time.sleep(0.001)  # in which the thread comes to wait
    with watch.watching("one"), watch.watching("two"):
        wait_until(lambda: num_threads() == 1)  # others that have ended may not be gone yet
    wait_until(lambda: num_threads() == 0)


def test_load_that_cannot_be_told_is_a_load_all_the_same() -> None:
    """A watcher that fails, such as a handler of the log, ends neither the load nor the thread that tells."""
    watch, told = LoadWatch(tell_seconds=0.001), list[LoadProgress]()

    def fail(load: LoadProgress) -> None:
        told.append(load)
        raise RuntimeError("no room for a line")

    watch.watch = fail
    with watch.watching("one"):
        wait_until(lambda: len(told) > 2)
    assert told[-1].is_over


def test_load_that_is_over_at_once_is_never_told() -> None:
    """Nothing flickers where there is nothing to wait for."""
    watch, told = LoadWatch(), list[LoadProgress]()
    watch.watch = told.append
    with watch.watching("quick") as load:
        load.expect(10)
    assert not told


def test_the_log_has_a_line_for_each_five_seconds(caplog: pytest.LogCaptureFixture) -> None:
    """At `info`, with percent, bytes and the seconds left; the next load of the model begins anew."""
    log = LoadLog()
    with caplog.at_level("INFO", "pyagent.loads"):
        for seconds in (0.5, 4.5, 5.0, 5.5, 10.5):
            done = int(seconds) * 10**8
            log.watch(
                LoadProgress(model="m", bytes_done=done, bytes_total=2 * 10**9, seconds=seconds, seconds_left=9.0)
            )
        log.watch(LoadProgress(model="m", seconds=15.0, is_over=True))
        log.watch(LoadProgress(model="m", seconds=6.0))
    assert caplog.messages == [
        "loading m: 25 %, 500.0 MB of 2.0 GB, 9 s left",
        "loading m: 50 %, 1.0 GB of 2.0 GB, 9 s left",
        "loading m: 6 s so far",
    ]


@pytest.mark.parametrize("process", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_server_tells_how_far_a_load_is(slow: Path, process: bool) -> None:
    """A model that its first request loads is told at /health, /pyagent/engine and /metrics, while it loads only."""
    settings = load_settings(overrides={"engine.models": [str(slow)], "engine.process": process}).settings
    chain = make_chain(settings, make_host(settings), ["native"])

    async def work(url: str) -> None:
        name = "tiny"
        async with httpx.AsyncClient(base_url=url, timeout=60) as http:
            asked = {"messages": [{"role": "user", "content": "ab"}], "max_tokens": 1}
            answer = asyncio.ensure_future(http.post("/v1/chat/completions", json=asked))

            async def loads() -> dict[str, dict[str, int]]:
                (state,) = (await http.get("/pyagent/engine")).json().values()
                return state["load_progress"]

            while not (found := await loads()) or not found[name]["bytes_done"]:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
            (load,) = found.values()
            total = _rust.describe_model(slow)["weight_bytes"]
            assert (load["bytes_done"], load["bytes_total"]) == (total // 2, total)
            health = (await http.get("/health")).json()["detail"]
            assert f"is loading: {100 * (total // 2) // total} %, " in health
            samples = scraped((await http.get("/metrics")).text)
            assert value(samples, "pyagent_engine_load_bytes", model=name, engine="0") == total // 2
            assert value(samples, "pyagent_engine_load_expected_bytes", model=name, engine="0") == total
            go_on(slow)
            assert (await answer).status_code == 200
            assert await loads() == {}
            assert "pyagent_engine_load_bytes{" not in (await http.get("/metrics")).text
            assert (await http.get("/health")).json()["detail"] == "native:tiny: loaded"

    with serve(create_app(chain)) as url:
        run(work(url))
    asyncio.run(chain.close())


@pytest.mark.slow
def test_process_that_dies_ends_what_is_told_of_its_loads(slow: Path) -> None:
    """A load in the engine's own process is shown here, and is over when that process is killed."""
    told = list[LoadProgress]()

    async def work() -> None:
        async with engine_of(slow) as backend:
            loading = asyncio.ensure_future(backend.load())
            await until(lambda: bool(told) and told[-1].bytes_total > 0)
            os.kill(process_id(backend), signal.SIGKILL)
            with pytest.raises(BackendError):
                await loading
            await until(lambda: told[-1].is_over)

    with loads_shown(told.append):
        run(work())


def test_program_is_told_how_far_its_engine_is(slow: Path) -> None:
    """`Engine.load` calls back while the model loads and once when it is there; `loading` says the same to who asks."""
    seen, asked = list[LoadProgress](), list[LoadProgress]()
    with pyagent.Engine(slow, process=False) as engine:

        def watch(load: LoadProgress) -> None:
            seen.append(load)
            if load.percent and not Path(f"{slow}.gate").exists():
                go_on(slow)

        engine.load(watch=watch)
        asked += engine.loading()
    assert asked == []
    assert {load.model for load in seen} == {"tiny"}
    assert any(HALF - 1 <= load.percent <= HALF for load in seen)
    assert [load.is_over for load in seen] == [False] * (len(seen) - 1) + [True]
    assert (seen[-1].percent, seen[-1].seconds_left) == (100, 0.0)


def test_program_is_told_that_a_load_failed(slow: Path) -> None:
    """A load that fails is told to be over as well, with the bytes that it had, and then raised."""
    seen = list[LoadProgress]()

    def watch(load: LoadProgress) -> None:
        seen.append(load)
        if load.percent and not Path(f"{slow}.gate").exists():
            go_on(slow, "fail")

    with pyagent.Engine(slow, process=False) as engine, pytest.raises(ModelError, match="the second half is lost"):
        engine.load(watch=watch)
    assert [load.is_over for load in seen] == [False] * (len(seen) - 1) + [True]
    assert HALF - 1 <= seen[-1].percent <= HALF
