"""`MODEL:A+B` in the embedded engine and over HTTP: answered by both adapters, counted, refused with a reason."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from integration.test_adapter_doors import HELLO, LOAD, UNLOAD, answer, names, served, text
from integration.test_adapters import adapted, greedy, held, told
from support.native import at_once, engine_of, one_by_one, run, running
from support.tiny_adapter import write_adapter
from support.tiny_model import write_tiny_model

from pyagent.core.backends import collect
from pyagent.core.chain import Chain
from pyagent.core.cluster.adverts import Offer
from pyagent.core.cluster.peers import Standing
from pyagent.core.config import load_settings
from pyagent.core.errors import AdapterError, ConfigError, RequestError

NAMES = ("tiny", "tiny:one", "tiny:two", "tiny:one+two", "tiny:one+three+two")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stacks")
    write_tiny_model(folder / "tiny.gguf")
    for seed, name in enumerate(("one", "two", "three"), 1):
        write_adapter(folder / name, seed, rank=4 + seed)
    write_adapter(folder / "dora", 5, is_dora=True)
    return folder


def test_requests_of_several_and_of_one_share_batches_and_answer_as_alone(folder: Path) -> None:
    """Preempted and from the prefix cache too; `A+B` and `B+A` are one, and find each other's cached prompts."""

    async def work() -> None:
        requests = [greedy(name, "the user is at ease, and the system is on; " * 4) for name in NAMES]
        async with running(folder / "tiny.gguf", adapted(folder, "one", "two", "three")) as backend:
            answers = await one_by_one(backend, requests)
            assert [answer.usage.prompt_tokens_details.cached_tokens for answer in answers] == [0] * 5
            expected = [told(answer) for answer in answers]
            assert len({content for content, _ in expected}) == 5
            turned = await collect(backend.chat(greedy("native:tiny:two+one")))
            assert turned.usage.prompt_tokens_details.cached_tokens >= 16
            assert (told(turned), turned.deltas[0].model) == (expected[3], "tiny:two+one")
            assert [model.id for model in await backend.models()] == ["tiny", "tiny:one", "tiny:two", "tiny:three"]
        cramped = adapted(folder, "one", "two", "three", blocks=40, max_num_batched_tokens=24)
        async with running(folder / "tiny.gguf", cramped) as backend:
            for _ in range(2):
                assert [told(answer) for answer in await at_once(backend, requests * 2)] == expected * 2

    run(work())


def test_several_are_counted_in_memory_and_forgotten_when_they_go(folder: Path) -> None:
    """One account, one row of counts; both are gone once it gave way, and it is loaded again."""

    async def work() -> None:
        async with running(folder / "tiny.gguf", adapted(folder, "one", "two")) as backend:
            before = (await collect(backend.chat(greedy("tiny:two+one")))).text
            ledger = backend.engine.models.ledger  # type: ignore[attr-defined]
            stats = (await backend.engine_state()).adapters["tiny"]
            assert held(ledger) == stats.keys() == {"one+two"}
            assert (stats["one+two"].num_loads, stats["one+two"].rank) == (1, 11)
            assert stats["one+two"].num_bytes == ledger.accounts()["adapter:tiny:one+two"] > 0
            await collect(backend.chat(greedy("tiny:one")))
            ledger.total_bytes = sum(ledger.accounts().values())
            big = ledger.reserve("test", 1_000)  # for which the one used longest ago gives way
            assert held(ledger) == (await backend.engine_state()).adapters["tiny"].keys() == {"one"}
            big.release()
            assert (await collect(backend.chat(greedy("tiny:one+two")))).text == before

    run(work())


def test_what_fails_leaves_nothing(folder: Path, tmp_path: Path) -> None:
    """A part that cannot be used is named with the reason; no count and no byte stays; it answers once it is mended."""

    async def work() -> None:
        bad = write_adapter(tmp_path / "bad", config={"peft_type": "IA3"})
        chosen = adapted(folder, "one", "dora")
        chosen = dataclasses.replace(chosen, adapters={**chosen.adapters, "bad": str(bad), "gone": str(tmp_path / "x")})
        async with running(folder / "tiny.gguf", chosen) as backend:
            for name, reason in (
                ("one+bad", "'bad': .*peft_type is"),
                ("one+gone", "'gone': .*No such file"),
                ("dora+one", "'dora' is a DoRA, which resizes what others add and does not add up; name it alone"),
            ):
                shown = r"\+".join(sorted(name.split("+")))
                with pytest.raises(
                    AdapterError, match=f"the adapter '{shown}' of native:tiny cannot be used: {reason}"
                ):
                    await collect(backend.chat(greedy(f"tiny:{name}")))
            state = await backend.engine_state()
            assert state.adapters == {}
            assert not [account for account in state.memory if account.startswith("adapter")]
            write_adapter(bad)
            assert (await collect(backend.chat(greedy("tiny:one+bad")))).text
            assert (await collect(backend.chat(greedy("tiny:dora")))).text

    run(work())


def test_every_api_takes_several_and_names_what_is_wrong(folder: Path) -> None:
    """OpenAI's, Anthropic's and Ollama's; they are shown but not listed, and a faulty name is a 404 with its part."""
    adapters = {name: str(folder / name) for name in ("one", "two", "dora")}
    with served(folder, **adapters) as client:
        expected = text(client, "tiny:one+two")
        assert len({expected, *(text(client, f"tiny{end}") for end in ("", ":one", ":two"))}) == 4
        assert text(client, "native:tiny:two+one") == expected
        asked = {"model": "tiny:two+one", "messages": HELLO, "max_tokens": 8, "temperature": 0}
        assert client.post("/v1/messages", json=asked).json()["content"][0]["text"] == expected
        of_ollama = {"model": "tiny:two+one", "messages": HELLO, "stream": False}
        answered = client.post("/api/chat", json=of_ollama | {"options": {"num_predict": 8, "temperature": 0}}).json()
        assert (answered["message"]["content"], answered["model"]) == (expected, "tiny:two+one")
        assert names(client) == ["tiny", "tiny:one", "tiny:two", "tiny:dora"]
        assert client.get("/v1/models/tiny:one+two").json()["id"] == "tiny:one+two"
        assert client.post("/api/show", json={"model": "tiny:one+two"}).status_code == 200
        assert 'pyagent_engine_adapter_loads_total{adapter="one+two",engine="0",model="tiny"} 1.0' in (
            client.get("/metrics").text
        )
        for name, status, reason in (
            ("one+tow", 404, "tiny has no adapter 'tow'; did you mean 'two'?"),
            ("one+", 404, "a name of an adapter is empty in 'one+'"),
            ("two+two", 404, "the adapter 'two' is named twice"),
            ("+".join("abcdefghi"), 404, "9 adapters are named at once; expected at most 8"),
            ("dora+two", 400, "the adapter 'dora+two' of native:tiny cannot be used: 'dora' is a DoRA"),
        ):
            refused = answer(client, f"tiny:{name}")
            assert (refused.status_code, reason in refused.text) == (status, True), refused.text
        assert text(client, "tiny:one+two") == expected


def test_a_chain_and_a_cluster_know_who_has_several(folder: Path) -> None:
    """The link, or the node, that lists the model with each of them, and no other."""

    async def work() -> None:
        async with running(folder / "tiny.gguf", adapted(folder, "one", "two")) as backend:
            chain, peer = Chain([backend]), Standing(offer=Offer(models=tuple(await backend.models())))
            for name, is_there in (("tiny:two+one", True), ("tiny:one+three", False), ("tiny:one+one", False)):
                assert (await chain.has_model(name), peer.has(name)) == (is_there, is_there)

    run(work())


def test_a_part_that_is_replaced_or_unloaded_takes_its_stacks_along(folder: Path) -> None:
    """What has it is computed anew, or refused; no adapter's own name has a `+`."""
    with served(folder, one=str(folder / "one")) as client:
        body = {"lora_name": "a", "lora_path": str(folder / "two")}
        assert client.post(LOAD, json=body).status_code == 200
        first = text(client, "tiny:one+a")
        replacing = body | {"lora_path": str(folder / "three"), "load_inplace": True}
        assert client.post(LOAD, json=replacing).status_code == 200
        assert text(client, "tiny:a+one") != first
        assert client.post(UNLOAD, json={"lora_name": "a+one"}).status_code == 404
        assert client.post(UNLOAD, json={"lora_name": "a"}).status_code == 200
        memory = client.get("/pyagent/engine").json()
        assert not [name for engine in memory.values() for name in engine["memory"] if name.startswith("adapter:")]
        refused = answer(client, "tiny:one+a")
        assert (refused.status_code, "tiny has no adapter 'a'" in refused.text) == (404, True)
        for name in ("b+c", "tiny:b+c"):
            named = client.post(LOAD, json=body | {"lora_name": name})
            assert (named.status_code, "'/', ':' and '+'" in named.text) == (400, True)
    with pytest.raises(ConfigError, match="expected a name without '/' and '\\+', or MODEL:NAME, got 'a\\+b'"):
        load_settings(overrides={"engine.adapters": {"a+b": str(folder / "one")}})


def test_an_engine_in_a_process_of_its_own_answers_alike(folder: Path) -> None:
    """The name reaches it whole; a backend without a chain refuses a faulty one by itself."""

    async def work() -> None:
        path, texts = folder / "tiny.gguf", []
        adapters = {name: str(folder / name) for name in ("one", "two")}
        for process in (False, True):
            async with engine_of(path, process=process, **{"engine.adapters": adapters}) as backend:
                texts += [(await collect(backend.chat(greedy(f"{path}:two+one")))).text]
                with pytest.raises(RequestError, match="native:tiny: tiny has no adapter 'tow'; did you mean 'two'"):
                    await collect(backend.chat(greedy("tiny:one+tow")))
        assert texts[0] == texts[1]

    run(work())
