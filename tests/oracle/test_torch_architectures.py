"""Architectures of the torch runner: the shipped ones and a plugin's are what transformers compute."""

from __future__ import annotations

import asyncio
import json
import os
import runpy
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.installed import find_first, write_distribution
from support.tiny_model import write_tiny_model
from support.torch_logits import compute, runner_of

from pyagent.assembly import make_chain, make_host
from pyagent.core.config import load_settings
from pyagent.core.errors import ConfigError, ModelError, PluginError
from pyagent.core.runners.architecture import Architecture, BroughtArchitecture
from pyagent.core.runners.factory import LargestStep, RunnerOptions
from pyagent.infrastructure.engine.runners.torch.architectures import pyagent_register_architectures
from pyagent.infrastructure.engine.runners.torch.factory import TorchRunnerFactory
from pyagent.infrastructure.engine.tokens import ModelTokenizer
from pyagent.infrastructure.server.app import create_app
from pyagent.testing import serve

pytestmark = pytest.mark.oracle

GRANITE = Path(__file__).parents[2] / "examples/pyagent-granite/pyagent_granite.py"
SIZES = {"vocab_size": 325, "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4}
NEOX = {"model_type": "gpt_neox", **SIZES, "intermediate_size": 80, "max_position_embeddings": 128}
GPT2 = {"model_type": "gpt2", "vocab_size": 325, "n_embd": 64, "n_layer": 3, "n_head": 4, "n_positions": 128}
PICTURES = {"depth": 1, "hidden_size": 32, "embed_dim": 32, "num_heads": 2, "intermediate_size": 32}
QWEN_TEXT = {**SIZES, "intermediate_size": 80, "num_key_value_heads": 2, "max_position_embeddings": 128}
CONFIGS: dict[str, dict[str, Any]] = {
    "gpt2": GPT2,
    "gpt2-other": {**GPT2, "n_inner": 96, "activation_function": "relu", "tie_word_embeddings": False},
    "gpt_neox": {**NEOX, "rotary_pct": 0.5},
    "gpt_neox-sequential": {**NEOX, "use_parallel_residual": False, "tie_word_embeddings": True, "rotary_pct": 1.0},
    "granite": {
        "model_type": "granite",
        **SIZES,
        "intermediate_size": 80,
        "num_key_value_heads": 2,
        "max_position_embeddings": 128,
        "embedding_multiplier": 3.0,
        "residual_multiplier": 0.4,
        "attention_multiplier": 0.2,
        "logits_scaling": 2.0,
    },
    **{
        name: {
            "model_type": name,
            "text_config": {
                **QWEN_TEXT,
                "rope_parameters": {"rope_type": "default", "rope_theta": 500.0, "mrope_section": sections},
                **heads,
            },
            "vision_config": PICTURES,
        }
        for name, sections, heads in (
            ("qwen2_vl", [2, 3, 3], {}),
            ("qwen2_5_vl", [4, 2, 2], {}),
            ("qwen3_vl", [12, 10, 10], {"head_dim": 64}),
        )
    },
}


def write_random(folder: Path, name: str) -> Any:
    """Write a random model by transformers, whose norms and biases are not what they begin with; returns it."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

    config = dict(CONFIGS[name])
    torch.manual_seed(7)
    options = {"attn_implementation": "eager", "dtype": torch.float32}
    kind = AutoModelForImageTextToText if "vision_config" in config else AutoModelForCausalLM
    model = kind.from_config(AutoConfig.for_model(config.pop("model_type"), **config), **options).eval()
    factor = 4 if kind is AutoModelForCausalLM else 1.5  # biases of keys make attention as sharp
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(factor).add_(torch.randn_like(parameter) * 0.1)
    model.save_pretrained(folder)
    return model


def architectures() -> dict[str, BroughtArchitecture]:
    """The shipped ones, and the example's."""
    ours = [BroughtArchitecture(one, "torch") for one in pyagent_register_architectures()]
    granite = BroughtArchitecture(runpy.run_path(str(GRANITE))["Granite"](), "granite")
    return {brought.architecture.name: brought for brought in (*ours, granite)}


@pytest.mark.parametrize("name", CONFIGS)
def test_logits_of_every_architecture_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    """Prefixes of all lengths at once, then chunks beside sequences that decode: to 1e-5 of the largest logit."""
    import numpy as np
    import torch

    reference = write_random(tmp_path, name)
    tokens = [(7 * place + place * place) % 325 for place in range(50)]
    with torch.no_grad():
        expected = reference(torch.tensor([tokens])).logits[0].numpy()
    close = 1e-5 * np.abs(expected).max()
    runner = runner_of(tmp_path, architectures())
    rows = compute(runner, *((length, tokens[:length]) for length in range(1, 51)))
    assert np.abs(rows - expected).max() < close
    done = 0
    for chunk in (7, 1, 20, 22):
        beside = [(length, [tokens[runner.pool.num_tokens(length)]]) for length in (3, 30)]
        rows = compute(runner, *beside, (100, tokens[done : done + chunk]))
        done += chunk
        places = [runner.pool.num_tokens(length) - 1 for length in (3, 30, 100)]
        assert np.abs(rows - expected[places]).max() < close


@pytest.mark.parametrize("name", ["qwen2_vl", "qwen2_5_vl", "qwen3_vl"])
def test_positions_of_frames_rows_and_columns_turn_as_in_transformers(name: str, tmp_path: Path) -> None:
    """Given three numbers for each token, as between two pictures' patches: to 1e-5 of the largest logit."""
    import torch

    from pyagent.infrastructure.engine.runners.torch.attention import plain
    from pyagent.infrastructure.engine.runners.torch.attention.batch import AttentionBatch
    from pyagent.infrastructure.engine.runners.torch.device import target_of
    from pyagent.infrastructure.engine.runners.torch.kv_cache import KvCache, KvLayers
    from pyagent.infrastructure.engine.runners.torch.models import open_model
    from pyagent.infrastructure.engine.runners.torch.parallel.ranks import Alone
    from pyagent.infrastructure.engine.runners.torch.parallel.shard import ModelPart, Shard
    from pyagent.infrastructure.engine.runners.torch.progress import ReadProgress
    from pyagent.infrastructure.engine.runners.torch.stages import TorchStages
    from pyagent.infrastructure.engine.runners.torch.step import Step

    reference = write_random(tmp_path, name)
    num_tokens = 14
    tokens = torch.arange(num_tokens) * 11 % 325
    positions = torch.tensor([[0, 1, 2, *[3] * 6, 6, 7, 8, 9, 9], [0, 1, 2, 3, 3, 3, 4, 4, 4, 6, 7, 8, 9, 9]])
    positions = torch.cat([positions, torch.tensor([[0, 1, 2, 3, 4, 5, 3, 4, 5, 6, 7, 8, 9, 10]])])  # [3, T]
    with torch.no_grad():
        embeddings = reference.get_input_embeddings()(tokens[None])
        expected = reference(inputs_embeds=embeddings, position_ids=positions[:, None]).logits[0]
    target = target_of(RunnerOptions(dtype="f32", kv_dtype="f32"))
    opened = open_model(tmp_path, architectures())
    part, config = ModelPart.of(opened.config, Shard()), opened.config
    layers = KvLayers.of(config.windows)
    decoder = opened.load(part, target, 2, ReadProgress())(layers, TorchStages(), plain.attend, Alone())
    kv = KvCache(layers.num_slots, (2, 16, config.num_kv_heads, config.head_dim), torch.float32, target.device)
    starts, lengths = (torch.tensor(of, dtype=torch.int32) for of in ([0, num_tokens], [num_tokens]))
    batch = AttentionBatch(starts, lengths, torch.tensor([[1]], dtype=torch.int32), [num_tokens], [num_tokens])
    places = torch.arange(num_tokens)
    step = Step(tokens.int(), positions.int(), places.int(), (batch,), (16 + places,), places[:1], lengths)
    with torch.inference_mode():
        found = decoder.logits(step, kv)
    assert (found - expected).abs().max() < 1e-5 * expected.abs().max()
    assert (found[-1] - reference(tokens[None]).logits[0, -1]).abs().max() > 1e-3 * expected.abs().max()


def test_the_older_form_of_a_checkpoint_of_pictures_is_read(tmp_path: Path) -> None:
    """Text fields beside the pictures', `rope_scaling`, tensors without `language_model`: equal logits."""
    import numpy as np
    from safetensors.torch import load_file, save_file

    write_random(tmp_path, "qwen2_5_vl")
    rows = compute(runner_of(tmp_path, architectures()), (1, range(9)))
    config = json.loads((tmp_path / "config.json").read_text())
    text = config.pop("text_config")
    rope = text.pop("rope_parameters")
    older = {"rope_theta": rope["rope_theta"], "rope_scaling": {"type": "mrope", "mrope_section": [4, 2, 2]}}
    (tmp_path / "config.json").write_text(json.dumps(text | config | older))
    tensors = load_file(tmp_path / "model.safetensors")
    named = {name.replace("model.language_model.", "model."): tensor for name, tensor in tensors.items()}
    save_file(named, tmp_path / "model.safetensors")
    assert np.array_equal(compute(runner_of(tmp_path, architectures()), (1, range(9))), rows)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"rope_parameters": {"mrope_section": [4, 2, 3]}},
            r"mrope_section is \[4, 2, 3\]; expected three .* 8",
        ),
        (
            {"rope_parameters": {"type": "yarn", "factor": 4.0}},
            "rope scaling 'yarn' with factor is not implemented",
        ),
        ({"rope_parameters": {"mrope_interleaved": True}}, "with mrope_interleaved is not implemented for qwen2_5_vl"),
        ({"use_sliding_window": True}, "sliding windows are not implemented for qwen2_5_vl"),
        ({"residual_multiplier": 2.0}, "'residual_multiplier' is not implemented for qwen2_5_vl"),
    ],
)
def test_what_a_text_half_cannot_be_is_refused_by_name(changes: dict[str, Any], said: str, tmp_path: Path) -> None:
    """Sections that are no head's, other scalings, windows, and fields of `text_config` that nobody reads."""
    write_random(tmp_path, "qwen2_5_vl")
    config = json.loads((tmp_path / "config.json").read_text())
    config["text_config"] |= changes
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match=said):
        runner_of(tmp_path, architectures())


def test_half_precision_is_near_float32(tmp_path: Path) -> None:
    """GPT-NeoX in bfloat16, attention sharp: half of the positions' logits have a cosine above 0.999 with float32's."""
    import numpy as np

    write_random(tmp_path, "gpt_neox")
    tokens = [(7 * place + place * place) % 325 for place in range(40)]
    prefixes = [(length, tokens[:length]) for length in range(1, 41)]
    exact, rounded = (
        compute(runner_of(tmp_path, architectures(), dtype=dtype), *prefixes) for dtype in ("f32", "bf16")
    )
    cosines = (exact * rounded).sum(1) / np.linalg.norm(exact, axis=1) / np.linalg.norm(rounded, axis=1)
    assert np.median(cosines) > 0.999
    assert cosines.min() > 0.98


def test_architecture_of_a_plugin_answers_over_http(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plugin that is installed brings Granite: the server's own engine process finds it, loads it, and answers."""
    folder, site = tmp_path / "granite", tmp_path / "site"
    site.mkdir()
    find_first(monkeypatch, site)
    (site / "pyagent_granite.py").write_text(GRANITE.read_text())
    write_distribution(site, "granite", "granite.architectures = pyagent_granite")
    monkeypatch.delitem(sys.modules, "pyagent_granite", raising=False)
    write_random(folder, "granite")
    tokenizer = ModelTokenizer.load(write_tiny_model(tmp_path / "m.gguf"), vocab_size=325)
    (folder / "tokenizer.json").write_text(tokenizer.tokenizer.inner.to_str(), encoding="utf-8")  # type: ignore[attr-defined]
    chosen = {"engine.models": [str(folder)], "engine.runner": "torch", "engine.threads": 2, "engine.dtype": "f32"}
    settings = load_settings(overrides=chosen).settings
    chain = make_chain(settings, make_host(settings), ["native"])
    body = {"model": str(folder), "prompt": "the rain in Spain", "temperature": 0, "max_tokens": 8}
    with serve(create_app(chain)) as url, httpx.Client(base_url=url, timeout=120) as http:
        answer = http.post("/v1/completions", json=body).raise_for_status().json()
    asyncio.run(chain.close())
    runner = runner_of(folder, architectures(), kv_dtype="bf16")
    said, tokens = [], tokenizer.encode_text(body["prompt"])
    for _ in range(8):
        tokens = [int(compute(runner, (1, tokens))[0].argmax())]
        said += tokens
    assert answer["choices"][0]["text"] == tokenizer.decode(said)


class Wrong:
    """GPT-2, but for one thing."""

    name = "gpt2"

    def __init__(self, shape: Any = None, load: Any = None) -> None:
        self._gpt2 = next(one for one in pyagent_register_architectures() if one.name == "gpt2")
        self._shape, self._load = shape, load

    def shape(self, config: Any) -> Any:
        shape = self._gpt2.shape(config)
        return self._shape(shape) if self._shape else shape

    def load(self, config: Any, shape: Any, layers: Any) -> Any:
        return self._load(layers) if self._load else self._gpt2.load(config, shape, layers)


@pytest.mark.parametrize(
    ("changes", "kind", "error", "said"),
    [
        ({"scale_attn_by_inverse_layer_idx": True}, None, ModelError, "'scale_attn_by_inverse_layer_idx' is not impl"),
        ({"qk_norm": True}, None, ModelError, "'qk_norm' is not implemented for gpt2, and ignoring it may change"),
        ({"n_embd": None}, None, ModelError, "cannot read config.json"),
        ({"n_head": 0}, None, ModelError, "cannot read config.json"),
        ({"n_layer": 0}, None, ModelError, "num_layers is 0; expected a whole number from 1 to 1000"),
        ({"n_layer": 10**12}, None, ModelError, "num_layers is 1000000000000; expected a whole number from 1 to 1000"),
        ({"n_positions": 10**30}, None, ModelError, "context_length is 10{30}; expected a whole number"),
        ({"layer_norm_epsilon": "small"}, None, ModelError, "a norm's epsilon is 'small'"),
        ({"n_head": 5}, None, ModelError, "n_embd is 64, no multiple of n_head, 5"),
        ({"n_layer": 4}, None, ModelError, r"no tensor 'transformer.h.3.ln_1.bias'|no tensor 'transformer.h.3.ln_1.we"),
        ({"n_positions": 64}, None, ModelError, r"'transformer.wpe.weight' is \[128, 64\]; expected \[64, 64\]"),
        ({"activation_function": "swish2"}, None, ModelError, "the activation 'swish2' is not supported"),
        ({}, Wrong(shape=lambda _: "wide"), PluginError, "plugin 'mine' gave 'wide' as a model's shape"),
        ({}, Wrong(load=lambda _: 1 / 0), PluginError, "plugin 'mine' failed to load the weights .* ZeroDivisionError"),
        ({}, Wrong(load=lambda layers: layers.tensor("a", 1)), ModelError, "no tensor 'a'"),
    ],
)
def test_what_cannot_be_run_is_refused_by_name(
    changes: dict[str, Any], kind: Architecture | None, error: type[Exception], said: str, tmp_path: Path
) -> None:
    """A field that nobody reads, sizes that are none, a tensor that is not there, a plugin that fails."""
    write_random(tmp_path, "gpt2")
    config = json.loads((tmp_path / "config.json").read_text()) | changes
    (tmp_path / "config.json").write_text(json.dumps(config))
    kinds = {"gpt2": BroughtArchitecture(kind, "mine")} if kind else architectures()
    with pytest.raises(error, match=said):
        runner_of(tmp_path, kinds)


def test_batch_invariance_is_refused_by_name(tmp_path: Path) -> None:
    """A network brings operations of its own, which may add up by the number of rows: the mode is not promised."""
    write_random(tmp_path, "gpt2")
    with pytest.raises(ConfigError, match="batch_invariant is true, which the architecture gpt2 does not keep"):
        runner_of(tmp_path, architectures(), batch_invariant=True)


def test_field_that_is_missing_is_named(tmp_path: Path) -> None:
    """`config.json` without a field that the architecture needs is the model's fault."""
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    with pytest.raises(ModelError, match=r"config\.json lacks 'n_embd', which the architecture gpt2 needs"):
        runner_of(tmp_path, architectures())


@pytest.mark.parametrize(("share", "base"), [(2.0, 1e4), (-1.0, 1e4), (0.5, float("nan")), (0.5, -5.0)])
def test_rotary_positions_that_no_head_has_are_refused(share: float, base: float, tmp_path: Path) -> None:
    """More pairs than a head has, or none, and angles that are no numbers: the model is refused before it is loaded."""
    rope = {"rope_type": "default", "rope_theta": base, "partial_rotary_factor": share}
    (tmp_path / "config.json").write_text(json.dumps({**NEOX, "rope_parameters": rope}))
    with pytest.raises(ModelError, match=r"rotary frequencies"):
        TorchRunnerFactory().estimate(tmp_path, RunnerOptions(architectures=architectures()), LargestStep(256, 8))


@pytest.mark.parametrize("kind", ["a pipe", "deep", "long"])
def test_config_that_is_none_is_refused_at_once(kind: str, tmp_path: Path) -> None:
    """A `config.json` that never ends, that is nested too deep, or that no memory holds: a `ModelError`, no hang."""
    config = tmp_path / "config.json"
    if kind == "a pipe":
        os.mkfifo(config)
    elif kind == "deep":
        config.write_text('{"model_type": "gpt2", "a": ' + 100_000 * "[" + 100_000 * "]" + "}")
    else:
        with config.open("wb") as file:
            file.write(b'{"model_type": "gpt2"}')
            file.truncate(1 << 36)  # of which the disk holds a page
    with pytest.raises(ModelError, match=r"config\.json"):
        TorchRunnerFactory().estimate(tmp_path, RunnerOptions(architectures=architectures()), LargestStep(256, 8))


def test_shard_that_is_cut_short_is_named(tmp_path: Path) -> None:
    """What is wrong with an architecture's files is said as of any other model's."""
    write_random(tmp_path, "gpt2")
    shard = tmp_path / "model.safetensors"
    shard.write_bytes(shard.read_bytes()[:100_000])
    with pytest.raises(ModelError, match=r"model\.safetensors: the file is cut short"):
        runner_of(tmp_path, architectures())


def test_several_ranks_are_refused(tmp_path: Path) -> None:
    """Architectures run on one device: the setting that asks for more is named, before a process begins."""
    write_random(tmp_path, "gpt_neox")
    for key in ("tensor_parallel_size", "pipeline_parallel_size"):
        options = RunnerOptions(architectures=architectures(), **{key: 2})  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match=f"engine.{key} is more than 1, but the architecture gpt_neox") as caught:
            TorchRunnerFactory().estimate(tmp_path, options, LargestStep(256, 8))
        assert caught.value.key == f"engine.{key}"
