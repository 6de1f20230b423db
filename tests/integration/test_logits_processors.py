"""Logits processors of plugins in the engine: both forms, in batches, forks and preemptions, and their order."""

from __future__ import annotations

import asyncio
import dataclasses
import random
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
from msgspec.structs import replace
from support import logits_plugin
from support.cpu_runners import Brought
from support.native import at_once, chat, one_by_one, options, run, running

from pyagent.assembly import make_chain
from pyagent.core.backends import Answer, collect
from pyagent.core.config import load_settings
from pyagent.core.errors import ConfigError, RequestError, UnsupportedError
from pyagent.core.logits_processors import BroughtLogitsProcessor
from pyagent.core.messages import BeamSearch, ChatDelta, ChatRequest, ResponseFormat, SamplingParams, TokenLogprob
from pyagent.core.plugins import PluginHost
from pyagent.core.sampling_params import LogitsProcessorSpec
from pyagent.core.sampling_schedules import PenaltySchedule, TemperatureSchedule
from pyagent.infrastructure.engine.backend import NativeBackend
from pyagent.infrastructure.engine.logits.processors import LogitsOptions
from pyagent.infrastructure.engine.options import SchedulerLimits
from pyagent.infrastructure.engine.runners.cpu import CpuRunner
from pyagent.infrastructure.engine.scheduler.queues import QueueOptions, make_queues
from pyagent.infrastructure.server.app import create_app
from pyagent.testing import serve
from pyagent.testing.openai import openai_server


@asynccontextmanager
async def engine(path: Path, *plugins: object, **more: object) -> AsyncIterator[NativeBackend]:
    """The link `native` with the plugin of the tests, and further ones."""
    overrides = {"engine.models": [str(path)], "engine.threads": 1, **more}
    settings = load_settings(overrides=overrides).settings
    host = PluginHost.discover(settings.plugins)
    for place, plugin in enumerate((logits_plugin, *plugins)):
        host.register(plugin, f"tests{place or ''}")
    (backend,) = make_chain(settings, host, ["native"]).links
    assert isinstance(backend, NativeBackend)
    try:
        yield backend
    finally:
        await backend.close()


def asked(text: str, name: str = "", args: Mapping[str, object] | None = None, **sampling: object) -> ChatRequest:
    """A request of 12 tokens, with one processor."""
    processors = (LogitsProcessorSpec(name, dict(args or {})),) if name else ()
    chosen = {"max_tokens": 12, "ignore_eos": True, "temperature": 0, "logits_processors": processors, **sampling}
    return chat(text, **chosen)


async def collect_all(deltas: AsyncIterator[ChatDelta]) -> list[str]:
    """The texts of all answers of a request."""
    texts: dict[int, str] = {}
    async for delta in deltas:
        texts[delta.index] = texts.get(delta.index, "") + delta.content
    return [texts[index] for index in sorted(texts)]


def logprobs_of(answer: Answer) -> list[TokenLogprob]:
    """The log probabilities of an answer's tokens."""
    return [one for delta in answer.deltas for one in delta.logprobs]


def texts_of(answers: list[Answer]) -> list[str]:
    return [answer.text for answer in answers]


def mixed(name: str) -> list[ChatRequest]:
    """Requests of many lengths, greedy and seeded, most with a processor."""
    draw = random.Random(5)
    requests: list[ChatRequest] = []
    for index in range(14):
        more: dict[str, object] = {
            "max_tokens": draw.choice([1, 4, 9, 23]),
            "top_logprobs": 2 if index % 4 == 1 else None,
        }
        if index % 2:
            more |= {"temperature": 0.9, "seed": index, "presence_penalty": 0.4}
        chosen = name if index % 3 else ""
        text = "".join(draw.choices("the user is at ease\n", k=draw.choice([2, 30, 90])))
        requests.append(asked(text, chosen, {"key": index} if chosen else None, **more))
    return requests


@pytest.mark.parametrize("scheduling", ["off", "on"])
def test_both_forms_give_the_same_text_alone_and_in_batches(tiny_model_path: Path, scheduling: str) -> None:
    """A processor has a request's tokens alone to go by, so its text is the same in either form, alone or batched."""

    async def work() -> None:
        async with engine(tiny_model_path, **{"engine.async_scheduling": scheduling}) as backend:
            alone = await one_by_one(backend, mixed("walk"))
            assert texts_of(await at_once(backend, mixed("walk"))) == texts_of(alone)
            assert texts_of(await at_once(backend, mixed("crowd"))) == texts_of(alone)
            plain = await one_by_one(backend, mixed(""))
            differ = [index for index in range(14) if plain[index].text != alone[index].text]
            assert not any(index % 3 == 0 for index in differ)
            assert len(differ) >= 7

    run(work())


@pytest.mark.parametrize("name", ["walk", "crowd"])
def test_preempted_requests_keep_their_text(tiny_model_path: Path, name: str) -> None:
    """A request that loses its place in the batch, and its row, goes on as if nothing had been."""
    requests = [asked("the user", name, {"key": key}, temperature=0.8, seed=key) for key in range(7)]
    factories = (logits_plugin.Walk(), logits_plugin.CrowdFactory())
    queue = QueueOptions("mlfq", {"quantum": 3, "levels": 4})
    chosen = dataclasses.replace(
        options(),
        logits=LogitsOptions({one.name: BroughtLogitsProcessor.of(one, "tests") for one in factories}),
        queues=lambda: make_queues({"default": queue}),
        limits=SchedulerLimits(max_num_seqs=3),
    )

    async def work() -> None:
        async with running(tiny_model_path, chosen) as backend:
            alone = await one_by_one(backend, requests)
            assert texts_of(await at_once(backend, requests)) == texts_of(alone)
            assert (await backend.load()).engine.scheduler.num_preemptions["recompute"] > 0

    run(work())


@pytest.mark.parametrize("name", ["walk", "crowd"])
def test_each_of_several_answers_is_that_of_its_seed(tiny_model_path: Path, name: str) -> None:
    """The i-th of n answers is what seed + i gives alone: forks have processors of their own."""

    async def work() -> None:
        async with engine(tiny_model_path) as backend:
            one = asked("the user is", name, {"key": 3}, temperature=1.0, seed=40)
            several = await collect_all(backend.chat(replace(one, n=3)))
            alone = [replace(one, sampling=replace(one.sampling, seed=40 + index)) for index in range(3)]
            assert several == texts_of(await one_by_one(backend, alone))

    run(work())


@pytest.mark.parametrize("name", ["walk", "crowd"])
def test_beams_are_searched_by_processed_logits(tiny_model_path: Path, name: str) -> None:
    """Beam search of width one is the greedy answer, and a wider one is the same alone and among others."""

    async def work() -> None:
        async with engine(tiny_model_path) as backend:
            greedy = asked("the user is", name, {"key": 3})
            beam = replace(greedy, beam=BeamSearch(width=1))
            assert (await collect(backend.chat(beam))).text == (await collect(backend.chat(greedy))).text
            wide = [replace(beam, beam=BeamSearch(width=4), n=2), greedy, replace(greedy, n=2)]
            alone = [await collect_all(backend.chat(request)) for request in wide]
            assert alone == list(await asyncio.gather(*(collect_all(backend.chat(request)) for request in wide)))

    run(work())


def test_what_was_excluded_stays_excluded(tiny_model_path: Path) -> None:
    """A processor comes after grammar and allowed tokens: it chooses among what they leave."""

    async def work() -> None:
        async with engine(tiny_model_path) as backend:
            form = ResponseFormat("choice", choice=["the", "user"])
            only = asked("hello", "only", {"tokens": [ord("x")]}, ignore_eos=False)
            assert (await collect(backend.chat(replace(only, response_format=form)))).text in {"the", "user"}
            allowed = asked("hello", "only", {"tokens": [70, 71]}, allowed_token_ids=(70, 90), logit_bias={90: 100.0})
            told = replace(allowed, sampling=replace(allowed.sampling, top_logprobs=2))
            first = logprobs_of(await collect(backend.chat(told)))[0]
            assert [round(logprob, 3) for _, logprob in first.top_logprobs] == [0.0, -50.0]

    run(work())


def test_greedy_requests_go_without_what_changes_no_best_token(tiny_model_path: Path) -> None:
    """A processor that is argmax-invariant costs greedy requests nothing; log probabilities show it all the same."""

    async def work() -> None:
        async with engine(tiny_model_path) as backend:
            before = logits_plugin.Soften.num_calls
            await collect(backend.chat(asked("hello", "soften")))
            assert logits_plugin.Soften.num_calls == before
            plain = await collect(backend.chat(asked("hello", top_logprobs=2)))
            soft = await collect(backend.chat(asked("hello", "soften", top_logprobs=2)))
            assert logits_plugin.Soften.num_calls == before + 12
            assert plain.text == soft.text
            gaps = [
                [one.top_logprobs[0][1] - one.top_logprobs[1][1] for one in logprobs_of(answer)]
                for answer in (plain, soft)
            ]
            assert gaps[1] == pytest.approx([gap / 2 for gap in gaps[0]], abs=1e-4)
            await collect(backend.chat(asked("hello", "soften", temperature=1.0, max_tokens=3)))
            assert logits_plugin.Soften.num_calls == before + 15

    run(work())


def test_schedules_count_processed_tokens_too(tiny_model_path: Path) -> None:
    """What depends on a token's place is the same for logits that a processor halves, at half the temperature."""

    async def work() -> None:
        penalties: dict[str, object] = {"repetition_penalty": 0.3, "max_tokens": 30, "seed": 3}
        warm = {**penalties, "penalty_schedule": PenaltySchedule(warmup_tokens=15)}
        hot = {"temperature": 1.5, "temperature_schedule": TemperatureSchedule(end=0.5, tokens=20)}
        half = {"temperature": 0.75, "temperature_schedule": TemperatureSchedule(end=0.25, tokens=20)}
        async with engine(tiny_model_path) as backend:
            plain = await collect(backend.chat(asked("hello", **warm, **hot)))
            assert plain.text == (await collect(backend.chat(asked("hello", "soften", **warm, **half)))).text
            assert plain.text != (await collect(backend.chat(asked("hello", "soften", **penalties, **half)))).text

    run(work())


def test_settings_run_processors_for_every_request(tiny_model_path: Path) -> None:
    """What settings name runs for requests that name nothing, and no request can replace it."""

    async def work() -> None:
        always = {"engine.logits_processors": {"only": {"tokens": [70]}}}
        async with engine(tiny_model_path, **always) as backend:
            answer = await collect(backend.chat(asked("hello", top_logprobs=0)))
            assert len({one.token for one in logprobs_of(answer)}) == 1
            with pytest.raises(RequestError, match="runs for every request already") as refused:
                await collect(backend.chat(asked("hello", "only", {"tokens": [71]})))
            assert refused.value.param == "logits_processors"

    run(work())


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        ({"onyl": {}}, "there is no logits processor 'onyl'; did you mean 'only'"),
        ({"only": {"tokens": 5}}, "cannot take these args"),
    ],
)
def test_wrong_settings_are_refused_when_the_engine_is_made(
    tiny_model_path: Path, chosen: dict[str, object], message: str
) -> None:
    """A setting that names no processor, or gives it wrong args, ends the start with the nearest name or the reason."""

    async def work() -> None:
        async with engine(tiny_model_path, **{"engine.logits_processors": chosen}):
            pass

    with pytest.raises(ConfigError, match=message):
        run(work())


@pytest.mark.parametrize(
    ("name", "args", "message"),
    [
        ("wlak", {}, "there is no logits processor 'wlak'; did you mean 'walk'"),
        ("walk", {"key": "x"}, r"cannot take these args: \['key'\]: 'x' is not of type 'integer'"),
        ("walk", {"kye": 1}, "cannot take these args"),
        ("only", {"tokens": [10**9]}, "cannot take these args: there is no token 1000000000"),
    ],
)
def test_wrong_names_and_args_are_the_requests_fault(
    tiny_model_path: Path, name: str, args: dict[str, object], message: str
) -> None:
    """An unknown name is told the nearest one, and wrong args what is wrong with them, as the field's fault."""

    async def work() -> None:
        async with engine(tiny_model_path) as backend:
            with pytest.raises(RequestError, match=message) as refused:
                await collect(backend.chat(asked("hello", name, args)))
            assert refused.value.param == "logits_processors"

    run(work())


def test_args_are_each_requests_own(tiny_model_path: Path) -> None:
    """A plugin that changes its args changes them for nobody else: not for settings, other answers, or another try."""
    args = {"tokens": [70]}
    always = {"engine.logits_processors": {"greedy-arms": {"tokens": [70]}}}

    async def work() -> None:
        async with engine(tiny_model_path, **always) as backend:
            for _ in range(2):
                answers = await collect_all(backend.chat(replace(asked("hello", max_tokens=3), n=2)))
                assert len(set(answers)) == 1
        async with engine(tiny_model_path) as backend:
            request = asked("hello", "greedy-arms", args, max_tokens=3)
            assert (await collect(backend.chat(request))).text == (await collect(backend.chat(request))).text
            assert request.sampling.logits_processors[0].args == {"tokens": [70]}

    run(work())


def test_processors_of_one_name_or_too_many_are_refused() -> None:
    """A request names each processor once, and eight at most."""
    for specs, message in (
        ([LogitsProcessorSpec("walk")] * 2, "names 'walk' twice"),
        ([LogitsProcessorSpec(str(index)) for index in range(9)], "takes up to 8 processors, got 9"),
    ):
        with pytest.raises(RequestError, match=message):
            SamplingParams(logits_processors=tuple(specs)).validate()


def test_runner_that_shows_no_logits_refuses_processors(tiny_model_path: Path) -> None:
    """Where the model's runner cannot have its logits changed, the field is refused by its name."""

    class Closed(CpuRunner):
        processes_logits = False

    async def work() -> None:
        async with engine(tiny_model_path, Brought(Closed), **{"engine.runner": "tests"}) as backend:
            with pytest.raises(UnsupportedError) as refused:
                await collect(backend.chat(asked("hello", "walk")))
            assert refused.value.fields == ("logits_processors",)

    run(work())


DEEP: object = 1
for _ in range(600):
    DEEP = [DEEP]

WRONG: list[tuple[object, str]] = [
    ([{"name": "wlak"}], "there is no logits processor 'wlak'; did you mean 'walk'?"),
    ([{"name": "walk", "args": {"key": "x"}}], "cannot take these args: ['key']: 'x' is not of type 'integer'"),
    ([{"name": "walk"}, {"name": "walk"}], "names 'walk' twice"),
    ([{"name": "walk", "kwargs": {}}], "kwargs"),
    ([{"args": {}}], "name"),
    ([{"name": "walk", "args": [1]}], "args"),
    ("walk", "logits_processors"),
    ([{"name": "soften", "args": {"deep": DEEP}}], "not nested as deep"),
    ([{"name": "x" * 100_000}], "there is no logits processor"),
    ([{"name": "walk", "args": {"key": [[[[1]]]] * 9}}], "cannot take these args"),
]


def test_clients_name_processors_over_http(tiny_model_path: Path) -> None:
    """Chats and completions take the field; what is wrong with it is a 400 that names it."""
    settings = load_settings(overrides={"engine.models": [str(tiny_model_path)], "engine.threads": 1}).settings
    host = PluginHost.discover(settings.plugins)
    host.register(logits_plugin, "tests")
    chain = make_chain(settings, host, ["native"])
    body = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 3, "temperature": 0, "ignore_eos": True}
    only = {"logits_processors": [{"name": "only", "args": {"tokens": [70]}}], "logprobs": True}
    with serve(create_app(chain)) as url, httpx.Client(base_url=f"{url}/v1", timeout=60) as client:
        chat = client.post("/chat/completions", json={**body, **only}).json()
        assert len({one["token"] for one in chat["choices"][0]["logprobs"]["content"]}) == 1
        text = {"prompt": "hello", "max_tokens": 3, "ignore_eos": True, **only, "logprobs": 0}
        assert len(set(client.post("/completions", json=text).json()["choices"][0]["logprobs"]["tokens"])) == 1
        for wrong, message in WRONG:
            refused = client.post("/chat/completions", json={**body, "logits_processors": wrong})
            error = refused.json()["error"]
            assert refused.status_code == 400, error
            assert message in error["message"]
            assert str(error["param"]).startswith("logits_processors"), error
            assert len(error["message"]) < 1000
    asyncio.run(chain.close())


def test_other_backends_refuse_processors_by_name() -> None:
    """A server elsewhere has none of this program's plugins, and is not asked without them."""

    async def work() -> None:
        with openai_server() as server:
            settings = load_settings(overrides={"chain": [f"openai:{server.url}"]}).settings
            chain = make_chain(settings, PluginHost.discover(settings.plugins))
            with pytest.raises(UnsupportedError) as refused:
                await collect(chain.chat(asked("hello", "walk")))
            assert refused.value.fields == ("logits_processors",)
            await chain.close()

    run(work())
