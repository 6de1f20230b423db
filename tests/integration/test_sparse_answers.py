"""Answers of sparse models by the embedded engine: a request's text is its own, in any company and on any set."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from support.native import alone, assert_idle, at_once, mixed_requests, options, run, running
from support.tiny_sparse import write_sparse

from pyagent import _rust
from pyagent.infrastructure.engine.models.loaded_model import EngineOptions

VARIANTS: dict[str, Callable[[], EngineOptions]] = {
    "seven tokens a step": lambda: options(blocks=4096, max_num_batched_tokens=7),
    "little memory": lambda: options(blocks=4 * 28, max_num_batched_tokens=64, threads=2),
    **{
        f"isa {isa}": (lambda isa=isa: options(blocks=4096, isa=isa, threads=2)) for isa in _rust.cpu_features()["isas"]
    },
}


@pytest.mark.parametrize("family", ["gpt-oss", "glm4moe", "deepseek2"])
def test_answers_of_sparse_models_in_a_batch_are_those_given_alone(family: str, tmp_path: Path) -> None:
    """Eight mixed requests at once, twice, so that prefixes are cached: in chunks, preempted, on every set, as alone.

    Tokens share experts with their neighbours, and keys slide out of gpt-oss's windows.
    """
    path = write_sparse(tmp_path / "m.gguf", family)
    requests = mixed_requests(8)
    expected = asyncio.run(alone(path, requests))
    assert len(set(expected)) > 5

    async def work(chosen: EngineOptions) -> None:
        async with running(path, chosen) as backend:
            for _ in range(2):
                assert [answer.text for answer in await at_once(backend, requests)] == expected
            await assert_idle(backend)

    for variant in VARIANTS.values():
        run(work(variant()))
