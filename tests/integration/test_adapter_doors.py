"""Adapters over HTTP: loaded and unloaded while the server runs, by an administrator, and refused with a reason."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from msgspec.structs import replace
from support.command_line import COMMAND
from support.native import chat, engine_of, options, run, running
from support.server import keys
from support.tiny_adapter import tensors as adapter_tensors
from support.tiny_adapter import write_adapter, write_gguf_adapter
from support.tiny_model import write_tiny_model

from pyagent.cli.running_servers import announced
from pyagent.core.backends import Answer, collect
from pyagent.core.chain import Chain
from pyagent.core.errors import AdapterError, RequestError
from pyagent.core.settings import Server
from pyagent.infrastructure.engine.backend import NativeBackend
from pyagent.infrastructure.engine.client import EngineState
from pyagent.infrastructure.engine.stats import AdapterStats
from pyagent.infrastructure.observability.engine_metrics import collect_engines
from pyagent.infrastructure.server.app import create_app
from pyagent.testing import serve

CLIENT, ADMIN = "sk-client-0123456789", "sk-admin-0123456789"
AS_ADMIN = {"authorization": f"Bearer {ADMIN}"}
LOAD, UNLOAD = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"
HELLO = [{"role": "user", "content": "hello"}]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("doors")
    write_tiny_model(folder / "tiny.gguf")
    for seed, name in enumerate(("one", "two"), 1):
        write_adapter(folder / name, seed, rank=4 + seed)
    return folder


@contextmanager
def served(folder: Path, *, is_on: bool = True, **adapters: str) -> Iterator[httpx.Client]:
    """A server over the tiny model, asked with an administrator's key unless a request has another."""
    backend = NativeBackend.of(
        "tiny", lambda: folder / "tiny.gguf", dataclasses.replace(options(), adapters=dict(adapters))
    )
    settings = Server(allow_runtime_lora_updating=is_on)
    app = create_app(Chain([backend]), api_keys=keys(CLIENT, admin=ADMIN), settings=settings)
    with serve(app) as url, httpx.Client(base_url=url, timeout=30, headers=AS_ADMIN) as client:
        yield client
    asyncio.run(backend.close())


def answer(client: httpx.Client, model: str) -> httpx.Response:
    asked = {"model": model, "messages": HELLO, "max_tokens": 8, "temperature": 0}
    return client.post("/v1/chat/completions", json=asked)


def text(client: httpx.Client, model: str) -> str:
    found = answer(client, model)
    assert found.status_code == 200, found.text
    return found.json()["choices"][0]["message"]["content"]


def names(client: httpx.Client) -> list[str]:
    return [model["id"] for model in client.get("/v1/models").json()["data"]]


def test_an_adapter_is_loaded_answers_is_replaced_and_unloaded(folder: Path) -> None:
    """vLLM's fields and words: offered at once after it is loaded, and not after it is unloaded; twice is refused."""
    one, two = ({"lora_name": "a", "lora_path": str(folder / name)} for name in ("one", "two"))
    with served(folder) as client:
        bare = text(client, "tiny")
        assert answer(client, "tiny:a").status_code == 404
        loaded = client.post(LOAD, json=one)
        assert (loaded.status_code, loaded.text) == (200, "Success: LoRA adapter 'tiny:a' added successfully.")
        assert names(client) == ["tiny", "tiny:a"]
        first = text(client, "tiny:a")
        assert first != bare
        again = client.post(LOAD, json=two)
        assert (again.status_code, again.json()["error"]["param"]) == (400, "lora_name")
        assert "there already" in again.text
        assert text(client, "tiny:a") == first
        assert client.post(LOAD, json=two | {"load_inplace": True}).status_code == 200
        second = text(client, "tiny:a")
        assert second not in {first, bare}
        removed = client.post(UNLOAD, json={"lora_name": "a"})
        assert (removed.status_code, removed.text) == (200, "Success: LoRA adapter 'a' removed successfully.")
        assert names(client) == ["tiny"]
        assert answer(client, "tiny:a").status_code == 404
        assert client.post(UNLOAD, json={"lora_name": "a"}).status_code == 404
        memory = client.get("/pyagent/engine").json()
        assert not [name for engine in memory.values() for name in engine["memory"] if name.startswith("adapter:")]
        assert client.post(LOAD, json=one | {"lora_name": "tiny:b"}).status_code == 200
        assert (text(client, "tiny:b"), text(client, "tiny")) == (first, bare)


def test_one_that_the_settings_name_is_unloaded_too(folder: Path) -> None:
    """By its own name or the model's with it; an adapter whose path leads nowhere is offered, but not said ready."""
    with served(folder, one=str(folder / "one"), gone=str(folder / "gone")) as client:
        assert names(client) == ["tiny", "tiny:one", "tiny:gone"]
        health = client.get("/health").json()
        assert health["models"] == ["tiny", "tiny:one"]
        assert "tiny:gone cannot answer: there is nothing at gone" in health["detail"]
        for name in ("tiny:one", "gone"):
            assert client.post(UNLOAD, json={"lora_name": name}).status_code == 200
        assert names(client) == ["tiny"]


def test_the_doors_are_an_administrators_and_shut_unless_they_are_set(folder: Path) -> None:
    """A client's key gets 403, no key 401, and whoever asks 404 where `allow_runtime_lora_updating` is not set."""
    body = {"lora_name": "a", "lora_path": str(folder / "one")}
    as_client = {"authorization": f"Bearer {CLIENT}"}
    with served(folder) as client:
        for path in (LOAD, UNLOAD):
            sent = body if path == LOAD else {"lora_name": "a"}
            assert client.post(path, json=sent, headers=as_client).status_code == 403
            assert client.post(path, json=sent, headers={"authorization": ""}).status_code == 401
        assert names(client) == ["tiny"]
    with served(folder, is_on=False) as client:
        for path in (LOAD, UNLOAD):
            refused = client.post(path, json=body)
            assert refused.status_code == 404
            assert "set server.allow_runtime_lora_updating" in refused.text
        assert names(client) == ["tiny"]


def test_what_cannot_be_loaded_is_refused_and_not_offered(folder: Path, tmp_path: Path) -> None:
    """400 with the reason, for names, paths and files; nothing of it stays, and what a replacement failed for does."""
    bad = write_adapter(tmp_path / "bad", config={"peft_type": "IA3"})
    os.mkfifo(tmp_path / "pipe")
    good = str(folder / "one")
    with served(folder) as client:
        for name, path, reason in (
            ("a", str(bad), "peft_type is"),
            ("a", str(tmp_path / "none"), "No such file"),
            ("a", str(tmp_path / "pipe"), "not an adapter"),
            ("a", "", "expected the path"),
            ("a", "x\0y", "expected the path"),
            ("a", "x\nforged: a line of the log", "expected the path"),
            ("a", "x" * 5000, "expected the path"),
            ("a", "~nosuchuser/x", "home directory"),
            ("", good, "expected a name"),
            ("a/b", good, "expected a name"),
            ("other:8b:a", good, "expected a name"),
            ("a\n", good, "expected a name"),
            ("a" * 5000, good, "at most"),
        ):
            refused = client.post(LOAD, json={"lora_name": name, "lora_path": path})
            assert refused.status_code == 400, (name, path[:80], refused.text)
            error = refused.json()["error"]
            assert reason in error["message"]
            assert error["param"] == ("lora_path" if name == "a" else "lora_name")
            assert str(tmp_path) not in refused.text
        assert client.post(LOAD, json=[]).status_code == 400
        assert client.post(LOAD, json={"lora_name": "a"}).status_code == 400
        assert names(client) == ["tiny"]
        assert client.post(LOAD, json={"lora_name": "a", "lora_path": good}).status_code == 200
        first = text(client, "tiny:a")
        worse = {"lora_name": "a", "lora_path": str(bad), "load_inplace": True}
        assert client.post(LOAD, json=worse).status_code == 400
        assert text(client, "tiny:a") == first


def broken(path: Path) -> Path:
    given = adapter_tensors()
    given.pop("base_model.model.model.layers.0.mlp.up_proj.lora_B.weight")
    return write_adapter(path, given=given)


def not_finite(path: Path) -> Path:
    given = adapter_tensors()
    next(iter(given.values()))[1][0] = float("nan")
    return write_gguf_adapter(path.with_suffix(".gguf"), given)


def test_an_unusable_adapter_is_the_requests_fault_and_named(folder: Path, tmp_path: Path) -> None:
    """Every API answers 400 with the adapter's name and the reason, without this machine's folders; others answer."""
    makers: dict[str, Callable[[Path], Path]] = {
        "empty": lambda path: path,
        "kind": lambda path: write_adapter(path, config={"peft_type": "IA3"}),
        "part": broken,
        "nan": not_finite,
    }
    reasons = {"empty": "No such file", "kind": "peft_type is", "part": "has no lora_B", "nan": "not finite"}
    adapters = {name: str(make(tmp_path / name)) for name, make in makers.items()}
    with served(folder, **adapters) as client:
        for name, reason in reasons.items():
            refused = answer(client, f"tiny:{name}")
            error = refused.json()["error"]
            assert (refused.status_code, error["code"], error["param"]) == (400, "adapter_unusable", "model")
            assert f"the adapter {name!r} of native:tiny cannot be used" in error["message"]
            assert reason in error["message"]
            assert str(tmp_path) not in refused.text
        for path, asked in (
            ("/v1/messages", {"max_tokens": 8}),
            ("/api/chat", {"stream": False}),
            ("/v1/responses", {"input": "hello"}),
        ):
            body = {"model": "tiny:kind", "messages": HELLO} | asked
            refused = client.post(
                path, json={key: body[key] for key in body if "input" not in body or key != "messages"}
            )
            assert refused.status_code == 400, refused.text
            assert "the adapter 'kind' of native:tiny cannot be used" in refused.text
        assert text(client, "tiny")
        assert 'pyagent_engine_adapter_failed_loads_total{adapter="kind"' in client.get("/metrics").text


def test_models_show_lists_a_models_adapters(folder: Path, tmp_path: Path) -> None:
    """Each with its method, rank, bytes and matrices; whether a server of this user's has it loaded; or why not."""
    path, data = folder / "tiny.gguf", tmp_path / "data"
    adapters = {"one": str(folder / "one"), f"{path}:two": str(folder / "two"), "gone": str(tmp_path / "gone")}
    tables = "".join(f"{json.dumps(name)} = {json.dumps(where)}\n" for name, where in adapters.items())
    (tmp_path / "pyagent.toml").write_text(f"[paths]\ndata = {json.dumps(str(data))}\n[engine.adapters]\n{tables}")
    command = [*COMMAND, "models", "show", str(path), "--config", str(tmp_path / "pyagent.toml")]

    def show(*more: str) -> str:
        return subprocess.run([*command, *more], capture_output=True, text=True, timeout=60, check=True).stdout

    lines = show().split("adapters ")[1].splitlines()
    assert lines[0].strip().startswith("one: LoRA, rank 5, 37.1 kB; adds to down_proj, gate_proj, k_proj, o_proj")
    assert lines[1].strip().startswith("gone: cannot be used: ")
    assert lines[2].strip().startswith("two: LoRA, rank 6, ")
    backend = NativeBackend.of(str(path), lambda: path, dataclasses.replace(options(), adapters=adapters))
    with serve(create_app(Chain([backend]))) as url, announced(data, "127.0.0.1", int(url.rsplit(":", 1)[1])):
        with httpx.Client(base_url=url, timeout=30) as client:
            text(client, f"{path}:two")
        cards = {card["name"]: card for card in json.loads(show("--json"))["adapters"]}
    assert {name: card.get("is_loaded") for name, card in cards.items()} == {"one": False, "two": True, "gone": None}
    assert cards["two"]["loaded_bytes"] >= cards["two"]["tensor_bytes"] > 0
    asyncio.run(backend.close())


def test_what_runs_with_an_unloaded_adapter_ends_as_it_began(folder: Path) -> None:
    """Its bytes stay until the last request ends; one that names the adapter meanwhile is refused."""

    async def work() -> None:
        request = replace(chat("hello", max_tokens=200, temperature=0, ignore_eos=True), model="tiny:a")
        async with running(folder / "tiny.gguf") as backend:
            assert await backend.load_adapter("a", str(folder / "one")) == "tiny:a"
            expected = (await collect(backend.chat(request))).text
            stream = backend.chat(request)
            begun = [await anext(stream)]
            await backend.unload_adapter("a")
            with pytest.raises(RequestError, match="does not offer model 'tiny:a'"):
                await collect(backend.chat(request))
            assert "adapter:tiny:a" in (await backend.engine_state()).memory
            begun += [delta async for delta in stream]
            assert "".join(delta.content for delta in begun) == expected
            for _ in range(200):
                if "adapter:tiny:a" not in (await backend.engine_state()).memory:
                    break
                await asyncio.sleep(0.01)
            assert "adapter:tiny:a" not in (await backend.engine_state()).memory
            with pytest.raises(AdapterError):
                await backend.load_adapter("a", str(folder / "none"))
            assert await backend.load_adapter("a", str(folder / "two")) == "tiny:a"
            assert (await collect(backend.chat(request))).text != expected

    run(work())


def test_one_of_many_loads_of_a_name_succeeds(folder: Path, tmp_path: Path) -> None:
    """The others are told that it is there; requests are answered by it while replacements fail."""

    async def work() -> None:
        bad = write_adapter(tmp_path / "bad", config={"peft_type": "IA3"})
        async with running(folder / "tiny.gguf") as backend:
            name_adapter, seen = backend.engine.name_adapter, set[tuple[str, ...]]()

            async def slowly(key: str, path: str) -> None:
                await asyncio.sleep(0.01)
                await name_adapter(key, path)
                seen.add(backend.model_names)

            backend.engine.name_adapter = slowly  # type: ignore[method-assign]
            loads = [backend.load_adapter("a", str(folder / "one")) for _ in range(8)]
            results = await asyncio.gather(*loads, return_exceptions=True)
            assert sorted(type(result).__name__ for result in results) == ["RequestError"] * 7 + ["str"]
            request = replace(chat("hello", max_tokens=8, temperature=0), model="tiny:a")
            expected = (await collect(backend.chat(request))).text
            replacing = [backend.load_adapter("a", str(bad), replaces=True) for _ in range(8)]
            asking = [collect(backend.chat(request)) for _ in range(8)]
            *found, last = await asyncio.gather(*replacing, *asking, return_exceptions=True)
            assert [type(result) for result in found[:8]] == [AdapterError] * 8
            assert {answer.text for answer in [*found[8:], last] if isinstance(answer, Answer)} == {expected}
            assert seen == {("tiny", "tiny:a")}

    run(work())


def test_each_adapters_work_is_counted(folder: Path) -> None:
    """Requests, their seconds, loads and evictions are metrics by adapter."""

    async def work() -> None:
        adapters = {name: str(folder / name) for name in ("one", "two")}
        async with running(folder / "tiny.gguf", dataclasses.replace(options(), adapters=adapters)) as backend:
            request = chat("hello", max_tokens=4, temperature=0)
            for name in ("one", "two", "one"):
                await collect(backend.chat(replace(request, model=f"tiny:{name}")))
            ledger = (await backend.load()).engine  # loaded
            assert ledger is not None
            held = backend.engine.models.ledger  # type: ignore[attr-defined]
            held.total_bytes = sum(held.accounts().values())
            held.reserve("test", 1_000)  # for which the one used longest ago gives way
            rows = {
                (
                    sample.name.removeprefix("pyagent_engine_adapter_") + sample.labels.get("le", ""),
                    sample.labels["adapter"],
                ): sample.value
                for metric in collect_engines([await backend.engine_state()])
                for sample in metric.samples
                if "_adapter_" in sample.name
            }
            assert [rows["requests_total", name] for name in adapters] == [2, 1]
            assert [rows["loads_total", name] for name in adapters] == [1, 1]
            assert [rows["evictions_total", name] for name in adapters] == [0, 1]
            assert rows["bytes", "one"] > rows["bytes", "two"] == 0
            for name in adapters:
                assert rows["request_seconds_sum", name] > rows["load_seconds_total", name] > 0
                buckets = [value for (row, of), value in rows.items() if "seconds_bucket" in row and of == name]
                assert len(buckets) == 11
                assert buckets == sorted(buckets)
                assert buckets[-1] == rows["requests_total", name] == rows["request_seconds_count", name]

    run(work())


def test_few_adapters_have_a_histogram() -> None:
    """Each has a row for each bound: of many adapters those have one that were asked most."""
    adapters = {f"a{number}": AdapterStats(num_requests=number, requests_within={"+Inf": 1.0}) for number in range(150)}
    state = EngineState(state="ready", adapters={"m": adapters})
    samples = [sample for metric in collect_engines([state]) for sample in metric.samples]
    told = {sample.labels["adapter"] for sample in samples if sample.name.endswith("adapter_request_seconds_bucket")}
    assert told == {f"a{number}" for number in range(50, 150)}
    assert sum(sample.name.endswith("adapter_requests_total") for sample in samples) == 150


def test_a_process_of_its_own_keeps_what_was_loaded_when_it_dies(folder: Path) -> None:
    """An engine in another process loads and unloads too; the process after a killed one has the same adapters."""

    async def work() -> None:
        path = folder / "tiny.gguf"
        async with engine_of(path, **{"engine.adapters": {"one": str(folder / "one")}}) as backend:
            request = replace(chat("hello", max_tokens=8, temperature=0), model=f"{path}:two")
            await backend.load_adapter("two", str(folder / "two"))
            await backend.unload_adapter("one")
            expected = (await collect(backend.chat(request))).text
            process_id = (await backend.engine_state()).process_id
            assert process_id is not None
            os.kill(process_id, signal.SIGKILL)
            assert (await collect(backend.chat(request))).text == expected
            assert (await backend.engine_state()).process_id != process_id
            with pytest.raises(RequestError, match="does not offer"):
                await collect(backend.chat(replace(request, model=f"{path}:one")))

    run(work())
