"""Adapters in the embedded engine: named as models, mixed in one batch, loaded when asked for and let go."""

from __future__ import annotations

import asyncio
import dataclasses
import shutil
from collections.abc import Sequence
from pathlib import Path

import httpx
import pytest
from msgspec.structs import replace
from support.native import at_once as answers_at_once
from support.native import chat, engine_of, mixed_requests, one_by_one, options, run, running
from support.tiny_adapter import write_adapter
from support.tiny_model import write_tiny_model

from pyagent.assembly import make_chain, make_host
from pyagent.core.backends import Answer, collect
from pyagent.core.chain import Chain
from pyagent.core.config import load_settings
from pyagent.core.errors import ConfigError, ModelError, RequestError, UnsupportedError
from pyagent.core.messages import ChatRequest, Hint
from pyagent.core.prompt_cache import ExplainPrompt, PinPrompt
from pyagent.infrastructure.engine.backend import NativeBackend
from pyagent.infrastructure.engine.client import LocalEngine
from pyagent.infrastructure.engine.memory.ledger import Ledger
from pyagent.infrastructure.engine.models.adapter_names import AdapterPaths
from pyagent.infrastructure.engine.models.adapter_pool import AdapterPool
from pyagent.infrastructure.engine.models.model_pool import ModelPool
from pyagent.infrastructure.observability.engine_metrics import collect_engines
from pyagent.infrastructure.server.app import create_app
from pyagent.testing import serve

LONG = "the user is at ease, and the system is on; " * 4
NAMES = ("tiny", "tiny:one", "tiny:two")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("adapters")
    write_tiny_model(folder / "tiny.gguf")
    for seed, name in enumerate(("one", "two", "three"), 1):
        write_adapter(folder / name, seed, rank=4 + seed)
    return folder


def adapted(folder: Path, *names: str, **of_engine: object):
    chosen = options(kv_type="f32", **of_engine)  # type: ignore[arg-type]
    return dataclasses.replace(chosen, adapters={name: str(folder / name) for name in names})


def of(model: str, request: ChatRequest) -> ChatRequest:
    return replace(request, model=model)


def told(answer: Answer) -> tuple[str, list[float]]:
    deltas = sorted(answer.deltas, key=lambda delta: delta.index)  # of several answers, which come as they are made
    return "".join(delta.content for delta in deltas), [one.logprob for delta in deltas for one in delta.logprobs]


def greedy(model: str, text: str = LONG, **sampling: object) -> ChatRequest:
    sampling = {"max_tokens": 12, "temperature": 0, "ignore_eos": True, "top_logprobs": 1} | sampling
    return of(model, chat(text, **sampling))


def test_requests_of_several_adapters_share_batches_and_answer_as_alone(folder: Path) -> None:
    """Greedy, seeded, of several answers, in chunks, preempted: what each model and adapter says does not change."""

    async def work() -> None:
        requests = [of(NAMES[at % 3], request) for at, request in enumerate(mixed_requests(12))]
        requests += [replace(of(name, greedy(name)), n=2) for name in NAMES]
        async with running(folder / "tiny.gguf", adapted(folder, "one", "two")) as backend:
            expected = [told(answer) for answer in await one_by_one(backend, requests)]
            assert len({told(answer)[0] for answer in await one_by_one(backend, [greedy(name) for name in NAMES])}) == 3
        cramped = adapted(folder, "one", "two", blocks=40, max_num_batched_tokens=24)
        async with running(folder / "tiny.gguf", cramped) as backend:
            for _ in range(2):  # and from the prefix cache
                assert [told(answer) for answer in await answers_at_once(backend, requests)] == expected

    run(work())


def test_what_one_adapter_computed_is_not_found_by_another(folder: Path) -> None:
    """The second request of each name takes its prompt from the cache, the first of the next one does not."""

    async def work() -> None:
        async with running(folder / "tiny.gguf", adapted(folder, "one", "two")) as backend:
            for name in NAMES:
                first, second = await one_by_one(backend, [greedy(name), greedy(name)])
                assert (
                    first.usage.prompt_tokens_details.cached_tokens,
                    second.usage.prompt_tokens_details.cached_tokens >= 16,
                ) == (0, True)
            await collect(backend.chat(greedy("tiny:two", "of " + LONG)))
            reports = [(await backend.query_cache(ExplainPrompt(greedy(name, "of " + LONG)))).report for name in NAMES]
            assert [report is not None and report.cached_tokens >= 48 for report in reports] == [False, False, True]
            assert (await backend.query_cache(PinPrompt("pin", greedy("tiny:one", LONG)))).num_tokens >= 16

    run(work())


def test_hints_reach_what_adapters_computed(folder: Path) -> None:
    """A conversation with an adapter is retained, and forgotten, as one with the bare model."""

    async def work() -> None:
        async with running(folder / "tiny.gguf", adapted(folder, "one")) as backend:
            model = await backend.load()
            await collect(backend.chat(replace(greedy("tiny:one"), session="a")))
            await asyncio.to_thread(model.hint, Hint(kind="retain", session="a"))
            assert model.runner.pool.stats().retained > 0
            await asyncio.to_thread(model.hint, Hint(kind="release", session="a"))
            assert model.runner.pool.stats().retained == 0

    run(work())


def test_adapters_are_listed_and_loaded_on_first_use(folder: Path) -> None:
    """The backend offers each as MODEL:NAME; it is in memory, and in the ledger, once a request named it."""

    async def work() -> None:
        async with running(folder / "tiny.gguf", adapted(folder, "one", "two")) as backend:
            assert [(model.id, model.is_loaded) for model in await backend.models()] == [
                (name, False) for name in NAMES
            ]
            answer = await collect(backend.chat(greedy("native:tiny:two")))
            assert {delta.model for delta in answer.deltas} == {"tiny:two"}
            listed = {model.id: model for model in await backend.models()}
            assert [listed[name].is_loaded for name in NAMES] == [True, False, True]
            assert 0 < listed["tiny:two"].size_bytes < listed["tiny"].size_bytes
            state = await backend.engine_state()
            assert state.memory["adapter:tiny:two"] == listed["tiny:two"].size_bytes
            (stats,) = state.adapters["tiny"].values()
            assert (stats.num_requests, stats.num_running, stats.num_loads, stats.rank) == (1, 0, 1, 6)
            rows = {
                sample.name: (sample.labels["adapter"], sample.value)
                for metric in collect_engines([state])
                for sample in metric.samples
                if "_adapter_" in sample.name
            }
            assert rows["pyagent_engine_adapter_requests_total"] == ("two", 1)
            assert rows["pyagent_engine_adapter_bytes"] == ("two", stats.num_bytes)
            assert (await backend.health()).is_ready
            with pytest.raises(RequestError, match="does not offer model 'tiny:three'"):
                await collect(backend.chat(greedy("tiny:three")))

    run(work())


def held(ledger: Ledger) -> set[str]:
    return {name.removeprefix("adapter:tiny:") for name in ledger.accounts() if name.startswith("adapter:")}


def test_idle_adapters_give_way_the_one_used_longest_ago_first(folder: Path) -> None:
    """In a ledger with room for two, a third takes the place of the idlest; what runs keeps its own."""

    async def work() -> None:
        chosen = dataclasses.replace(adapted(folder, "one", "two", "three"), kv_tokens=512)
        ledger = Ledger(1 << 30)
        pool = ModelPool(lambda _: folder / "tiny.gguf", chosen, ledger)
        backend = NativeBackend(["tiny"], LocalEngine(pool), look=lambda _: "")
        try:
            before = {name: (await one_by_one(backend, [greedy(f"tiny:{name}")]))[0].text for name in ("one", "two")}
            sizes = {key: size for key, size in ledger.accounts().items() if key.startswith("adapter:")}
            ledger.total_bytes = sum(ledger.accounts().values()) + max(sizes.values()) // 8
            await collect(backend.chat(greedy("tiny:one")))  # so that the other one is the idlest
            await collect(backend.chat(greedy("tiny:three")))
            assert held(ledger) == {"one", "three"}
            stream = backend.chat(greedy("tiny:one", max_tokens=300))
            await anext(stream)
            await collect(backend.chat(greedy("tiny:three")))
            await collect(backend.chat(greedy("tiny:two")))  # `one` is the idlest now, but runs
            assert held(ledger) == {"one", "two"}
            assert len([delta async for delta in stream]) > 50
            assert (await collect(backend.chat(greedy("tiny:two")))).text == before["two"]
            (await backend.load()).drop_kv()
            assert (await collect(backend.chat(greedy("tiny:one")))).text == before["one"]
            stats = (await backend.engine_state()).adapters["tiny"]
            assert stats["two"].num_loads == 2
        finally:
            await backend.close()
        assert not any(name.startswith("adapter") for name in ledger.accounts())

    run(work())


def test_a_faulty_adapter_ends_its_own_requests(folder: Path, tmp_path: Path) -> None:
    """The error names the file; the next request tries again, and finds it mended. The bare model answers meanwhile."""

    async def work() -> None:
        path = write_adapter(tmp_path / "bad", config={"peft_type": "IA3"})
        chosen = dataclasses.replace(options(), adapters={"bad": str(path), "gone": str(tmp_path / "gone")})
        async with running(folder / "tiny.gguf", chosen) as backend:
            for name, expected in (("bad", 'peft_type is "IA3"'), ("gone", "gone")):
                with pytest.raises(ModelError, match=expected):
                    await collect(backend.chat(greedy(f"tiny:{name}")))
            assert (await collect(backend.chat(greedy("tiny")))).text
            write_adapter(path)
            assert (await collect(backend.chat(greedy("tiny:bad")))).text

    run(work())


def test_an_adapter_is_known_by_its_content(folder: Path, tmp_path: Path) -> None:
    """Two names of equal files find each other's cached prompts; another content under a name finds nothing old."""

    async def work() -> None:
        shutil.copytree(folder / "one", tmp_path / "copy")
        paths = {"one": str(folder / "one"), "copy": str(tmp_path / "copy")}
        chosen = dataclasses.replace(options(), adapters=paths)
        async with running(folder / "tiny.gguf", chosen) as backend:
            await collect(backend.chat(greedy("tiny:one")))
            copied = await collect(backend.chat(greedy("tiny:copy")))
            assert copied.usage.prompt_tokens_details.cached_tokens >= 16
            model = await backend.load()
            assert len(set(model.adapters.ids())) == 1
            ledger = backend.engine.models.ledger
            ledger.total_bytes = sum(ledger.accounts().values())
            big = ledger.reserve("test", 1_000)  # for which one of the two gives way
            assert held(ledger) == {"copy"}
            again = await collect(backend.chat(greedy("tiny:copy")))
            assert again.text == copied.text
            big.release()

    run(work())


def test_the_settings_name_adapters_and_a_process_of_its_own_has_them(folder: Path) -> None:
    """`engine.adapters` reaches the engine, in this process and in one of its own: both answer alike."""

    async def work() -> None:
        path, texts = folder / "tiny.gguf", []
        for process in (False, True):
            async with engine_of(path, process=process, **{"engine.adapters": {"one": str(folder / "one")}}) as backend:
                assert [model.id for model in await backend.models()] == ["tiny", "tiny:one"]
                assert (await backend.health()).models == ["tiny", "tiny:one"]
                texts += [(await collect(backend.chat(greedy(f"{path}:one")))).text]
        assert texts[0] == texts[1]
        async with engine_of(
            path, process=False, **{"engine.adapters": {f"{path}:two": str(folder / "two")}}
        ) as backend:
            assert [model.id for model in await backend.models()] == ["tiny", "tiny:two"]

    run(work())


class ChangingRunner:
    """Opens whatever there is, and changes it as often as it is told."""

    def __init__(self, path: Path, num_changes: int) -> None:
        self.path, self.num_changes, self.ids = path, num_changes, set[int]()
        self.num_bytes, self.rank, self.is_dora = 10, 1, False

    def open_adapter(self, paths: Sequence[Path]) -> ChangingRunner:
        return self

    def step_bytes(self, num_tokens: int) -> int:
        return num_tokens

    def load(self, adapter_id: int) -> None:
        self.ids.add(adapter_id)
        if self.num_changes:
            self.num_changes -= 1
            self.path.write_bytes(self.path.read_bytes() + b"1")

    def remove_adapter(self, adapter_id: int) -> None:
        self.ids.remove(adapter_id)


def test_a_file_that_changes_while_it_is_loaded_is_not_taken_for_either(tmp_path: Path) -> None:
    """The request ends, with nothing held or loaded; the next one has the new content."""

    async def work() -> None:
        path = tmp_path / "a.gguf"
        path.write_bytes(b"0")
        runner, ledger = ChangingRunner(path, 1), Ledger(100)
        pool = AdapterPool("tiny", runner, AdapterPaths({"one": str(path)}), ledger.reserve, 8)  # type: ignore[arg-type]
        with pytest.raises(ModelError, match="was changed while it was loaded"):
            async with pool.using(("one",)):
                pass
        assert not runner.ids
        assert ledger.accounts() == {"adapters:tiny": 8}
        async with pool.using(("one",)) as adapter_id:
            assert runner.ids == {adapter_id}
            assert ledger.accounts() == {"adapter:tiny:one": 10, "adapters:tiny": 8}
        pool.release()
        assert ledger.accounts() == {}

    run(work())


def make_link(overrides: dict[str, object]) -> None:
    settings = load_settings(overrides=overrides).settings
    make_chain(settings, make_host(settings), ["native:smollm2:135m"])


def test_settings_that_cannot_be_meant_are_refused(folder: Path, tmp_path: Path) -> None:
    """An adapter called as a model's name ends, one without a name, one that is no path; paths are beside the file."""
    path = str(folder / "one")
    for adapters, expected in (
        ({"135m": path}, "'135m' is how the name of the model smollm2:135m ends"),
        ({"m:": path}, "expected a name without '/' and '[+]', or MODEL:NAME, got 'm:'"),
        ({"a/b": path}, "expected a name without '/' and"),
        ({"a": ""}, "expected a path for 'a'"),
        ({"a": 3}, "expected a path for 'a'"),
    ):
        with pytest.raises(ConfigError, match=expected):
            make_link({"engine.adapters": adapters})
    (tmp_path / "pyagent.toml").write_text('[engine.adapters]\none = "./one"\ntwo = "~/two"\n')
    adapters = load_settings(tmp_path / "pyagent.toml").settings.engine.adapters
    assert adapters == {"one": str(tmp_path / "one"), "two": "~/two"}


def test_a_runner_without_adapters_says_so() -> None:
    """One sentence that names the model, the adapter and what to set."""

    async def work() -> None:
        pool = AdapterPool("tiny", object(), AdapterPaths({"one": "x"}), Ledger(1).reserve, 8)  # type: ignore[arg-type]
        expected = "native:tiny runs on a runner without adapters; set engine.runner to cpu for 'one'"
        with pytest.raises(UnsupportedError, match=expected):
            async with pool.using(("one",)):
                pass

    run(work())


def test_every_api_takes_an_adapters_name_for_a_models(folder: Path) -> None:
    """OpenAI's, Anthropic's and Ollama's lists have it, and their requests are answered by it, as in Python."""

    async def expected() -> str:
        async with running(folder / "tiny.gguf", adapted(folder, "one")) as backend:
            return (await collect(backend.chat(of("tiny:one", chat("hello", max_tokens=8, temperature=0))))).text

    text = asyncio.run(expected())
    backend = NativeBackend.of("tiny", lambda: folder / "tiny.gguf", adapted(folder, "one"))
    messages = [{"role": "user", "content": "hello"}]
    with serve(create_app(Chain([backend]))) as url, httpx.Client(base_url=url, timeout=30) as client:
        listed = [model["id"] for model in client.get("/v1/models").json()["data"]]
        assert "tiny:one" in listed
        assert "tiny:one" in [model["name"] for model in client.get("/api/tags").json()["models"]]
        asked = {"model": "tiny:one", "messages": messages, "max_tokens": 8, "temperature": 0}
        openai = client.post("/v1/chat/completions", json=asked).json()
        assert (openai["choices"][0]["message"]["content"], openai["model"]) == (text, "tiny:one")
        anthropic = client.post("/v1/messages", json=asked).json()
        assert anthropic["content"][0]["text"] == text
        of_ollama = {"model": "tiny:one", "messages": messages, "stream": False}
        ollama = client.post("/api/chat", json=of_ollama | {"options": {"num_predict": 8, "temperature": 0}}).json()
        assert ollama["message"]["content"] == text
        refused = client.post("/v1/embeddings", json={"model": "tiny:one", "input": "a"})
        assert refused.status_code in {400, 404}
    asyncio.run(backend.close())
