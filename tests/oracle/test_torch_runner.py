"""The torch runner on torch's CPU device: it keeps the runner's contract, and computes what transformers do."""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import json
import mmap
import subprocess
import sys
import weakref
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.mixtures import FAMILIES as MIXTURES
from support.mixtures import SLOW as SLOW_MIXTURES
from support.mixtures import random_mixture, write_gpt_oss
from support.native import answers_of, chat, engine_of
from support.reference_decoder import FAMILIES, write_family, write_safetensors
from support.sparse_models import random_model, tensors_of, write_as_gguf
from support.torch_sequences import EXACT, STEP, Sequences, expect_logits, torch_runner

from pyagent.assembly import make_chain, make_host
from pyagent.core.backends import collect
from pyagent.core.config import load_settings
from pyagent.core.errors import ConfigError, ModelError
from pyagent.core.runners.factory import LargestStep, RunnerOptions
from pyagent.infrastructure.engine.options import EngineOptions
from pyagent.infrastructure.engine.runners.choice import pick_runners
from pyagent.infrastructure.engine.runners.cpu import CpuRunner
from pyagent.infrastructure.engine.runners.cpu_factory import CPU
from pyagent.infrastructure.engine.runners.torch.factory import TorchRunnerFactory
from pyagent.infrastructure.engine.step_executor import AsyncScheduling
from pyagent.infrastructure.engine.tokens import ModelTokenizer
from pyagent.infrastructure.server.app import create_app
from pyagent.testing import RunnerConformance, serve

pytestmark = pytest.mark.oracle

TORCH = TorchRunnerFactory()
QUESTION = "Write two sentences about the sea."


class TestTorchRunner(RunnerConformance):
    factory = TORCH

    @pytest.fixture
    def model_path(self, tiny_model_path: Path) -> Path:
        return tiny_model_path


class TestTorchRunnerWithWindows(RunnerConformance):
    factory = TORCH

    @pytest.fixture
    def model_path(self, tiny_gemma_path: Path) -> Path:
        return tiny_gemma_path


class TestTorchRunnerAhead(RunnerConformance):
    """With steps launched before the last one's tokens are known."""

    factory = TORCH

    @pytest.fixture
    def model_path(self, tiny_model_path: Path) -> Path:
        return tiny_model_path

    def _options(self, max_num_batched_tokens: int = 512) -> EngineOptions:
        return dataclasses.replace(super()._options(max_num_batched_tokens), async_scheduling="on")


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_of_every_family_are_those_of_transformers(family: str, tmp_path: Path) -> None:
    """Prefixes of all lengths at once, then chunks beside sequences that decode: to 1e-5 of the largest logit."""
    import torch
    from transformers import AutoModelForCausalLM

    config, _ = write_family(tmp_path, family)
    tokens = [(7 * place + place * place) % config["vocab_size"] for place in range(60)]
    options = {"dtype": torch.float32, "attn_implementation": "eager"}
    reference = AutoModelForCausalLM.from_pretrained(tmp_path, **options).eval()
    with torch.no_grad():
        expected = reference(torch.tensor([tokens])).logits[0].numpy()
    expect_logits(torch_runner(tmp_path), tokens, expected)


@pytest.mark.parametrize(
    "family", [pytest.param(name, marks=pytest.mark.slow if name in SLOW_MIXTURES else ()) for name in MIXTURES]
)
def test_logits_of_mixtures_are_those_of_transformers(family: str, tmp_path: Path) -> None:
    """Random weights; prompts, which group tokens by expert, and steps that decode, which do not: `expect_logits`."""
    import torch

    tokens = [(7 * place + place * place) % 250 for place in range(60)]
    model = random_mixture(family, tmp_path)
    with torch.no_grad():
        expected = model(torch.tensor([tokens])).logits[0].numpy()
    runner = torch_runner(tmp_path, dataclasses.replace(EXACT, threads=1))
    expect_logits(runner, tokens, expected)
    sequences = Sequences(runner)
    for place in range(20):
        sequences.compute(*((number, tokens[place : place + 1]) for number in (900, 901)))
        assert abs(runner.rows - expected[place]).max() < 1e-5 * abs(expected).max()


_GGUF_SLOW = ("granitemoeshared", "glm4_moe, as Ling", "hunyuan_v1_moe", "exaone_moe", "mellum")


@pytest.mark.parametrize(
    "family",
    ["qwen2_moe", "glm4_moe", "afmoe", *(pytest.param(name, marks=pytest.mark.slow) for name in _GGUF_SLOW)],
)
def test_gguf_files_are_the_same_mixtures(family: str, tmp_path: Path) -> None:
    """A layer's experts in one tensor of each kind, under llama.cpp's names: the logits of the folder."""
    random_model(family, tmp_path / "folder")
    gguf = write_as_gguf(tmp_path / "m.gguf", family, tensors_of(tmp_path / "folder"))
    tokens = [(7 * place + place * place) % 250 for place in range(60)]
    rows = list[Any]()
    for path in (tmp_path / "folder", gguf):
        runner = torch_runner(path, dataclasses.replace(EXACT, threads=1))
        Sequences(runner).compute((1, tokens[:40]), (2, tokens[5:6]))
        rows.append(runner.rows)
    assert abs(rows[0] - rows[1]).max() < 1e-5 * abs(rows[0]).max()


@pytest.mark.parametrize("quantization", ["keep", "none"])
def test_mxfp4_experts_are_those_of_the_dequantised_model(quantization: Any, tmp_path: Path) -> None:
    """From both kinds of files, kept in 4 bits and not: the same bits, and transformers' logits of those weights."""
    import torch

    tokens = [(7 * place + place * place) % 250 for place in range(60)]
    *paths, model = write_gpt_oss(tmp_path / "gpt_oss")
    with torch.no_grad():
        expected = model(torch.tensor([tokens])).logits[0].numpy()
    rows = list[Any]()
    for path in paths:
        runner = torch_runner(path, dataclasses.replace(EXACT, threads=1, quantization=quantization))
        expect_logits(runner, tokens, expected)
        rows.append(runner.rows)
    assert (rows[0] == rows[1]).all()


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_half_precision_is_near_float32(dtype: Any, tmp_path: Path) -> None:
    """Weights and products of 16 bits: each position's logits have a cosine above 0.999 with float32's."""
    import numpy as np

    write_family(tmp_path, "qwen3")
    tokens = [(7 * place + place * place) % 96 for place in range(60)]
    rows = []
    for options in (EXACT, RunnerOptions(threads=2, kv_bytes=1 << 24, dtype=dtype)):
        runner = torch_runner(tmp_path, options)
        Sequences(runner).compute(*((length, tokens[:length]) for length in range(1, 61)))
        rows.append(runner.rows)
    cosines = (rows[0] * rows[1]).sum(1) / np.linalg.norm(rows[0], axis=1) / np.linalg.norm(rows[1], axis=1)
    assert cosines.min() > 0.999


def test_fp8_kv_is_near_float32(tmp_path: Path) -> None:
    """A quarter of float32's memory and a byte for each head; logits, of random weights, keep a cosine above 0.98."""
    import numpy as np

    write_family(tmp_path, "qwen3")
    tokens = [(7 * place + place * place) % 96 for place in range(60)]
    rows, page_bytes = [], []
    for options in (EXACT, dataclasses.replace(EXACT, kv_dtype="fp8")):
        runner = torch_runner(tmp_path, options)
        sequences = Sequences(runner)
        for start, end in ((0, 21), (21, 22), (22, 60)):
            sequences.compute((1, tokens[start:end]))
        sequences.compute(*((length + 2, tokens[:length]) for length in range(1, 61)))
        rows.append(runner.rows)
        page_bytes.append(runner.info.page_bytes)
    cosines = (rows[0] * rows[1]).sum(1) / np.linalg.norm(rows[0], axis=1) / np.linalg.norm(rows[1], axis=1)
    assert cosines.min() > 0.98
    print(f"cosine {cosines.mean():.4f}, at worst {cosines.min():.4f}")
    assert cosines.mean() > 0.995
    assert page_bytes[0] * (32 + 1) == page_bytes[1] * 4 * 32  # heads of 32


@pytest.mark.parametrize("window", [None, 5, 16, 40])
@pytest.mark.parametrize(("num_heads", "num_kv_heads"), [(4, 4), (6, 2), (8, 1)])
def test_sdpa_is_the_plain_form(
    num_heads: int, num_kv_heads: int, window: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ragged batches over pages in any order, whose other contents are NaN: the same heads to 1e-5, with sinks too."""
    import torch

    from pyagent.infrastructure.engine.runners.torch.attention import plain, sdpa
    from pyagent.infrastructure.engine.runners.torch.attention.batch import AttentionBatch
    from pyagent.infrastructure.engine.runners.torch.attention.cpu import CpuAttend
    from pyagent.infrastructure.engine.runners.torch.attention.paged_cache import PagedCache

    torch.manual_seed(3)
    num_queries, num_tokens = [1, 1, 1, 1, 17, 1, 33, 16], [1, 16, 17, 90, 17, 40, 50, 64]
    starts = torch.tensor([0, *num_queries], dtype=torch.int32).cumsum(0, dtype=torch.int32)
    tables = torch.randperm(8 * 6, dtype=torch.int32).view(8, 6)
    caches = [torch.full((48, 16, num_kv_heads, 32), torch.nan) for _ in range(2)]
    for table, length in zip(tables, num_tokens, strict=True):
        for place in range(length):
            for cache in caches:
                cache[table[place // 16], place % 16] = torch.randn(num_kv_heads, 32)
    q = torch.randn(sum(num_queries), num_heads, 32)
    batch = AttentionBatch(starts, torch.tensor(num_tokens, dtype=torch.int32), tables, num_queries, num_tokens)
    expected = plain.attend(q.double(), PagedCache(*(cache.double() for cache in caches)), batch, 0.2, window, None)
    assert not expected.isnan().any()
    for attend in (sdpa.attend, CpuAttend()):
        found = attend(q, PagedCache(*caches), batch, 0.2, window, None)
        torch.testing.assert_close(found.double(), expected, atol=1e-5, rtol=0)
    sinks, doubled = torch.linspace(-2, 4, num_heads), PagedCache(*(cache.double() for cache in caches))
    expected = plain.attend(q.double(), doubled, batch, 0.2, window, None, sinks)
    monkeypatch.setattr(sdpa, "SINK_MASK_NUMBERS", 2000)  # prompts in parts
    found = sdpa.attend(q, PagedCache(*caches), batch, 0.2, window, None, sinks)
    torch.testing.assert_close(found.double(), expected, atol=1e-5, rtol=0)


def test_decoding_on_the_cpu_keeps_its_memory_and_nothing_else() -> None:
    """Steps of other lengths, sequences, windows and data types in turn through one memory: always the plain form.

    Sequences of unlike lengths, and those that the memory has no room for together, are computed in groups.
    """
    import torch
    from support.paged_attention import Heads, make_inputs

    from pyagent.infrastructure.engine.runners.torch.attention import plain
    from pyagent.infrastructure.engine.runners.torch.attention.cpu import CpuAttend

    attend = CpuAttend(scratch_bytes=64 << 10)
    batches = ([700, 3, 40, 33, 690, 1, 36], [20] * 9, [16], [400, 399, 401])
    for dtype, window, lengths in product((torch.float32, torch.bfloat16), (None, 24), batches):
        heads = Heads(6, 2, 32)
        q, cache, batch = make_inputs([1] * len(lengths), lengths, heads, dtype, window=window)
        for _ in range(2):  # the second layer of a step finds the first one's layout
            expected = plain.attend(q.float(), cache, batch, 0.2, window, None)
            found = attend(q.float(), cache, batch, 0.2, window, None)
            torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)


def test_sequences_of_like_lengths_are_computed_together() -> None:
    """A group is padded by a quarter or four blocks at most, and holds what there is memory for, or one sequence."""
    from pyagent.infrastructure.engine.runners.torch.attention.cpu import even_groups

    assert list(even_groups([10] * 5, 50)) == [[0, 1, 2, 3, 4]]
    assert list(even_groups([10] * 5, 20)) == [[0, 1], [2, 3], [4]]
    assert list(even_groups([100, 1, 5, 6, 125, 126], 1000)) == [[1, 2], [3], [0, 4], [5]]
    assert list(even_groups([100, 90], 10)) == [[1], [0]]


@pytest.mark.parametrize(("head_dim", "dtype"), [(8, "f32"), (32, "f32"), (64, "f32"), (64, "fp8")])
def test_emptied_pages_are_given_back_and_no_others(head_dim: int, dtype: str) -> None:
    """Runs of pages, of sizes that are parts of the system's pages or several: what others hold stays."""
    import torch

    from pyagent.infrastructure.engine.runners.torch.device import KV_DTYPES
    from pyagent.infrastructure.engine.runners.torch.kv_cache import KvCache, KvLayers

    layers = KvLayers.of([None, 12, 12])
    assert (layers.groups, layers.num_slots) == ((("full", 0, 1), ("window", 12, 2)), 1)
    assert [tuple(place) for place in layers.places] == [(0, 0), (1, 0), (2, 0)]
    cache = KvCache(layers.num_slots, (40, 16, 2, head_dim), KV_DTYPES[dtype], torch.device("cpu"))
    kept = [page for page in range(40) if page not in {3, *range(9, 30), 39}]
    tensors = [tensor for slot in cache.slots for tensor in slot.tensors]
    for tensor in tensors:
        tensor.view(torch.uint8).fill_(1)
    cache.empty_pages([29, 39, 3, *range(9, 29)])
    for tensor in tensors:
        assert tensor.view(torch.uint8)[kept].eq(1).all()
        emptied = tensor.view(torch.uint8)[9:30].flatten()  # but for what the system's pages share with others
        assert emptied.eq(0).sum() >= len(emptied) - 2 * mmap.PAGESIZE


@pytest.mark.parametrize(("num_blocks", "scheduling"), [(48, "on"), (1000, "off"), (1000, "on")])
def test_answers_are_the_cpu_runners(tiny_model_path: Path, num_blocks: int, scheduling: AsyncScheduling) -> None:
    """Forks, shared beginnings, chunks, eviction, preemption, steps launched ahead: both runners' answers are the same,
    samples too."""
    kv_bytes = num_blocks * 2 * 2 * 16 * 2 * 16 * 4
    on_cpu = answers_of(CPU, tiny_model_path, kv_bytes)
    assert answers_of(TORCH, tiny_model_path, kv_bytes, scheduling, dtype="f32") == on_cpu


def test_pages_that_the_pool_swaps_are_read_where_they_are(tmp_path: Path) -> None:
    """A block that is whole and known already: its sequence goes on from the known one, whoever takes its own page."""
    import numpy as np

    write_family(tmp_path, "llama")
    runner = torch_runner(tmp_path)
    sequences, tokens = Sequences(runner), [place % 90 for place in range(60)]
    sequences.compute((1, tokens[:15]), (2, tokens[:15]))
    sequences.compute((1, tokens[15:16]), (2, tokens[15:16]))
    assert runner.pool.tables(1) == runner.pool.tables(2)
    sequences.compute(*((3 + number, tokens[20:60]) for number in range(4)))
    for place in range(16, 36):
        sequences.compute((1, [tokens[place]]), (2, [tokens[place]]))
        assert np.array_equal(runner.rows[0], runner.rows[1])
    alone = torch_runner(tmp_path)
    Sequences(alone).compute((1, tokens[:36]))
    assert np.abs(runner.rows[1] - alone.rows[0]).max() < 1e-5 * np.abs(alone.rows).max()


def test_sequences_that_pause_give_way_in_the_batch(tmp_path: Path) -> None:
    """More sequences than a step may have, some at a time: each goes on as if it had been alone."""
    import numpy as np

    write_family(tmp_path, "llama")
    tokens = [(11 * place) % 90 for place in range(40)]
    alone, runner = torch_runner(tmp_path), torch_runner(tmp_path)
    Sequences(alone).compute((1, tokens))
    sequences = Sequences(runner)
    for number in range(0, 140, 20):
        sequences.compute(*((one, tokens[: 10 + one % 9]) for one in range(number, number + 20)))
    for number in (0, 77, 139):
        sequences.compute((number, tokens[10 + number % 9 :]))
        assert np.abs(runner.rows - alone.rows).max() < 1e-5 * np.abs(alone.rows).max()


def test_smollm2_says_what_it_says_on_the_cpu_runner(smollm2_path: Path) -> None:
    """The same GGUF, greedy: where the texts differ first, and by how much the distributions (of 8 bits on the CPU)."""
    import numpy as np

    cpu = CpuRunner(smollm2_path, EXACT)
    tokenizer = ModelTokenizer.load(smollm2_path, vocab_size=cpu.vocab_size)
    runner = torch_runner(smollm2_path)
    on_cpu, on_torch = Sequences(cpu), Sequences(runner)
    tokens = tokenizer.encode_text(f"<|im_start|>user\n{QUESTION}<|im_end|>\n<|im_start|>assistant\n")
    divergences, is_same = [], []
    for _ in range(48):
        (said,) = on_cpu.compute((1, tokens))
        (other,) = on_torch.compute((1, tokens))
        expected = np.frombuffer(cpu.model.logits(), dtype="<f4")
        logs = [row - row.max() - np.log(np.exp(row - row.max()).sum()) for row in (expected, runner.rows[0])]
        divergences.append(float((np.exp(logs[0]) * (logs[0] - logs[1])).sum()))
        is_same.append(said == other)
        tokens = [said]
    first = is_same.index(False) if False in is_same else None
    print(f"first difference {first}, KL mean {np.mean(divergences):.2e}, most {max(divergences):.2e}")
    assert np.mean(is_same) > 0.9
    assert np.mean(divergences) < 5e-3


def test_server_answers_with_the_torch_runner(smollm2_path: Path) -> None:
    """`engine.runner = torch` over HTTP: SmolLM2 streams an answer, and the engine's state names the runner."""
    chosen = {"engine.models": [str(smollm2_path)], "engine.runner": "torch", "engine.threads": 2}
    settings = load_settings(overrides=chosen).settings
    chain = make_chain(settings, make_host(settings), ["native"])
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    body = {"model": str(smollm2_path), "messages": messages, "temperature": 0, "max_tokens": 12, "stream": True}
    with serve(create_app(chain)) as url, httpx.Client(base_url=url, timeout=60) as http:
        lines = http.post("/v1/chat/completions", json=body).raise_for_status().text.splitlines()
        (state,) = http.get("/pyagent/engine").raise_for_status().json().values()
    asyncio.run(chain.close())
    chunks = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    text = "".join(choice["delta"].get("content") or "" for chunk in chunks for choice in chunk["choices"])
    assert "Paris" in text
    assert list(state["runners"].values()) == ["torch"]


@pytest.mark.parametrize(
    ("setting", "value", "said"),
    [
        ("engine.kv_dtype", "int8", "kv_dtype is int8, which the torch runner lacks; set it to f32, f16, bf16, fp8"),
        ("engine.isa", "avx2", "engine.isa is avx2, which the torch runner cannot follow"),
    ],
)
def test_torch_runner_refuses_what_it_lacks_by_name(tiny_model_path: Path, setting: str, value: str, said: str) -> None:
    """A setting that it cannot follow is an error that names the setting, when the model is to be loaded."""

    async def work() -> None:
        settings = {"engine.runner": "torch", setting: value}
        async with engine_of(tiny_model_path, process=False, **settings) as backend:
            with pytest.raises(ConfigError, match=said) as caught:
                await collect(backend.chat(chat("ab")))
        assert caught.value.key == setting

    asyncio.run(work())


@pytest.mark.slow
def test_models_show_tells_what_fits_the_torch_runner(tiny_model_path: Path, tmp_path: Path) -> None:
    """Types of KV that the runner lacks are left out; the others say whether the model fits."""
    (tmp_path / "pyagent.toml").write_text('[engine]\nrunner = "torch"\n')
    code = "from pyagent.cli.main import main; main()"
    command = [sys.executable, "-c", code, "models", "show", str(tiny_model_path), "--json"]
    shown = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=True)
    fits = json.loads(shown.stdout)["fits"]
    assert {kind: fit["fits"] for kind, fit in fits.items()} == {"bf16": True, "f16": True, "fp8": True}


def test_model_that_lacks_a_tensor_is_named(tiny_model_path: Path, tmp_path: Path) -> None:
    """A file without one of its tensors, or with one of another shape, is a `ModelError` that names the tensor."""
    config, tensors = write_family(tmp_path, "llama")
    del tensors["model.layers.1.mlp.up_proj.weight"]
    write_safetensors(tmp_path, config, tensors)
    with pytest.raises(ModelError, match=r"no tensor 'blk\.1\.ffn_up\.weight'"):
        torch_runner(tmp_path)
    tensors["model.layers.1.mlp.up_proj.weight"] = tensors["model.layers.1.mlp.down_proj.weight"]
    write_safetensors(tmp_path, config, tensors)
    with pytest.raises(ModelError, match=r"'blk\.1\.ffn_up\.weight' is \[64, 80\]; expected 80 x 64"):
        torch_runner(tmp_path)


def test_auto_takes_the_cpu_runner_without_a_gpu(tiny_model_path: Path) -> None:
    """Torch alone changes nothing: `auto` asks for a GPU, and says why it passes the torch runner over."""
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    settings = load_settings(overrides={"engine.models": [str(tiny_model_path)]}).settings
    choice = pick_runners("auto", make_host(settings).runners())
    assert [factory.name for factory in choice.available()] == ["cpu"]
    assert "no GPU" in dict(choice.unavailable())["torch"]


def test_a_model_that_does_not_fit_leaves_no_weights_behind(tiny_model_path: Path) -> None:
    """Out of memory while a model loads: the error that its users keep holds no part of the model."""
    import torch

    from pyagent.infrastructure.engine.runners.torch.runner import TorchRunner

    class Cramped(TorchRunner):
        def choose_stages(self, trial: Any) -> Any:
            models.append(weakref.ref(self._model))
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    models: list[weakref.ref[Any]] = []
    with pytest.raises(ModelError, match="does not fit the GPU's memory: CUDA out of memory;") as kept:
        Cramped(tiny_model_path, EXACT, STEP)
    gc.collect()
    assert kept.value.__cause__ is not None
    assert [model() for model in models] == [None]


@pytest.mark.parametrize(("kv_dtype", "expected"), [("auto", 4), ("bf16", 2)])
def test_keys_and_values_have_the_type_of_the_products(tiny_model_path: Path, kv_dtype: Any, expected: int) -> None:
    """With `auto` a float32 model keeps float32 keys and values; a type that is asked for is taken."""
    needs = TORCH.estimate(tiny_model_path, RunnerOptions(dtype="f32", kv_dtype=kv_dtype), STEP)
    exact = TORCH.estimate(tiny_model_path, RunnerOptions(dtype="f32", kv_dtype="f32"), STEP)
    assert needs.page_bytes * 4 == exact.page_bytes * expected


def test_loading_says_what_each_phase_took(tiny_model_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """One line in the log and the engine's state have seconds of all phases, in their order."""

    async def load() -> dict[str, float]:
        async with engine_of(tiny_model_path, process=False, **{"engine.runner": "torch"}) as backend:
            await collect(backend.chat(chat("ab", max_tokens=1)))
            (seconds,) = (await backend.engine_state()).load_seconds.values()
            return seconds

    with caplog.at_level("INFO", "pyagent"):
        seconds = asyncio.run(load())
    assert list(seconds) == ["look", "open", "read", "move", "kv", "kernels", "tokenizer"]
    (record,) = [record for record in caplog.records if "runs on torch, loaded in" in record.getMessage()]
    assert vars(record)["seconds"] == seconds


def test_weights_are_counted_as_they_come(tiny_model_path: Path) -> None:
    """Of a load all matrices count that `estimate` said, in float32 as in half of it, and never more."""
    from pyagent import _rust

    for dtype in ("f32", "bf16"):
        progress = _rust.LoadProgress()
        options = RunnerOptions(dtype=dtype, kv_bytes=1 << 20, progress=progress)
        progress.expect(TORCH.estimate(tiny_model_path, options, STEP).weight_bytes)
        TORCH.load(tiny_model_path, options, STEP, None).close()
        assert 0.95 * progress.bytes_total <= progress.bytes_done <= progress.bytes_total


def test_what_a_rank_reads_counts_for_all_ranks_and_its_time_is_divided_as_its_threads() -> None:
    """Of two ranks one counts twice what it reads, never more than there is; time is divided as its threads' is."""
    from pyagent import _rust
    from pyagent.infrastructure.engine.runners.torch.progress import ReadProgress

    now, load, seen = 0.0, _rust.LoadProgress(), list[int]()
    load.expect(15_000)
    progress = ReadProgress(load, 2, clock=lambda: now)
    for _ in range(4):
        with progress.reading():
            now += 3.0
        with progress.moving():
            now += 1.0
        progress.note(2_000)
        seen.append(load.bytes_done)
    assert seen == [4_000, 8_000, 12_000, 15_000]
    assert progress.phases() == {"read": 12.0, "move": 4.0}


def test_short_texts_of_a_longrope_model_are_those_of_transformers(tmp_path: Path) -> None:
    """With `engine.max_model_len` within the original context, texts have the numbers that short ones have there."""
    import numpy as np
    import torch
    from transformers import AutoModelForCausalLM

    from pyagent.infrastructure.engine.runners.torch.runner import TorchRunner

    class Kept(TorchRunner):
        def logits(self, packed: Any) -> Any:
            rows.append(super().logits(packed))
            return rows[-1]

    rows: list[Any] = []
    config, _ = write_family(tmp_path, "phi3-longrope")
    tokens = [(7 * place + place * place) % config["vocab_size"] for place in range(32)]
    reference = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()
    with torch.no_grad():
        expected = reference(torch.tensor([tokens])).logits[0, -1].numpy()
    Sequences(Kept(tmp_path, EXACT, LargestStep(2048, 64, 32))).compute((1, tokens))
    assert np.abs(rows[0][-1].numpy() - expected).max() < 1e-5 * np.abs(expected).max()
    Sequences(Kept(tmp_path, EXACT, LargestStep(2048, 64, 33))).compute((1, tokens))
    assert np.abs(rows[1][-1].numpy() - expected).max() > 1e-3


def test_a_file_that_becomes_shorter_while_it_is_read_is_an_error(tmp_path: Path) -> None:
    """A download that begins again over a model which is being loaded: the error names the file."""
    from pyagent.infrastructure.engine.runners.torch.device import target_of
    from pyagent.infrastructure.engine.runners.torch.models import open_model
    from pyagent.infrastructure.engine.runners.torch.parallel.shard import ModelPart, Shard
    from pyagent.infrastructure.engine.runners.torch.progress import ReadProgress

    write_family(tmp_path, "llama")
    opened = open_model(tmp_path, {})
    (file,) = tmp_path.glob("*.safetensors")
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    part = ModelPart.of(opened.config, Shard(0, 1, 1))
    with pytest.raises(ModelError, match=f"{file.name}.*read the file"):
        opened.load(part, target_of(EXACT), 1, ReadProgress())


@pytest.mark.slow
@pytest.mark.parametrize("process", [False, True])
def test_attention_is_changed_while_a_model_runs(process: bool, tiny_model_path: Path) -> None:
    """`POST /pyagent/engine/attention` between and during requests: the state names the backend, answers stay."""
    chosen = {"engine.models": [str(tiny_model_path)], "engine.runner": "torch", "engine.threads": 1}
    chosen["engine.process"] = process
    settings = load_settings(overrides=chosen).settings
    chain = make_chain(settings, make_host(settings), ["native"])
    body = {"model": str(tiny_model_path), "prompt": "one two", "temperature": 0, "max_tokens": 40}
    with serve(create_app(chain)) as url, httpx.Client(base_url=url, timeout=300) as http:

        def said() -> str:
            return http.post("/v1/completions", json=body).raise_for_status().json()["choices"][0]["text"]

        def change(name: str) -> httpx.Response:
            return http.post("/pyagent/engine/attention", json={"attention": name})

        early = change("torch")
        assert (early.status_code, early.json()["error"]["param"]) == (400, "attention")
        assert "no loaded model with several attention backends" in early.text
        first = said()
        for name, runs in (("torch", "torch"), ("sdpa", "sdpa"), ("auto", "rust")):
            (state,) = change(name).raise_for_status().json().values()
            assert list(state["attention"].values()) == [runs]
            assert said() == first
        with ThreadPoolExecutor(1) as beside:
            answers = beside.submit(lambda: [said() for _ in range(4)])
            for name in ("torch", "sdpa") * 5:
                change(name).raise_for_status()
            assert answers.result() == [first] * 4
        for name, why in (("flashinfer", "is not installed"), ("sdap", "did you mean 'sdpa'")):
            refused = change(name)
            assert refused.status_code == 400
            assert why in refused.text
        (state,) = http.get("/pyagent/engine").json().values()
        assert list(state["attention"].values()) == ["sdpa"]
    asyncio.run(chain.close())
