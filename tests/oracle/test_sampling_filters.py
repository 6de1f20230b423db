"""The filters beside transformers' logits processors on the same logits."""

from __future__ import annotations

from typing import Any

import pytest

from pyagent import _rust

pytestmark = pytest.mark.oracle
VOCAB = 1000
PROMPT = [1, 2, 3, 4, 1, 2, 3, 5, 1, 2]
THEIRS: dict[str, tuple[dict[str, Any], str, dict[str, Any]]] = {
    "temperature": ({"temperature": 0.7}, "TemperatureLogitsWarper", {"temperature": 0.7}),
    "top_k": ({"top_k": 17}, "TopKLogitsWarper", {"top_k": 17}),
    "top_p": ({"top_p": 0.83}, "TopPLogitsWarper", {"top_p": 0.83}),
    "min_p": ({"min_p": 0.04}, "MinPLogitsWarper", {"min_p": 0.04}),
    "typical": ({"typical_p": 0.61}, "TypicalLogitsWarper", {"mass": 0.61}),
    "epsilon": ({"epsilon_cutoff": 0.0023}, "EpsilonLogitsWarper", {"epsilon": 0.0023}),
    "eta": ({"eta_cutoff": 0.0031}, "EtaLogitsWarper", {"epsilon": 0.0031, "device": "cpu"}),
    "ngrams": ({"no_repeat_ngram_size": 3}, "NoRepeatNGramLogitsProcessor", {"ngram_size": 3}),
}
"""Ours, and theirs by name and options."""


@pytest.mark.parametrize("name", THEIRS)
@pytest.mark.parametrize("spread", [0.3, 1.0, 3.0])
def test_filters_are_those_of_transformers(name: str, spread: float) -> None:
    """The same tokens are left with the same probabilities, for flat and steep rows."""
    torch = pytest.importorskip("torch", reason="`make oracle` installs it")
    processors = pytest.importorskip("transformers.generation.logits_process")
    sampling, processor, options = THEIRS[name]
    theirs = getattr(processors, processor)(**options)
    for seed in range(20):
        logits = torch.randn(1, VOCAB, generator=torch.Generator().manual_seed(seed)) * spread
        logits[0, 3] += 8.0  # what the prompt's n-grams would go on with
        expected = theirs(torch.tensor([PROMPT]), logits.clone()).double().softmax(-1)[0]
        sampler = _rust.SamplerState(**sampling)
        sampler.observe_prompt(PROMPT)
        found = torch.zeros(VOCAB, dtype=torch.float64)
        for token, share in sampler.distribution(logits[0].tolist()):
            found[token] = share
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-9)
