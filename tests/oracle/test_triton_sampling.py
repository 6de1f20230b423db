"""Sampling in three launches: the tokens of torch's operations, which are the CPU kernels', by any parameters.

Small rows: the interpreter takes a second for each. It sorts 16 tokens at most, so that these are narrowed as large
rows are on a GPU.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
import torch

from pyagent import _rust
from pyagent.core.runners.batch import Batch
from pyagent.infrastructure.engine.runners.torch import sampling
from pyagent.infrastructure.engine.runners.torch.fused_sampling import choose_sampling, fault_of
from pyagent.infrastructure.engine.runners.torch.kernels.sampling import NUM_SORTED, sample
from pyagent.infrastructure.engine.runners.torch.launched import HostCopies, LaunchedStep
from pyagent.infrastructure.engine.runners.torch.sampler import Sampler
from pyagent.infrastructure.engine.runners.torch.sampling import Adjusting, Cuts

pytestmark = pytest.mark.oracle

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
VOCABULARY = 600
PARAMS: list[dict[str, Any]] = [
    {"temperature": 0.0, "repetition_penalty": 2.0},
    {"top_p": 0.95},
    {"temperature": 0.3, "top_k": 7},
    {"temperature": 2.5, "top_k": 200, "top_p": 0.9, "min_p": 0.001},
    {"top_p": 0.4, "min_p": 0.2, "logit_bias": [(3, 4.5), (9, -100.0)]},
    {"repetition_penalty": 1.3, "frequency_penalty": 0.4, "presence_penalty": 0.7, "num_logprobs": 2},
    {"temperature": 4.0, "allowed_tokens": [2, 5, 7, 580]},
    {"mirostat": 2},  # on the host
]


def adjusting_nothing(num_rows: int) -> Adjusting:
    unchanged = torch.full((num_rows,), -1, dtype=torch.int32, device=DEVICE)
    nothing = torch.zeros((0, 1), dtype=torch.int32, device=DEVICE)
    return Adjusting(torch.ones((num_rows, 3), device=DEVICE), unchanged, nothing, unchanged, nothing)


def sampled_tokens(logits: torch.Tensor, uniforms: Iterable[float], **cuts: float) -> list[int]:
    """Draw a token of each row by the same parameters, and check that torch's operations draw the same."""
    num_rows = len(logits)
    values = {"temperature": 1.0, "top_k": 1 << 18, "top_p": 1.0, "min_p": 0.0} | cuts
    kinds = {"top_k": torch.int64}
    made = Cuts(
        *(torch.full((num_rows,), value, device=DEVICE, dtype=kinds.get(name)) for name, value in values.items())
    )
    uniform = torch.tensor(list(uniforms), dtype=torch.float64, device=DEVICE)
    expected = sampling.sample_unranked(logits, made, uniform, has_top_k=True)
    tokens, faults = sample(logits.clone(), adjusting_nothing(num_rows), made, uniform)
    assert faults.eq(-1).all()
    assert tokens.equal(expected)
    return tokens.tolist()


def test_steps_have_the_cpu_kernels_tokens() -> None:
    """All kinds of rows beside each other, with a grammar's mask on some: tokens, counts and log probabilities."""
    on_device, on_cpu = (
        [_rust.SamplerState(**params, seed=index) for index, params in enumerate(PARAMS)] for _ in "ab"
    )
    for one in (*on_device, *on_cpu):
        one.observe_prompt([1, 2, 3, 3, 500])
    sampler, num_rows = Sampler(VOCABULARY, DEVICE, sample), len(PARAMS)
    for step in range(2):
        generator = np.random.default_rng(step)
        logits = np.round(16 * generator.standard_normal((num_rows, VOCABULARY))).astype(np.float32) / 8
        mask = np.packbits(generator.random(VOCABULARY) < 0.5, bitorder="little").tobytes()
        masks = {1: mask, 5: mask, 6: mask, 7: mask} if step else {}
        batch = Batch(list(range(num_rows)), [1] * num_rows, [0] * num_rows, on_device, [step] * num_rows, masks)
        with torch.inference_mode():
            sampled = sampler.sample(torch.from_numpy(logits.copy()).to(DEVICE), batch)
            found = LaunchedStep(sampled, HostCopies(DEVICE), lambda output: output).result()
        for row in sampled.counting:
            on_device[row].observe([found.tokens[row]])
        tokens, likelihoods, errors = _rust.sample_logits(logits.data, on_cpu, [step] * num_rows, masks)
        assert (found.tokens, found.errors) == (tokens, errors)
        assert found.likelihoods[5].logprob == pytest.approx(likelihoods[5][0], abs=1e-5)


def test_the_trial_finds_the_kernel_right_and_others_wrong() -> None:
    """Rows of narrow and wide logits, any top-k, top-p and min-p; a kernel that fails or draws otherwise is told."""
    assert fault_of(sample, VOCABULARY, DEVICE) is None

    def best(logits: torch.Tensor, *_: object) -> Any:
        return logits.argmax(1), logits.argmax(1) * 0 - 1

    def failing(*_: object) -> Any:
        raise RuntimeError("no compiler\nset CC")

    assert fault_of(best, VOCABULARY, DEVICE) == "7 of 8 tokens are others than torch's"
    assert fault_of(failing, VOCABULARY, DEVICE) == "RuntimeError: no compiler"
    assert choose_sampling(VOCABULARY, torch.device("cpu")) is None


def test_equal_logits_rank_by_id() -> None:
    """More equals than are sorted are counted by id, whether they are the best or come after them."""
    equal = torch.full((4, VOCABULARY), 0.5, device=DEVICE)
    assert sampled_tokens(equal, [0.0, 0.5, 0.75, 1 - 2.0**-53]) == [0, 300, 450, 599]
    equal[:, 590:] = 3.0
    assert min(sampled_tokens(equal[:1], [0.95], top_k=500)) < 500 - 10


def test_draws_far_down_the_ranking_are_found() -> None:
    """A flat row's draw is beyond the tokens that are sorted first; so are the ends of a large top-k and top-p."""
    logits = torch.linspace(-3, 3, VOCABULARY, device=DEVICE)[torch.randperm(VOCABULARY, device=DEVICE)].repeat(3, 1)
    logits[2] *= -1e-6
    for cuts in ({"temperature": 50.0}, {"temperature": 50.0, "top_k": 400.0, "top_p": 0.7}):
        tokens = sampled_tokens(logits, [0.5, 0.9, 0.5], **cuts)
        rank = int((logits[0] > logits[0, tokens[0]]).sum())
        assert rank > 5 * NUM_SORTED


def test_rows_that_cannot_be_sampled_are_told() -> None:
    """The first token that is no number, or the vocabulary's length where nothing may be said; others go on."""
    logits = torch.randn((4, VOCABULARY), device=DEVICE)
    logits[0, [77, 80]] = torch.nan
    logits[1, 500] = torch.inf
    logits[2] = -torch.inf
    cuts = Cuts(*(torch.ones(4, device=DEVICE, dtype=kind) for kind in (None, torch.int64, None, None)))
    for given in ((None, None), (cuts, torch.zeros(4, device=DEVICE, dtype=torch.float64))):
        tokens, faults = sample(logits.clone(), adjusting_nothing(4), *given)
        assert faults.tolist() == [77, 500, VOCABULARY, -1]
        assert tokens[3] == logits[3].argmax()
