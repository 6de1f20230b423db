"""Sampling on the device: the CPU kernels' tokens, row by row, and the formulas in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from pyagent import _rust
from pyagent.core.runners.batch import Batch, StepOutput
from pyagent.infrastructure.engine.runners.torch import sampling
from pyagent.infrastructure.engine.runners.torch.launched import HostCopies, LaunchedStep
from pyagent.infrastructure.engine.runners.torch.sampler import Sampler
from pyagent.infrastructure.engine.runners.torch.sampling import Cuts

pytestmark = pytest.mark.oracle

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
VOCABULARY = 1500
PARAMS: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {},
    {"temperature": 0.3, "top_k": 7},
    {"temperature": 2.5, "top_k": 200, "top_p": 0.9},
    {"temperature": 1.7, "top_k": 900, "top_p": 0.8, "min_p": 0.001},
    {"top_p": 0.95},
    {"temperature": 3.0, "min_p": 0.05},
    {"top_p": 0.4, "min_p": 0.2},
    {"top_k": 1},
    {"temperature": 5.0, "logit_bias": [(3, 4.5), (9, -100.0), (11, -2.0)]},
    {"repetition_penalty": 1.3, "frequency_penalty": 0.4, "presence_penalty": 0.7},
    {"temperature": 0.0, "repetition_penalty": 2.0, "num_logprobs": 3, "has_entropy": True},
    {"temperature": 4.0, "allowed_tokens": [2, 5, 7, 1400], "num_logprobs": 6, "has_entropy": True},
    {"num_logprobs": 1, "frequency_penalty": -0.5, "top_k": 40},
    # What the device lacks.
    {"typical_p": 0.6, "num_logprobs": 1, "has_entropy": True},
    {"mirostat": 2},
    {"presence_penalty": 1.0, "repeat_last_n": 4},
]


def samplers(seed: int) -> list[_rust.SamplerState]:
    """A sampler for each of the parameters, which has seen a prompt."""
    made = [_rust.SamplerState(**params, seed=seed + index) for index, params in enumerate(PARAMS)]
    for one in made:
        one.observe_prompt([1, 2, 3, 3, 1000])
    return made


def rows_of(seed: int, spread: float, num_rows: int = len(PARAMS)) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Random logits, some of which are equal."""
    logits = spread * np.random.default_rng(seed).standard_normal((num_rows, VOCABULARY)).astype(np.float32)
    return np.round(logits * 8) / 8


def sample(sampler: Sampler, logits: Any, batch: Batch) -> StepOutput:
    """Sample a batch's rows on the device, and tell its samplers."""
    with torch.inference_mode():
        sampled = sampler.sample(torch.from_numpy(logits.copy()).to(DEVICE), batch)
        output = LaunchedStep(sampled, HostCopies(DEVICE), lambda output: output).result()
    for row in sampled.counting:
        batch.samplers[row].observe([output.tokens[row]])
    return output


def batch_of(states: list[_rust.SamplerState], step: int, masks: dict[int, bytes] | None = None) -> Batch:
    """A batch in which all these sample their `step`-th token."""
    num_rows = len(states)
    return Batch(list(range(num_rows)), [1] * num_rows, [0] * num_rows, states, [step] * num_rows, masks or {})


@pytest.mark.parametrize("spread", [0.3, 2.0, 8.0])
def test_tokens_are_the_cpu_kernels(spread: float) -> None:
    """Every parameter beside every other for 40 steps: the same tokens, log probabilities to 1e-5."""
    on_device, on_cpu, sampler = samplers(5), samplers(5), Sampler(VOCABULARY, DEVICE)
    for step in range(40):
        logits = rows_of(step, spread)
        mask = np.packbits(np.random.default_rng(step).random(1504) < 0.5, bitorder="little").tobytes()
        masks = {1: mask, 5: mask, 10: mask, 14: mask} if step % 3 == 0 else {}
        found = sample(sampler, logits, batch_of(on_device, step, masks))
        expected = _rust.sample_logits(logits.data, on_cpu, [step] * len(PARAMS), masks)
        assert (found.tokens, found.errors) == (expected[0], {})
        assert found.likelihoods.keys() == expected[1].keys()
        for row, (logprob, top, entropy) in expected[1].items():
            assert found.likelihoods[row].logprob == pytest.approx(logprob, abs=1e-5)
            assert found.likelihoods[row].entropy == (entropy and pytest.approx(entropy, abs=1e-5))
            assert [token for token, _ in found.likelihoods[row].top] == [token for token, _ in top]
            values = [value for _, value in top]
            assert [value for _, value in found.likelihoods[row].top] == pytest.approx(values, abs=1e-5)


@pytest.mark.parametrize("spread", [0.0, 0.3, 8.0, 2000.0])
def test_entropy_is_that_of_the_logits_in_float64(spread: float) -> None:
    """To 1e-4 on the device, also of large logits and of rows with most tokens excluded; never below 0."""
    logits = rows_of(7, spread) + spread
    logits[::2, 3:] = -np.inf
    exact = logits.astype(np.float64)
    exact = np.exp(exact - exact.max(1, keepdims=True))
    exact /= exact.sum(1, keepdims=True)
    expected = -np.sum(exact * np.log(np.where(exact > 0, exact, 1)), 1)
    rows = torch.from_numpy(logits).to(DEVICE)
    found = sampling.entropies(rows, sampling.log_sums(rows)).cpu().numpy()
    assert np.abs(found - expected).max() < 1e-4
    assert found.min() > -1e-6


def test_a_row_is_sampled_as_if_it_were_alone() -> None:
    """Whatever is beside it, in whatever order: the same token, from the same seed, step and logits."""
    logits = rows_of(3, 2.0)
    together = sample(Sampler(VOCABULARY, DEVICE), logits, batch_of(samplers(9), 4)).tokens
    for index in range(len(PARAMS)):
        states = samplers(9)[index : index + 1]
        assert sample(Sampler(VOCABULARY, DEVICE), logits[[index]], batch_of(states, 4)).tokens == [together[index]]


def test_samplers_join_and_leave_with_what_they_have_seen() -> None:
    """Rows come, go, change places and pass through the CPU's kernels: penalties count each token once."""
    on_device, on_cpu, sampler = samplers(2), samplers(2), Sampler(VOCABULARY, DEVICE)
    generator = np.random.default_rng(8)
    for step in range(60):
        rows = [int(row) for row in generator.permutation(len(PARAMS))[: generator.integers(1, len(PARAMS))]]
        logits = rows_of(step, 1.0, len(rows))
        batch = Batch(rows, [1] * len(rows), [0] * len(rows), [on_device[row] for row in rows], [step] * len(rows))
        if step % 7 == 3:
            batch.process, batch.processed = lambda _: {}, frozenset([0])
        expected = _rust.sample_logits(logits.data, [on_cpu[row] for row in rows], [step] * len(rows))
        assert sample(sampler, logits, batch).tokens == expected[0]


@pytest.mark.parametrize("top_k", [1 << 18, 300, 60, 1])
def test_ranked_and_unranked_rows_have_the_same_tokens(top_k: int) -> None:
    """Digit by digit, without sorting, the same token is found as in the ranking, to the bit."""
    logits = torch.from_numpy(rows_of(4, 3.0, 400)).to(DEVICE)
    logits[::3, 50:] = -torch.inf
    generator = torch.Generator().manual_seed(6)

    def between(low: float, high: float) -> torch.Tensor:
        return (low + (high - low) * torch.rand(400, generator=generator)).to(DEVICE)

    cuts = Cuts(
        between(0.1, 4), torch.full((400,), top_k, device=DEVICE), between(0.2, 1.1).clamp(max=1), between(0, 0.1)
    )
    uniform = between(0, 1).double()
    uniform[:4] = torch.tensor([0.0, 1 - 2.0**-53, 0.5, 0.25])
    unranked = sampling.sample_unranked(logits, cuts, uniform, has_top_k=top_k < 1 << 18)
    assert unranked.equal(sampling.sample_ranked(logits, cuts, uniform, min(top_k, VOCABULARY)))


@pytest.mark.parametrize("params", [{}, {"top_k": 12}, {"top_p": 0.7}, {"min_p": 0.08}, {"top_k": 30, "top_p": 0.9}])
def test_samples_are_distributed_as_the_formulas_say(params: dict[str, Any]) -> None:
    """Chi-square of 5,000 seeds against the filters in float64; a right sampler fails once in a million runs."""
    logits = np.random.default_rng(2).standard_normal(64).astype(np.float32) * 2
    probabilities = np.exp(logits.astype(np.float64) / 1.5)
    order = np.argsort(-probabilities, kind="stable")
    kept = probabilities[order] / probabilities.sum()
    kept[params.get("top_k", 64) :] = 0
    kept /= kept.sum()
    before = np.concatenate([[0.0], kept.cumsum()[:-1]])
    kept = np.where((before < params.get("top_p", 1.0)) & (kept >= params.get("min_p", 0.0) * kept[0]), kept, 0)
    expected = np.zeros(64)
    expected[order] = 5_000 * kept / kept.sum()

    states = [_rust.SamplerState(temperature=1.5, seed=seed, **params) for seed in range(5_000)]
    tokens = sample(Sampler(64, DEVICE), np.tile(logits, (5_000, 1)), batch_of(states, 7)).tokens
    counts = np.bincount(tokens, minlength=64)
    assert counts[expected == 0].sum() == 0
    is_kept = expected >= 5
    squared = ((counts - expected)[is_kept] ** 2 / expected[is_kept]).sum()
    freedom = is_kept.sum() - 1
    # Wilson and Hilferty's cube root is near to normal; 4.75 deviations are exceeded once in a million.
    most = freedom * (1 - 2 / (9 * freedom) + 4.75 * np.sqrt(2 / (9 * freedom))) ** 3
    assert squared < most


def test_rows_that_cannot_be_sampled_say_why_and_others_go_on() -> None:
    """A logit that is no number, an infinite one, a mask that excludes all: an error each, and the others' tokens."""
    logits = rows_of(1, 1.0)
    logits[1, 77] = np.nan
    logits[2, 5] = np.inf
    masks = {3: bytes(188)}
    on_device, on_cpu = samplers(1), samplers(1)
    found = sample(Sampler(VOCABULARY, DEVICE), logits, batch_of(on_device, 0, masks))
    expected = _rust.sample_logits(logits.data, on_cpu, [0] * len(PARAMS), masks)
    assert found.errors.keys() == expected[2].keys() == {1, 2, 3}
    assert found.errors[3] == expected[2][3]
    assert "the logit of token 77 is not finite" in found.errors[1]
    assert "the logit of token 5 is not finite" in found.errors[2]
    assert [token for row, token in enumerate(found.tokens) if row not in found.errors] == [
        token for row, token in enumerate(expected[0]) if row not in expected[2]
    ]
