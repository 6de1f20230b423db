"""Runners that plugins bring: they serve requests like the CPU's, and one that fails is named while others serve on."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import textwrap
from array import array
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import httpx
import pytest
from support.installed import find_first, write_distribution
from support.native import chat, engine_of, run
from support.tiny_model import write_tiny_model

from pyagent import _rust
from pyagent.assembly import make_chain, make_host
from pyagent.core.backends import collect
from pyagent.core.config import load_settings
from pyagent.core.errors import ConfigError, ModelError, PluginError, PyAgentError, UnsupportedError
from pyagent.core.messages import SamplingParams
from pyagent.core.runners.factory import RunnerOptions
from pyagent.infrastructure.engine.backend import NativeBackend
from pyagent.infrastructure.engine.runners.cpu import CpuRunner
from pyagent.infrastructure.engine.sampling.sampler import make_sampler
from pyagent.infrastructure.engine.tokens import ModelTokenizer
from pyagent.infrastructure.server.app import create_app
from pyagent.testing import serve

PARROT = (Path(__file__).parents[2] / "examples/pyagent-parrot/pyagent_parrot.py").read_text()
Install = Callable[[str, str], None]

COUNTING = """
    from pyagent.infrastructure.engine.runners.cpu import CpuRunner
    from pyagent.infrastructure.engine.runners.cpu_factory import CpuRunnerFactory
    from pyagent.plugin import hookimpl

    class Counting(CpuRunner):
        num_steps = 0
        def execute(self, batch):
            self.num_steps += 1
            return super().execute(batch)

    class Factory(CpuRunnerFactory):
        name = "counting"
        def load(self, path, options, step, kv):
            return Counting(path, options, kv)

    @hookimpl
    def pyagent_register_runners():
        return [Factory()]
"""
FACTORY = """
    from pyagent.plugin import ModelError, ModelNeeds, describe_model, hookimpl

    class Factory:
        name = {name!r}
        def unavailable_reason(self):
            {reason}
        def estimate(self, path, options, step):
            {estimate}
            model = describe_model(path)
            return ModelNeeds(model.vocab_size, model.context_length, 0, 0, 0)
        def load(self, path, options, step, kv):
            {load}

    @hookimpl
    def pyagent_register_runners():
        return [Factory()]
"""
"""A runner that fails somewhere."""
PASSED_OVER = """return None
        def passed_over_reason(self):
            return {}"""


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Installs a plugin that brings runners, for this process and those it starts."""
    site = tmp_path / "site"
    site.mkdir()
    find_first(monkeypatch, site)

    def write(name: str, source: str) -> None:
        module = f"runner_of_{name}"
        (site / f"{module}.py").write_text(textwrap.dedent(source))
        write_distribution(site, name, f"{name}.runners = {module}")
        monkeypatch.delitem(sys.modules, module, raising=False)

    return write


def failing(name: str, *, reason: str = "return None", estimate: str = "pass", load: str = "1 / 0") -> str:
    return FACTORY.format(name=name, reason=reason, estimate=estimate, load=load)


async def answer(path: Path, text: str = "ab ab", **settings: object) -> str:
    more = {key.replace("__", "."): value for key, value in settings.items()}
    async with engine_of(path, **{"engine.process": False, **more}) as backend:
        return (await collect(backend.chat(chat(text, temperature=0, max_tokens=12)))).text


def test_runner_of_a_plugin_answers_over_http(tiny_model_path: Path, install: Install) -> None:
    """`auto` takes the runner that a plugin brings; it answers chats over HTTP, and finds cached prefixes."""
    install("parrot", PARROT)
    settings = load_settings(overrides={"engine.models": [str(tiny_model_path)]}).settings
    chain = make_chain(settings, make_host(settings), ["native"])
    body = {
        "model": str(tiny_model_path),
        "messages": [{"role": "user", "content": "the rain in Spain stays in the plain, " * 4}],
        "temperature": 0,
        "max_tokens": 40,
        "n": 2,
    }
    with serve(create_app(chain)) as url, httpx.Client(base_url=url, timeout=60) as http:
        first, second = (http.post("/v1/chat/completions", json=body).raise_for_status().json() for _ in range(2))
        (state,) = http.get("/pyagent/engine").raise_for_status().json().values()
        streamed = http.post("/v1/chat/completions", json=body | {"stream": True, "n": 1}).text
    asyncio.run(chain.close())
    assert list(state["runners"].values()) == ["parrot"]
    texts = [choice["message"]["content"] for choice in first["choices"]]
    assert texts[0]
    assert texts[0] == texts[1] == second["choices"][0]["message"]["content"]
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
    assert json.loads(streamed.split("data: ")[-2])["choices"][0]["finish_reason"] == "length"


def test_runner_of_a_plugin_serves_in_the_engine_process(tiny_model_path: Path, install: Install) -> None:
    """With `engine.process` the engine's own process finds the same runner, and its answers are the same."""
    install("parrot", PARROT)

    async def work() -> None:
        here = await answer(tiny_model_path, engine__runner="parrot")
        there = await answer(tiny_model_path, engine__runner="parrot", engine__process=True)
        cpu = await answer(tiny_model_path, engine__runner="cpu", engine__process=True)
        assert here == there != cpu

    run(work())


def test_sampling_parameters_hold_on_any_runner(tiny_model_path: Path, install: Install) -> None:
    """Logit bias and log probabilities come from `finish_step`; what the runner does not compute is refused."""
    install("parrot", PARROT)

    async def work() -> None:
        async with engine_of(tiny_model_path, process=False, **{"engine.runner": "parrot"}) as backend:
            biased = chat("ab", temperature=0, max_tokens=3, logit_bias={70: 100.0}, top_logprobs=2)
            reply = await collect(backend.chat(biased))
            [*told] = [one for delta in reply.deltas for one in delta.logprobs]
            assert len({one.token for one in told}) == 1
            assert all(one.logprob > -1e-3 for one in told)
            with pytest.raises(UnsupportedError, match="gives no log probabilities of prompts"):
                await collect(backend.chat(chat("ab", prompt_logprobs=1)))

    run(work())


def test_loop_calls_the_loaded_runner_itself(tiny_model_path: Path, install: Install) -> None:
    """No wrapper stands between the engine's loop and a plugin's runner."""
    install("counting", COUNTING)

    async def work() -> None:
        async with engine_of(tiny_model_path, process=False) as backend:
            model = await backend.load()
            assert type(model.runner).__name__ == "Counting"
            assert model.engine.runner is model.runner
            await collect(backend.chat(chat("ab", max_tokens=4, ignore_eos=True)))
            assert model.runner.num_steps > 3
            for _ in range(500):
                if not model.runner.stats().active:
                    break
                await asyncio.sleep(0.01)
            model.runner.pool.check()
            assert not model.runner.stats().active

    run(work())


@pytest.mark.parametrize(
    ("load", "said"),
    [
        ("raise OSError('no such device')", "failed to load .* OSError: no such device"),
        ("raise SystemExit(3)", "failed to load .* SystemExit: 3"),
        ("return object()", "which is no ModelRunner: it lacks add, close, computes_ahead, context_length"),
        ("pass", "loaded .* as a NoneType"),
    ],
)
def test_runner_that_fails_to_load_is_named(tiny_model_path: Path, install: Install, load: str, said: str) -> None:
    """A plugin that fails to load a model is named with what to do; the engine serves with another runner."""
    install("broken", failing("tpu", load=load))

    async def work() -> None:
        with pytest.raises(PluginError, match=f"plugin 'broken' .*{said}") as caught:
            await answer(tiny_model_path)
        assert "set engine.runner to another, such as cpu" in str(caught.value)
        assert await answer(tiny_model_path, engine__runner="cpu")

    run(work())


def test_load_that_fails_leaves_the_rest_of_the_server(tiny_model_path: Path, install: Install, tmp_path: Path) -> None:
    """A model that a plugin's runner fails to load is an error by name; the server's other models are served."""
    lines = [
        "from pyagent.infrastructure.engine.runners.cpu import CpuRunner",
        "if 'bad' in path.name: raise RuntimeError('bad weights')",
        "return CpuRunner(path, options, kv)",
    ]
    load = f"\n{' ' * 12}".join(lines)
    install("picky", failing("picky", load=load))
    bad = write_tiny_model(tmp_path / "bad.gguf")
    settings = load_settings(overrides={"engine.models": [str(tiny_model_path), str(bad)]}).settings
    chain = make_chain(settings, make_host(settings), ["native"])
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
    with serve(create_app(chain)) as url, httpx.Client(base_url=url, timeout=60) as http:
        failed = http.post("/v1/chat/completions", json=body | {"model": str(bad)})
        served = http.post("/v1/chat/completions", json=body | {"model": str(tiny_model_path)})
    asyncio.run(chain.close())
    assert failed.status_code >= 500
    assert "plugin 'picky' failed to load" in failed.text
    assert served.status_code == 200


SICK = """
    from pyagent.infrastructure.engine.runners.cpu import CpuRunner
    from pyagent.infrastructure.engine.runners.cpu_factory import CpuRunnerFactory
    from pyagent.plugin import StepOutput, hookimpl

    class Sick(CpuRunner):
        num_calls = 0
        def {method}(self, *values):
            Sick.num_calls += 1
            result = super().{method}(*values)
            if Sick.num_calls == {at}:
                {fault}
            return result

    class Factory(CpuRunnerFactory):
        name = "sick"
        def load(self, path, options, step, kv):
            return Sick(path, options, kv)

    @hookimpl
    def pyagent_register_runners():
        return [Factory()]
"""


@pytest.mark.parametrize("is_async", ["on", "off"])
@pytest.mark.parametrize(
    ("method", "at", "fault"),
    [
        ("execute", 3, "raise RuntimeError('lost the device')"),
        ("execute", 3, "raise SystemExit(3)"),
        ("execute", 3, "return StepOutput([])"),
        ("execute", 3, "return StepOutput([10**9] * len(result.tokens))"),
        ("reserve", 3, "raise RuntimeError('lost the device')"),
        ("release", 1, "raise RuntimeError('lost the device')"),
        ("release", 1, "raise SystemExit(3)"),
        ("close", 1, "raise RuntimeError('lost the device')"),
        ("close", 1, "raise SystemExit(3)"),
    ],
)
def test_faults_of_a_running_runner_end_requests_and_no_engine(
    tiny_model_path: Path, install: Install, method: str, at: int, fault: str, is_async: str
) -> None:
    """Whatever a runner raises or returns while it runs, all requests end, and later ones are answered as before."""
    install("sick", SICK.format(method=method, at=at, fault=fault))

    async def ask(backend: NativeBackend, text: str) -> str | PyAgentError:
        try:
            return (await collect(backend.chat(chat(text, temperature=0, max_tokens=12)))).text
        except PyAgentError as error:
            return error

    async def work() -> None:
        settings = {"engine.runner": "sick", "engine.async_scheduling": is_async}
        async with asyncio.timeout(60), engine_of(tiny_model_path, process=False, **settings) as backend:
            await asyncio.gather(ask(backend, "ab ab"), ask(backend, "cd cd"))
            *_, last = [await ask(backend, "ab ab") for _ in range(3)]
        assert last == await answer(tiny_model_path, engine__runner="cpu")

    run(work())


@pytest.mark.parametrize(
    "faults",
    [
        {"reason": "return 'there is no TPU'"},
        {"reason": "1 / 0"},
        {"reason": "return 5"},
        {"reason": PASSED_OVER.format("'there is no TPU'")},
        {"reason": PASSED_OVER.format("1 / 0")},
        {"reason": PASSED_OVER.format("5")},
        {"estimate": "raise ModelError('only bananas', model='x')"},
        {"estimate": "raise KeyError('header')"},
        {"estimate": "from pyagent.plugin import ConfigError; raise ConfigError('only bananas')"},
    ],
)
def test_auto_passes_over_runners_that_cannot_run_the_model(
    tiny_model_path: Path, install: Install, faults: dict[str, str]
) -> None:
    """A runner that is not available here, cannot run the model or fails to say leaves it to the next, the CPU's."""
    install("absent", failing("tpu", **faults))

    async def work() -> None:
        assert await answer(tiny_model_path) == await answer(tiny_model_path, engine__runner="cpu")
        with pytest.raises((ConfigError, ModelError, PluginError)) as caught:
            await answer(tiny_model_path, engine__runner="tpu")
        assert any(text in str(caught.value) for text in ("there is no TPU", "plugin 'absent'", "only bananas"))

    run(work())


@pytest.mark.skipif(find_spec("torch") is not None, reason="torch is installed")
def test_torch_runner_without_torch_says_how_to_install_it(tiny_model_path: Path) -> None:
    """Asked for by name it is an error that says what to install; `auto` takes the CPU's."""

    async def work() -> None:
        with pytest.raises(ConfigError, match=r"torch is not installed: `pip install torch numpy`") as caught:
            await answer(tiny_model_path, engine__runner="torch")
        assert caught.value.key == "engine.runner"
        assert await answer(tiny_model_path) == await answer(tiny_model_path, engine__runner="cpu")

    run(work())


@pytest.mark.parametrize(("name", "value"), [("dtype", "bf16"), ("quantization", "none")])
def test_cpu_runner_refuses_other_numbers_of_weights(tiny_model_path: Path, name: str, value: str) -> None:
    """`engine.dtype` and `engine.quantization` are another runner's: an error names the setting, it is not left out."""

    async def work() -> None:
        with pytest.raises(ConfigError, match="computes with weights as the file has them") as caught:
            await answer(tiny_model_path, engine__runner="cpu", **{f"engine__{name}": value})
        assert caught.value.key == f"engine.{name}"

    run(work())


def test_cpu_runner_is_batch_invariant_already(tiny_model_path: Path) -> None:
    """`engine.batch_invariant` is taken, and changes no answer."""

    async def work() -> None:
        asked = await answer(tiny_model_path, engine__runner="cpu", engine__batch_invariant=True)
        assert asked == await answer(tiny_model_path, engine__runner="cpu")

    run(work())


def test_unknown_runner_is_told_with_the_nearest(tiny_model_path: Path, install: Install) -> None:
    """A setting that names a runner that no plugin brings is refused at the start, also with a process of its own."""
    install("counting", COUNTING)

    async def work() -> None:
        for is_process in (False, True):
            with pytest.raises(ConfigError, match=r"the runner 'countin'; did you mean 'counting'") as caught:
                await answer(tiny_model_path, engine__runner="countin", engine__process=is_process)
            assert caught.value.key == "engine.runner"

    run(work())


def test_commands_tell_of_runners(tiny_model_path: Path, install: Install, tmp_path: Path) -> None:
    """`pyagent plugins list` names the runners, `pyagent doctor` the one that models get, with why others do not."""
    install("counting", COUNTING)
    install("absent", failing("tpu", reason="return 'there is no TPU'"))

    def said(*arguments: str) -> str:
        command = [sys.executable, "-c", "from pyagent.cli.main import main; main()", *arguments]
        return subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False, env=os.environ).stdout

    plugins = {info["name"]: info for info in json.loads(said("plugins", "list", "--json"))}
    assert plugins["counting"]["provides"] == {"runners": ["counting"]}
    assert plugins["cpu"]["provides"] == {"runners": ["cpu"]}
    findings = json.loads(said("doctor", "--json", "--model", str(tiny_model_path), "--chain", "native"))
    (runner,) = [finding for finding in findings if finding["name"] == "runner"]
    assert runner["is_well"]
    absent = dict(text.split(" cannot run here: ") for text in runner["found"].split("; ")[1:])
    assert runner["found"].startswith("counting, cpu; ")
    assert absent["tpu"] == "there is no TPU"
    assert absent.keys() == {"torch", "tpu"}
    fits = json.loads(said("models", "show", str(tiny_model_path), "--json"))["fits"]
    assert all(fit["fits"] for fit in fits.values())


def test_logits_from_elsewhere_are_sampled_as_the_cpu_runner_samples(tiny_model_path: Path) -> None:
    """`sample_logits` gives the tokens, log probabilities and faults that `CpuModel.execute` gives for equal logits."""
    runner = CpuRunner(tiny_model_path, RunnerOptions(threads=1, kv_bytes=1 << 20))
    tokenizer = ModelTokenizer.load(tiny_model_path, vocab_size=runner.vocab_size)
    prompts = [list(range(40, 40 + length)) for length in (5, 9, 17)]
    params = [
        SamplingParams(temperature=0, top_logprobs=3),
        SamplingParams(temperature=0.9, seed=5, top_p=0.9, top_k=20, logit_bias={70: 2.0}),
        SamplingParams(temperature=1.2, seed=6, repetition_penalty=1.3, frequency_penalty=0.4),
    ]
    masks = {1: bytes([0b10101010] * (-(-runner.vocab_size // 32) * 4)), 2: b""}
    outputs = []
    for is_elsewhere in (False, True):
        samplers = [make_sampler(one, tokenizer, prompt) for one, prompt in zip(params, prompts, strict=True)]
        lengths, tokens = [len(prompt) for prompt in prompts], [token for prompt in prompts for token in prompt]
        for sequence, prompt in enumerate(prompts):
            runner.add(sequence, prompt)
            runner.reserve(sequence, len(prompt))
            runner.pool.clear_index()
        if is_elsewhere:
            runner.model.execute(runner.pool, [0, 1, 2], lengths, tokens, num_outputs=[1, 1, 1])
            logits = array("f", runner.model.logits())
            outputs.append(_rust.sample_logits(logits, samplers, [0, 1, 2], {1: masks[1]}))
            assert set(_rust.sample_logits(logits, samplers, [0, 1, 2], masks)[2]) == {2}
        else:
            asked = (lengths, tokens, samplers, [0, 1, 2], {1: masks[1]})
            outputs.append(runner.model.execute(runner.pool, [0, 1, 2], *asked)[:3])
        for sequence in range(3):
            runner.release(sequence)
        runner.pool.clear_index()
    assert outputs[0] == outputs[1]
    assert outputs[0][1][0]
    with pytest.raises(ValueError, match="do not fit 2 samplers"):
        _rust.sample_logits(array("f", [0.0] * 7), samplers[:2], [0, 0])
