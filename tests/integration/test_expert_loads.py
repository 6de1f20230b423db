"""Which experts compute a text, as `pyagent models experts` and the metrics tell it."""

from __future__ import annotations

import json
from array import array
from pathlib import Path

import httpx
import pytest
from support.command_line import fresh_environment, pyagent
from support.native import engine_of, run
from support.server import serving
from support.tiny_sparse import EXPERTS, LAYERS, USED, sparse_tensors, write_sparse

from pyagent import _rust
from pyagent.infrastructure.engine.expert_loads import expert_loads

WORDS = "on the bank of a river that has no name "


def write_rigged(path: Path) -> Path:
    """A model whose routers rate all experts alike, so that each token has the first of them; but for layer 3's."""
    tensors = sparse_tensors("qwen2moe")
    for layer in range(LAYERS - 1):
        shape, values = tensors[name := f"blk.{layer}.ffn_gate_inp.weight"]
        tensors[name] = (shape, array("f", [0.0]) * len(values))
    return write_sparse(path, "qwen2moe", tensors)


def test_experts_of_a_text_are_counted(tmp_path: Path) -> None:
    """Each token once for each of its experts, in each layer; the table says which, how many, how unevenly."""
    environment = fresh_environment(tmp_path)
    model, text = write_rigged(tmp_path / "rigged.gguf"), tmp_path / "text.txt"
    text.write_text(WORDS * 5)
    told = pyagent("models", "experts", str(model), "--text", str(text), "--json", env=environment)
    assert told.returncode == 0, told.stderr
    loads = json.loads(told.stdout)
    assert [one["layer"] for one in loads] == list(range(LAYERS))
    num_tokens = {one["num_tokens"] for one in loads}
    assert len(num_tokens) == 1
    assert min(num_tokens) > USED * len(WORDS)  # the tiny vocabulary has few words of more than a letter
    for one in loads[:-1]:
        assert (one["num_unused"], one["imbalance"]) == (EXPERTS - USED, EXPERTS / USED)
        assert one["busiest"] == [[expert, round(1 / USED, 4)] for expert in range(USED)]
    assert loads[-1]["num_unused"] < EXPERTS - USED
    shown = pyagent("models", "experts", str(model), "--text", str(text), env=environment).stdout.splitlines()
    assert shown[0].split() == ["layer", "unused", "imbalance", "busiest"]
    assert shown[1].split(maxsplit=5) == ["0", "3", "of", "6", "2.00", "0 (33.3%), 1 (33.3%), 2 (33.3%)"]


def test_a_model_without_experts_says_so(tiny_model_path: Path, tmp_path: Path) -> None:
    """One line, and nothing else."""
    told = pyagent("models", "experts", str(tiny_model_path), env=fresh_environment(tmp_path))
    assert told.returncode == 1
    assert f"{tiny_model_path} has no experts" in told.stderr
    assert told.stdout == ""


@pytest.mark.parametrize("process", [False, True])
def test_metrics_have_the_loads_of_each_layer(tmp_path: Path, process: bool) -> None:
    """How uneven, and how many experts no token has had; nothing before a token was computed."""
    model = write_rigged(tmp_path / "rigged.gguf")

    async def work() -> None:
        async with (
            engine_of(model, process=process) as backend,
            serving(backend) as url,
            httpx.AsyncClient(timeout=60, base_url=url) as http,
        ):
            assert "expert_imbalance{" not in (await http.get("/metrics")).text
            asked = {"model": str(model), "prompt": WORDS, "max_tokens": 3}
            assert (await http.post("/v1/completions", json=asked)).status_code == 200
            metrics = (await http.get("/metrics")).text
            lines = [line for line in metrics.splitlines() if line.startswith("pyagent_engine_expert")]
            labels = 'engine="0",layer="1",model="rigged"'
            assert f"pyagent_engine_expert_imbalance{{{labels}}} 2.0" in lines
            assert f"pyagent_engine_experts_unused{{{labels}}} 3.0" in lines
            assert len(lines) == 2 * LAYERS

    run(work())


def test_counts_are_whole_whatever_the_threads(tmp_path: Path) -> None:
    """Prompts in chunks on several threads: each token has its experts counted once."""
    model = _rust.CpuModel.load(write_sparse(tmp_path / "m.gguf", "glm4moe"), threads=3, kv_bytes=1 << 22)
    assert {sum(layer) for layer in model.expert_loads()} == {0}
    pool = _rust.BlockPool(model.info()["num_pages"], groups=model.info()["kv_groups"])
    tokens = [(7 * place + place * place) % 250 for place in range(96)]
    pool.add(1, tokens)
    pool.reserve(1, len(tokens))
    for start, length in ((0, 64), (64, 31), (95, 1)):
        model.execute(pool, [1], [length], tokens[start : start + length])
    loads = model.expert_loads()
    assert [sum(layer) for layer in loads] == [0, *[USED * len(tokens)] * (LAYERS - 1)]
    assert [one.layer for one in expert_loads(loads)] == [1, 2, 3]
    assert expert_loads([]) == expert_loads([[0, 0]]) == []
