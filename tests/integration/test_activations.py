"""The activations behind an answer: the same answer with them and without, over each API, refused where there are none.

Their numbers are compared with transformers' in `tests/oracle/test_activations.py`.
"""

from __future__ import annotations

import itertools
import json
from collections import Counter, defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from support.command_line import fresh_environment, pyagent
from support.cpu_runners import only
from support.drafts import drafting
from support.native import assert_idle, at_once, chat, engine_of, mixed_requests, one_by_one, options, run, running
from support.tiny_model import write_tiny_model
from support.tiny_sparse import write_sparse

from pyagent.core.activations import TokenActivations
from pyagent.core.backends import Answer, collect
from pyagent.core.chain import Chain
from pyagent.core.errors import RequestError, UnsupportedError
from pyagent.core.messages import BeamSearch, ChatRequest, SamplingParams
from pyagent.core.runners.runner import RunnerInfo
from pyagent.infrastructure.backends.openai import OpenAIBackend
from pyagent.infrastructure.engine import activations
from pyagent.infrastructure.engine.runners.cpu import CpuRunner
from pyagent.testing import openai_server

PROBE = {"top_activations": 4, "logit_lens": 2}


def probing(request: ChatRequest, **probe: int) -> ChatRequest:
    return msgspec.structs.replace(request, sampling=msgspec.structs.replace(request.sampling, **(probe or PROBE)))


def told(answer: Answer) -> dict[int, list[TokenActivations]]:
    """What is told of each of several answers' tokens."""
    found = defaultdict[int, list[TokenActivations]](list)
    for delta in answer.deltas:
        found[delta.index] += delta.activations
    return {index: activations for index, activations in found.items() if activations}


def texts(answer: Answer) -> dict[int, str]:
    found = defaultdict[int, str](str)
    for delta in answer.deltas:
        found[delta.index] += delta.content
    return dict(found)


def of_all_kinds() -> list[ChatRequest]:
    asked = [chat("on and on and on and on", max_tokens=40, temperature=0, ignore_eos=True), *mixed_requests(9)]
    asked += [chat("the user", max_tokens=20, seed=3, stop=("e",))]
    asked += [chat("at the", max_tokens=9, top_logprobs=2, seed=1)]
    asked += [msgspec.structs.replace(one, n=3) for one in asked[1:3]]
    return [*asked, msgspec.structs.replace(asked[4], n=2, best_of=3)]


def test_answers_are_the_same_with_activations_and_without(tiny_model_path: Path) -> None:
    """Alone, at once, in chunks, with drafts: the same tokens, and of each the same activations, bit for bit."""
    plain, asked = of_all_kinds(), [probing(request) for request in of_all_kinds()]
    with_ids = [
        msgspec.structs.replace(one, sampling=msgspec.structs.replace(one.sampling, return_token_ids=True))
        for one in asked
    ]

    async def main() -> None:
        async with running(tiny_model_path) as backend:
            expected = [texts(answer) for answer in await one_by_one(backend, plain)]
            found = await one_by_one(backend, with_ids)
        assert [texts(answer) for answer in found] == expected
        tokens = [told(answer) for answer in found]
        for answer, of in zip(found, tokens, strict=True):
            counted = Counter(delta.index for delta in answer.deltas for _ in delta.token_ids)
            assert {index: len(activations) for index, activations in of.items()} == counted
            for one in itertools.chain.from_iterable(of.values()):
                assert (len(one.neurons), [len(layer) for layer in one.layers]) == (4, [2, 2])
        for chosen in (options(max_num_batched_tokens=7, threads=2), options(blocks=40)):
            async with running(tiny_model_path, chosen) as backend:
                answers = await at_once(backend, [*asked, *plain])
                assert [texts(answer) for answer in answers] == expected * 2
                assert [told(answer) for answer in answers] == tokens + [{}] * len(plain)
                await assert_idle(backend)
        async with drafting(tiny_model_path) as (backend, eager):
            for _ in range(2):  # the second time the answers are known, and copied, however steps fell the first time
                assert [told(answer) for answer in await at_once(backend, asked)] == tokens
            assert eager.counts.num_accepted_tokens > 0

    run(main())


def test_the_last_layer_says_what_the_model_does(tiny_model_path: Path) -> None:
    """The last layer's tokens and log probabilities are those of `top_logprobs`, bit for bit."""
    request = probing(chat("the user is", max_tokens=12, temperature=0, top_logprobs=3, ignore_eos=True), logit_lens=3)

    async def main() -> None:
        async with running(tiny_model_path) as backend:
            answer = await collect(backend.chat(request))
        entries = [entry for delta in answer.deltas for entry in delta.logprobs]
        (tokens,) = told(answer).values()
        assert [one.token for one in tokens] == [entry.token for entry in entries]
        last = [[(one.token, one.logprob) for one in token.layers[-1]] for token in tokens]
        assert last == [entry.top_logprobs for entry in entries]
        assert not any(token.neurons for token in tokens)

    run(main())


def test_neurons_come_in_order_and_more_of_them_go_on(tiny_model_path: Path) -> None:
    """The neurons that write most come first; a longer list begins with the shorter one."""

    async def main() -> None:
        async with running(tiny_model_path) as backend:
            request = chat("the user", max_tokens=4, temperature=0, ignore_eos=True)
            few, many = await one_by_one(backend, [probing(request, top_activations=k) for k in (2, 32)])
        for short, long in zip(told(few)[0], told(many)[0], strict=True):
            assert short.neurons == long.neurons[:2]
            lengths = [neuron.write_norm for neuron in long.neurons]
            assert lengths == sorted(lengths, reverse=True)
            assert len({(neuron.layer, neuron.neuron) for neuron in long.neurons}) == 32
            assert all(neuron.write_norm > 0 and len(neuron.promotes) == 3 for neuron in long.neurons)

    run(main())


def test_an_engine_in_its_own_process_tells_them(tiny_model_path: Path) -> None:
    """They cross the border of the engine's process unchanged."""
    request = probing(chat("the user", max_tokens=6, seed=2, ignore_eos=True))

    async def main() -> None:
        async with running(tiny_model_path) as backend:
            expected = await collect(backend.chat(request))
        async with engine_of(tiny_model_path, process=True) as backend:
            assert told(await collect(backend.chat(request))) == told(expected)

    run(main())


# -- refused ----------------------------------------------------------------------------------------------------------


def test_models_and_runners_that_cannot_tell_refuse_by_name(tiny_model_path: Path, tmp_path: Path) -> None:
    """Neurons of experts, and runners that tell nothing, are refused by the field; what can be told is."""

    class Silent(CpuRunner):
        def __init__(self, *args: Any, **more: Any) -> None:
            super().__init__(*args, **more)
            self.info: RunnerInfo = replace(self.info, probes=frozenset())

    sparse = write_sparse(tmp_path / "m.gguf", "glm4moe")

    async def main() -> None:
        request = chat("the user", max_tokens=3, seed=1)
        async with running(sparse, options(blocks=4096)) as backend:
            with pytest.raises(UnsupportedError, match=r"^top_activations: glm4moe on this runner does not") as refused:
                await collect(backend.chat(probing(request)))
            assert refused.value.fields == ("top_activations",)
            (tokens,) = told(await collect(backend.chat(probing(request, logit_lens=1)))).values()
            assert tokens[0].layers
        async with running(tiny_model_path, replace(options(), runners=only(Silent))) as backend:
            with pytest.raises(UnsupportedError, match="top_activations and logit_lens: llama"):
                await collect(backend.chat(probing(request)))
            assert (await collect(backend.chat(request))).text

    run(main())


def test_too_much_is_refused_before_anything_is_computed(
    tiny_model_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All answers together have a bound, which the error tells; so have the numbers, and beams have none."""
    monkeypatch.setattr(activations, "MAX_ENTRIES", 400)
    request = chat("the user", max_tokens=50, seed=1)
    wrong: list[tuple[ChatRequest, str]] = [
        (probing(request, top_activations=9), "9 entries for each of up to 50 output tokens are more than the 400"),
        (msgspec.structs.replace(probing(request, top_activations=4), n=3), "at most 100 tokens in all"),
        (probing(request, logit_lens=5), "10 entries for each"),
        (probing(request, top_activations=33), "top_activations must be between 1 and 32, got 33"),
        (probing(request, logit_lens=0), "logit_lens must be between 1 and 20, got 0"),
        (
            ChatRequest(prompt="a", beam=BeamSearch(width=2), sampling=SamplingParams(top_activations=1)),
            "cannot be combined with top_activations",
        ),
    ]

    async def main() -> None:
        async with running(tiny_model_path) as backend:
            for asked, reason in wrong:
                with pytest.raises(RequestError, match=reason):
                    await collect(backend.chat(asked))
            assert told(await collect(backend.chat(probing(request, top_activations=8))))[0]

    run(main())


def test_another_backend_is_not_asked(tiny_model_path: Path) -> None:
    """A server of others refuses in one sentence; a chain goes on to the link that tells them."""
    request = probing(chat("the user", max_tokens=3, seed=1))

    async def main() -> None:
        with openai_server() as server:
            other = OpenAIBackend(f"{server.url}/v1")
            with pytest.raises(UnsupportedError, match="top_activations") as refused:
                await collect(other.chat(request))
            assert "\n" not in str(refused.value)
            async with running(tiny_model_path) as native:
                assert told(await collect(Chain([other, native]).chat(request)))[0]
            await other.close()

    run(main())


# -- over HTTP, and in runs -------------------------------------------------------------------------------------------


def test_they_come_over_http_whole_and_streamed(url: str) -> None:
    """In chats and completions the choice has them, streamed or not; a request without has no such field."""
    fields: dict[str, Any] = {"model": "tiny", "max_tokens": 5, "seed": 3, "ignore_eos": True}
    bodies = {
        "chat/completions": fields | {"messages": [{"role": "user", "content": "the user"}]},
        "completions": fields | {"prompt": "the user"},
    }
    for path, body in bodies.items():
        whole = httpx.post(f"{url}/v1/{path}", json=body | PROBE).json()["choices"][0]
        tokens = whole["activations"]
        assert len(tokens) == 5
        assert set(tokens[0]) == {"token", "neurons", "layers"}
        assert set(tokens[0]["neurons"][0]) == {"layer", "neuron", "activation", "write_norm", "promotes"}
        assert set(tokens[0]["layers"][-1][0]) == {"token", "logprob"}
        lines = httpx.post(f"{url}/v1/{path}", json=body | PROBE | {"stream": True}).text.splitlines()
        pieces = [json.loads(line[6:])["choices"][0] for line in lines if line.startswith("data: {")]
        assert [one for piece in pieces for one in piece.get("activations", [])] == tokens
        assert "activations" not in httpx.post(f"{url}/v1/{path}", json=body).json()["choices"][0]
    refused = httpx.post(f"{url}/v1/completions", json=bodies["completions"] | {"top_activations": 99})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "top_activations")


def test_a_run_records_them_and_shows_them(tmp_path: Path) -> None:
    """`run --activations` journals them with each answer, and has them in its events; `runs show` shows them all."""
    model = write_tiny_model(tmp_path / "tiny.gguf", llama__context_length=4096)
    environment, chain = fresh_environment(tmp_path), ["--chain", f"native:{model}"]

    def called(*words: str) -> str:
        done = pyagent(*words, env=environment)
        assert done.returncode == 0, done.stderr
        return done.stdout

    said = called("run", "--agent", "reasoning", "The user.", "--activations", "2", "--json", *chain)
    tokens = [one for event in map(json.loads, said.splitlines()) for one in event.get("activations", [])]
    assert [len(token["neurons"]) for token in tokens] == [2] * len(tokens)
    shown = called("runs", "show", "--activations")
    assert "reasoning · native:" in shown
    assert shown.count(" neurons ") == shown.count(" layers ") == len(tokens) > 0
