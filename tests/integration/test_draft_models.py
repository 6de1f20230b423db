"""A draft model changes no answer; what it drafts is what it would write, whatever was accepted before."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.counting_runner import Client
from support.draft_models import BY_MODEL, EagerlyDrafted, eagerly_drafted, with_draft_model
from support.encoder_decoders import write_t5
from support.hybrid_model import write_hybrid
from support.native import assert_idle, at_once, chat, engine_of, options, run, running
from support.requests_of_all_kinds import requests_of_all_kinds, told
from support.server import serving
from support.tiny_encoder import write_encoder
from support.tiny_model import vocabulary, write_tiny_model
from support.waiting import until

from pyagent.core.backends import collect
from pyagent.core.errors import ConfigError
from pyagent.core.runners.batch import PrefixKey
from pyagent.core.runners.runner import ModelRunner
from pyagent.infrastructure.engine.backend import NativeBackend
from pyagent.infrastructure.engine.drafts.draft_model import DraftModel
from pyagent.infrastructure.engine.memory.ledger import Ledger
from pyagent.infrastructure.engine.models.draft_loading import FoundDraft, find_draft
from pyagent.infrastructure.engine.models.memory_estimate import DraftMemory
from pyagent.infrastructure.engine.runners.cpu import CpuRunner
from pyagent.infrastructure.engine.runners.cpu_factory import CpuRunnerFactory


@pytest.fixture(scope="module")
def other_model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model's shape and vocabulary, with other weights: nearly all that it drafts is wrong."""
    return write_tiny_model(tmp_path_factory.mktemp("draft") / "draft.gguf", seed=8)


async def assert_forgotten(eager: EagerlyDrafted) -> None:
    """The draft model holds no pages, and its pool is in order."""
    pool = eager.model.model.runner.pool  # type: ignore[union-attr]
    await until(lambda: pool.stats().active == 0)
    pool.check()


def test_answers_of_every_kind_are_the_same(tiny_model_path: Path, other_model_path: Path) -> None:
    """In one batch, drafted by the model itself and by one that is wrong, beside copies of text."""

    async def work() -> None:
        asked = requests_of_all_kinds()
        async with running(tiny_model_path) as backend:
            expected = [told(answer) for answer in await at_once(backend, asked)]
        for draft, least in ((tiny_model_path, 300), (other_model_path, 0)):
            async with eagerly_drafted(tiny_model_path, draft) as (backend, eager):
                assert [told(answer) for answer in await at_once(backend, asked)] == expected
                assert eager.counts.num_accepted_tokens >= least
                assert eager.counts.num_draft_tokens > 1_000
                await assert_forgotten(eager)

    run(work())


@pytest.mark.parametrize("scheduling", ["on", "off"])
def test_a_model_that_is_its_targets_copy_is_always_right(tiny_model_path: Path, scheduling: Any) -> None:
    """Greedy: so its KV is that of the log, after copies of text, refused drafts and preemptions too."""

    async def work() -> None:
        chosen = replace(options(blocks=28, max_num_batched_tokens=40), async_scheduling=scheduling)
        asked = [chat("the user is " * at, max_tokens=120, ignore_eos=True, temperature=0) for at in range(1, 7)]
        async with running(tiny_model_path, chosen) as backend:
            expected = [told(answer) for answer in await at_once(backend, asked)]
        async with eagerly_drafted(tiny_model_path, tiny_model_path, chosen, copies=0) as (backend, eager):
            await at_once(backend, [chat("on", max_tokens=2, seed=number) for number in range(12)])
            before = eager.counts.num_draft_tokens - eager.counts.num_accepted_tokens
            assert [told(answer) for answer in await at_once(backend, asked)] == expected
            engine = (await backend.load()).engine  # type: ignore[attr-defined]
            assert engine.scheduler.num_preemptions.total() > 0
            await assert_idle(backend)
            await assert_forgotten(eager)
        assert eager.counts.num_draft_tokens - eager.counts.num_accepted_tokens == before
        assert eager.counts.num_accepted_tokens > 200

    run(work())


@pytest.mark.parametrize("kind", ["full", "windows"])
def test_drafts_are_what_the_model_would_write(tiny_model_path: Path, tiny_gemma_path: Path, kind: str) -> None:
    """After any number of accepted and refused drafts, as if the log had been computed anew."""
    path = tiny_model_path if kind == "full" else tiny_gemma_path
    warm, cold = (DraftModel(CpuRunner(path, options(threads=1).runner), 1 << 20, 8, 1.0) for _ in range(2))
    draw = random.Random(2)
    requests = [Client(at, draw.choices(range(3, 200), k=40 * at + 1), 1).request for at in range(3)]
    for turn in range(30):
        running = {request.id for request in requests}
        asked = [(request, draw.randrange(1, 8)) for request in requests if draw.random() < 0.8]
        while any(warm.num_behind(request) > 16 for request, _ in asked):
            warm.catch_up([request for request, _ in asked], running)
        drafted = warm.draft(asked, running, lambda *_: True)
        assert [request for request, *_ in drafted] == [request for request, _ in asked]
        for request, tokens, probabilities in drafted:
            for place in range(len(tokens) if turn % 6 == 0 else 0):
                cold.runner.pool.clear_index()
                alone = Client(100 + place, request.tokens + tokens[:place], 1).request
                ((_, expected, chances),) = cold.draft([(alone, 1)], running, lambda *_: True)
                cold.end(alone)
                assert (tokens[place : place + 1], probabilities[place : place + 1]) == (expected, chances)
            request.tokens += tokens[: draw.randrange(len(tokens) + 1)]
        for request in requests:
            request.tokens.append(draw.randrange(3, 200))
    for request in requests:
        warm.end(request)
    assert warm.runner.pool.stats().active == 0
    warm.runner.pool.check()


def test_tokens_that_the_target_has_not_are_not_proposed(tiny_model_path: Path) -> None:
    """A draft model with a longer vocabulary ends its draft where it would write a token beyond the target's."""
    runner = CpuRunner(tiny_model_path, options(threads=1).runner)
    whole = DraftModel(runner, 1 << 20, 8, 1.0)
    request = Client(0, [5, 80, 11, 200, 45], 1).request
    ((_, tokens, _),) = whole.draft([(request, 6)], {0}, lambda *_: True)
    whole.end(request)
    assert len(tokens) == 6
    least = max(tokens)
    cut = DraftModel(CpuRunner(tiny_model_path, options(threads=1).runner), least, 8, 1.0)
    drafted = cut.draft([(Client(1, [5, 80, 11, 200, 45], 1).request, 6)], {1}, lambda *_: True)
    assert [token for _, one, _ in drafted for token in one] == tokens[: tokens.index(least)]


def test_what_the_model_cannot_follow_is_answered_without_it(tmp_path: Path, tiny_model_path: Path) -> None:
    """A log longer than its context, and tokens that its vocabulary lacks."""
    short = write_tiny_model(tmp_path / "short.gguf", seed=7, llama__context_length=64)

    async def work() -> None:
        asked = [chat("on", max_tokens=150, temperature=0, ignore_eos=True)]
        async with running(tiny_model_path) as backend:
            expected = [told(answer) for answer in await at_once(backend, asked)]
        async with eagerly_drafted(tiny_model_path, short, copies=0) as (backend, eager):
            assert [told(answer) for answer in await at_once(backend, asked)] == expected
            assert 20 < eager.counts.num_accepted_tokens < 64
            model = eager.model.model  # type: ignore[union-attr]
            few = Client(1_000, [3, 4, model.runner.vocab_size + 5], 10).request
            assert model.draft([(few, 3)], {few.id}, lambda *_: True) == []
            assert not model.can_follow(few)
            model.end(few)

    run(work())


def test_memory_of_a_draft_model_is_in_the_ledger_and_given_back(tiny_model_path: Path, other_model_path: Path) -> None:
    """Weights, workspace and KV in accounts of their own; with the model they are gone."""

    async def work() -> None:
        async with eagerly_drafted(tiny_model_path, other_model_path) as (backend, eager):
            await at_once(backend, [chat("on", max_tokens=20, ignore_eos=True)])
            pool = backend.engine.models  # type: ignore[attr-defined]
            accounts = pool.accounts()
            runner = eager.model.model.runner  # type: ignore[union-attr]
            assert accounts["draft_weights:tiny"] == runner.info.weight_bytes
            assert accounts["draft_kv:tiny"] >= runner.info.page_bytes
            assert accounts["draft_workspace:tiny"] > 0
            pool.loaded()["tiny"].drop_kv()
            assert "draft_kv:tiny" not in pool.accounts()
            pool.unload("tiny")
            assert not any("tiny" in account for account in pool.accounts())

    run(work())


def test_draft_models_that_cannot_be_are_gone_without(
    tmp_path: Path, tiny_model_path: Path, smollm2_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Another vocabulary, no such model, a broken file, no memory: answers are the same, and a sentence says why."""
    tokens, _ = vocabulary()
    tokens[100], tokens[101] = tokens[101], tokens[100]
    other = write_tiny_model(tmp_path / "other.gguf", tokenizer__ggml__tokens=tokens)
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(other.read_bytes()[:5_000])

    async def told(backend: NativeBackend, expected: str | None = None) -> str:
        answer = await collect(backend.chat(chat("on", max_tokens=3, temperature=0)))
        assert expected is None or answer.text == expected
        assert not any("draft_" in account for account in backend.engine.models.accounts())  # type: ignore[attr-defined]
        state = await backend.engine.state()
        (fault,) = state.draft_models.values()
        assert (await backend.health()).detail == f"loaded, and goes on without a draft model: {fault}"
        assert fault in caplog.text
        return fault

    async def fault_of(draft: Path, expected: str) -> str:
        settings = {"engine.speculative.method": "draft_model", "engine.speculative.model": str(draft)}
        async with engine_of(tiny_model_path, process=False, **settings) as backend:
            return await told(backend, expected)

    async def work() -> None:
        async with engine_of(tiny_model_path, process=False) as backend:
            expected = (await collect(backend.chat(chat("on", max_tokens=3, temperature=0)))).text
        text = await fault_of(other, expected)
        assert text.startswith(f"engine.speculative.model: {other} has another vocabulary")
        assert f"token 100 is {tokens[100]!r} there and {tokens[101]!r} in" in text
        assert "{MODEL = DRAFT}" in text
        assert "missing" in await fault_of(tmp_path / "missing.gguf", expected)
        assert "broken" in await fault_of(broken, expected)
        async with with_draft_model(tiny_model_path, smollm2_path, ledger_bytes=40 << 20) as backend:
            text = await told(backend)
            assert "draft needs " in text
            assert " to draft for tiny, which leaves 3" in text

    run(work())


class Plain(CpuRunner):
    """A target that verifies no drafts."""

    verifies_drafts = False


class Remembering(CpuRunnerFactory):
    """Keeps the runners that it made."""

    def __init__(self) -> None:
        self.made: list[ModelRunner] = []

    def load(self, *args: Any) -> ModelRunner:
        self.made.append(super().load(*args))
        return self.made[-1]


def test_what_was_reserved_or_loaded_in_vain_is_given_back(
    tmp_path: Path, tiny_model_path: Path, other_model_path: Path
) -> None:
    """Beside a target that takes no drafts nothing is loaded; a model that cannot draft is closed at once."""
    factory, ledger = Remembering(), Ledger(1 << 30)
    chosen = replace(options(), drafts=BY_MODEL)

    def found(path: Path) -> tuple[FoundDraft, DraftMemory]:
        draft = find_draft("tiny", chosen, {"draft": path}.__getitem__)
        assert draft is not None
        draft = replace(draft, factory=factory).fitted(chosen, 1 << 28)
        return draft, draft.reserve(ledger.reserve, lambda num_bytes: None)

    draft, memory = found(other_model_path)
    assert ledger.free_bytes < 1 << 30
    target = Plain(tiny_model_path, chosen.runner)
    assert draft.load(target, chosen, memory) is None
    assert (ledger.free_bytes, factory.made) == (1 << 30, [])
    for path, why in (
        (write_hybrid(tmp_path / "recurrent.gguf", "lfm2"), "cannot draft on the cpu runner, as it cannot go back"),
        (write_t5(tmp_path / "t5.gguf"), "draft is an encoder-decoder, which drafts for no other model"),
    ):
        draft, memory = found(path)
        with pytest.raises(ConfigError, match=why):
            draft.load(CpuRunner(tiny_model_path, chosen.runner), chosen, memory)
        assert not hasattr(factory.made.pop(), "model")
        memory.release()
    assert (ledger.free_bytes, factory.made) == (1 << 30, [])


def test_an_encoder_is_no_draft_model(tmp_path: Path) -> None:
    """Said by its name before anything of it is read."""
    write_encoder(tmp_path / "encoder")
    with pytest.raises(ConfigError, match=r"engine\.speculative\.model: draft is an encoder, which writes no text"):
        find_draft("tiny", replace(options(), drafts=BY_MODEL), {"draft": tmp_path / "encoder"}.__getitem__)


def test_settings_name_draft_models_for_all_or_for_each(tiny_model_path: Path, other_model_path: Path) -> None:
    """A name, or a table; the method without one is refused, and no model drafts for itself."""

    async def draft_of(model: object) -> str | None:
        settings = {"engine.speculative.method": "draft_model", "engine.speculative.model": model}
        async with engine_of(tiny_model_path, process=False, **settings) as backend:
            await collect(backend.chat(chat("on", max_tokens=3)))
            draft = (await backend.load()).draft
            return None if draft is None else draft.name

    async def work() -> None:
        path = str(other_model_path)
        assert await draft_of(path) == path
        assert await draft_of({str(tiny_model_path): path}) == path
        assert await draft_of({tiny_model_path.stem: path}) == path
        assert await draft_of({"another": "none"}) is None
        assert await draft_of(str(tiny_model_path)) is None
        for wrong in ("", {"tiny": 3}, 7):
            with pytest.raises(ConfigError, match=r"engine\.speculative\.model"):
                await draft_of(wrong)
        with pytest.raises(ConfigError, match="names none"):
            await draft_of({})

    run(work())


def test_an_engine_in_a_process_of_its_own_has_one(tiny_model_path: Path, other_model_path: Path) -> None:
    """Over HTTP: the answer is the same, and the metrics have the accounts and the counts."""
    asked = {"messages": [{"role": "user", "content": "on"}], "temperature": 0, "max_tokens": 60, "ignore_eos": True}

    async def answer(process: bool, **settings: object) -> tuple[str, str]:
        async with (
            engine_of(tiny_model_path, process=process, **settings) as backend,
            serving(backend) as url,
            httpx.AsyncClient(timeout=60, base_url=url) as http,
        ):
            reply = await http.post("/v1/chat/completions", json=asked | {"model": str(tiny_model_path)})
            return reply.json()["choices"][0]["message"]["content"], (await http.get("/metrics")).text

    async def work() -> None:
        plain, _ = await answer(False, **{"engine.speculative.method": "off"})
        settings = {"engine.speculative.method": "draft_model", "engine.speculative.model": str(other_model_path)}
        text, metrics = await answer(True, **settings)
        assert text == plain
        assert 'account="draft_weights:' in metrics

    run(work())


def test_a_prompt_that_was_drafted_for_is_not_read_again(tiny_model_path: Path) -> None:
    """The next turn of a conversation finds the draft model's KV of the one before; another tenant does not."""
    model = DraftModel(CpuRunner(tiny_model_path, options(threads=1).runner), 1 << 20, 8, 1.0)
    first = Client(1, random.Random(3).choices(range(3, 200), k=100), 10).request
    assert model.num_behind(first) == 100
    while model.num_behind(first) > 16:
        model.catch_up([first], {first.id})
    ((_, drafts, _),) = model.draft([(first, 4)], {first.id}, lambda *_: True)
    first.tokens += [*drafts, 9]  # all were right: three of them are computed, the fourth and what came after are not
    assert model.num_behind(first) == 2
    model.draft([(first, 1)], {first.id}, lambda *_: True)
    assert model.seconds.is_known(2)
    model.end(first)
    turn, other = (Client(at, [*first.tokens, 5, 6, 7], 10).request for at in (2, 3))
    other.key = PrefixKey(tenant="other")
    assert model.num_behind(turn) == 3
    assert model.num_behind(other) == 108
    for request in (turn, other):
        model.end(request)
    assert model.runner.pool.stats().active == 0
