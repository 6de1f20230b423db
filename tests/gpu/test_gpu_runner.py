"""The torch runner on a GPU: what its tests on torch's CPU device cannot see. `make gpu` runs both there."""

from __future__ import annotations

import random
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.laid_out_folders import in_mxfp4
from support.mixtures import random_mixture
from support.reference_decoder import write_family

from pyagent import _rust
from pyagent.assembly import make_host
from pyagent.core.config import load_settings
from pyagent.core.errors import ModelError
from pyagent.core.runners.batch import Batch
from pyagent.core.runners.factory import LargestStep, RunnerOptions
from pyagent.infrastructure.engine.runners.choice import pick_runners
from pyagent.infrastructure.engine.runners.torch.factory import TorchRunnerFactory

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU here")]

TORCH = TorchRunnerFactory()
OPTIONS = RunnerOptions(threads=2, kv_bytes=1 << 26)
STEP = LargestStep(2048, 64)


@pytest.fixture
def hog() -> Iterator[list[object]]:
    """What a test took of the GPU's memory is given back."""
    taken: list[object] = []
    yield taken
    taken.clear()
    torch.cuda.empty_cache()


def test_auto_takes_the_gpu(tiny_model_path: Path) -> None:
    """A model that fits the GPU gets the torch runner."""
    choice = pick_runners("auto", make_host(load_settings().settings).runners())
    picked, _ = choice.runner_for(tiny_model_path, OPTIONS, STEP)
    assert picked.name == "torch"


def test_closed_runner_leaves_no_memory_taken(tiny_model_path: Path) -> None:
    """Ten loads take no more than one; weights and KV go with `close`, whatever refers to the runner."""
    before = torch.cuda.memory_allocated()
    kept = []
    for _ in range(10):
        runner = TORCH.load(tiny_model_path, OPTIONS, STEP, None)
        assert torch.cuda.memory_allocated() > before
        runner.close()
        kept.append(runner)
    assert torch.cuda.memory_allocated() == before


def test_model_that_does_not_fit_is_refused_by_name(tiny_model_path: Path, hog: list[object]) -> None:
    """With the GPU full of something else `estimate` says what is needed and what there is."""
    free, _ = torch.cuda.mem_get_info()
    hog.append(torch.empty(free - (8 << 20), dtype=torch.uint8, device="cuda"))
    with pytest.raises(ModelError, match=r"GB of the GPU's memory, of which .* can be used"):
        TORCH.estimate(tiny_model_path, OPTIONS, LargestStep(8192, 256))


def test_step_waits_for_the_device_once(tmp_path: Path) -> None:
    """Of a step that decodes, with windows and caps, with experts or without, only what was sampled is waited for."""
    for family in MIXTURES:
        write_mixture(tmp_path / family, family)
    for family in ("llama", "gemma2", *MIXTURES):
        if family not in MIXTURES:
            write_family(tmp_path / family, family)
        runner = TORCH.load(tmp_path / family, OPTIONS, STEP, None)
        draw = random.Random(3)
        prompts = [[draw.randrange(96) for _ in range(30)] for _ in range(4)]
        for sequence, prompt in enumerate(prompts):
            runner.add(sequence, prompt)
            assert runner.reserve(sequence, 64)
        samplers = [_rust.SamplerState(temperature=0.0) for _ in prompts]
        flat = [token for prompt in prompts for token in prompt]
        tokens = runner.execute(Batch([0, 1, 2, 3], [30] * 4, flat, samplers, [0] * 4)).tokens
        tokens = runner.execute(Batch([0, 1, 2, 3], [1] * 4, tokens, samplers, [1] * 4)).tokens  # compiles kernels
        torch.cuda.set_sync_debug_mode("warn")
        try:
            with warnings.catch_warnings(record=True) as waits:
                warnings.simplefilter("always")
                runner.execute(Batch([0, 1, 2, 3], [1] * 4, tokens, samplers, [2] * 4))
        finally:
            torch.cuda.set_sync_debug_mode("default")
        assert len(waits) <= 1, [str(wait.message) for wait in waits]
        runner.close()


MIXTURES = ("glm4_moe", "gpt_oss")


def write_mixture(folder: Path, family: str) -> None:
    """A small random GLM-4.5, or gpt-oss with experts in 4 bits, by transformers."""
    pytest.importorskip("transformers")
    random_mixture(family, folder)
    if family == "gpt_oss":
        in_mxfp4(folder)


@pytest.mark.parametrize("family", MIXTURES)
def test_mixtures_are_replayed_from_cuda_graphs(family: str, tmp_path: Path) -> None:
    """The tokens of captured steps are those of eager ones, with experts that each token chooses anew."""
    write_mixture(tmp_path, family)
    found: list[list[int]] = []
    for is_captured in (False, True):
        runner: Any = TORCH.load(tmp_path, replace(OPTIONS, dtype="f32"), STEP, None)
        samplers, tokens, said = [_rust.SamplerState(temperature=0.0)] * 3, [3, 7, 9], list[int]()
        for sequence, token in enumerate(tokens):
            runner.add(sequence, [token])
        for step in range(40):
            assert all(runner.reserve(sequence, step + 1) for sequence in range(3))
            tokens = runner.execute(Batch([0, 1, 2], [1] * 3, tokens, samplers, [step] * 3)).tokens
            said += tokens
            while is_captured and runner.when_idle():
                pass
        assert (runner.graphs.num_replayed > 20) == is_captured
        found.append(said)
        runner.close()
    assert found[0] == found[1]


def test_gpt_oss_computes_the_same_in_4_bits_and_dequantised(tmp_path: Path) -> None:
    """The kernel that reads experts in 4 bits is taken, and greedy tokens are those of the dequantised model."""
    from pyagent.infrastructure.engine.runners.torch.quantised.trial import choose_expert_rows

    write_mixture(tmp_path, "gpt_oss")
    found: list[list[int]] = []
    for quantization in ("keep", "none"):
        assert choose_expert_rows(torch.device("cuda", 0), torch.float32) is not None
        runner: Any = TORCH.load(tmp_path, replace(OPTIONS, dtype="f32", quantization=quantization), STEP, None)
        sampler, tokens, said = _rust.SamplerState(temperature=0.0), [3, 7, 9, 4, 1], list[int]()
        runner.add(0, tokens)
        for step in range(40):
            assert runner.reserve(0, step + 5)
            tokens = runner.execute(Batch([0], [len(tokens)], tokens, [sampler], [step])).tokens
            said += tokens
        found.append(said)
        runner.close()
    assert found[0] == found[1]


def test_drafts_are_verified_from_cuda_graphs(tmp_path: Path) -> None:
    """Right and wrong drafts as rows of captured steps give the tokens of steps without drafts."""
    write_family(tmp_path, "qwen3")
    runner: Any = TORCH.load(tmp_path, replace(OPTIONS, batch_invariant=True), STEP, None)
    draw, prompt = random.Random(2), [3, 1, 4, 1, 5]

    def step(sequence: int, tokens: list[int], num_drafts: int = 0) -> list[int]:
        assert runner.reserve(sequence, runner.pool.num_tokens(sequence) + len(tokens))
        batch = Batch([sequence], [len(tokens)], tokens, [_rust.SamplerState(temperature=0.0)], [0], num_decoding=1)
        batch.num_drafts = {0: num_drafts} if num_drafts else {}
        output = runner.execute(batch)
        return [output.tokens[0], *output.more.get(0, [])]

    texts: list[list[int]] = []
    for sequence in range(4):
        runner.add(sequence, prompt, most_cached=0)
        log = prompt + step(sequence, prompt)
        while len(log) < (90 if texts else 100):
            drafts = texts[0][len(log) : len(log) + draw.randrange(4)] if texts else []
            if drafts and draw.random() < 0.3:
                drafts[-1] = draw.randrange(96)
            log += step(sequence, [log[-1], *drafts], len(drafts))
            while runner.when_idle():
                pass
        texts.append(log)
    assert all(log == texts[0][: len(log)] for log in texts)
    assert runner.graphs.num_replayed > 60
    runner.close()
