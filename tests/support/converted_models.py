"""Small random models of every decoder family of the CPU runner, with tokenizers, for llama.cpp's converter."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from oracle.test_hybrids import CONFIGS as HYBRIDS
from support import classic_models, gemma4_models, sparse_models
from support.reference_decoder import EXPERT_FAMILIES
from support.reference_decoder import FAMILIES as PLAIN

VOCABULARY = 400
"""Tokens of each model. Its tokenizer has a few less, as published ones have: bytes, pieces of words, markers."""
_NUM_TRAINED = 380
SENTENCEPIECE = "sentencepiece"
TEXT = Path(__file__).parents[2] / "src/pyagent/cli/demo_text.txt"
_BEGIN, _END, _PAD = "<|begin|>", "<|end|>", "<|pad|>"
NUM_MARKERS = 9
"""The first tokens are markers, or stand for none."""
_MARKERS = [
    _PAD,
    _BEGIN,
    _END,
    "<|endoftext|>",
    "[gMASK]",
    "<|user|>",
    "<|observation|>",
    "<unk>",
    "<|startoftext|>",
]  # what some families must have
_SHAPE: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
}


class Family(NamedTuple):
    """What transformers calls a family, a configuration, and how its tokenizer cuts texts, by llama.cpp's name."""

    kind: str
    shape: dict[str, Any]
    words: str
    published: Mapping[str, Any] = MappingProxyType({})
    """What published files of it say in `config.json` where transformers now has other words."""
    peer_differs: str = ""
    """Why llama.cpp does not give transformers' numbers, where it does not."""

    @property
    def has_experts(self) -> bool:
        """Whether rounding may send a token to another expert."""
        return any("experts" in key and value for key, value in self.shape.items())


def _plain(name: str, words: str, **changes: Any) -> Family:
    shape = _SHAPE | {key: value for key, value in (PLAIN | EXPERT_FAMILIES)[name].items() if key != "model_type"}
    return Family(str((PLAIN | EXPERT_FAMILIES)[name]["model_type"]), shape | changes, words)


def _sparse(name: str, words: str, **changes: Any) -> Family:
    return Family(name.partition(",")[0], sparse_models.CONFIGS[name] | changes, words)


def _hybrid(name: str, words: str, **changes: Any) -> Family:
    kind, shape = HYBRIDS[name]
    return Family(kind, shape | changes, words)


def _gemma4(name: str, **changes: Any) -> Family:
    return Family("gemma4_text", gemma4_models.CONFIGS[name] | changes, "gemma4")


def _published(name: str) -> Family:
    """A family that transformers has not, of the weights of its like."""
    _, architecture, more = classic_models.PUBLISHED[name]
    return _sparse(name, SENTENCEPIECE)._replace(published={"architectures": [architecture], **more})


def _granite(name: str, **changes: Any) -> Family:
    family = _hybrid(name, "dbrx", **changes)
    kinds = {"linear_attention": "mamba", "full_attention": "attention"}
    published: dict[str, Any] = {"layer_types": [kinds[kind] for kind in family.shape["layer_types"]]}
    if not family.shape["num_local_experts"]:
        published["intermediate_size"] = family.shape["shared_intermediate_size"]
    return family._replace(published=published)


def _nemotron(name: str) -> Family:
    family = _hybrid(name, "pixtral", use_conv_bias=True)
    pattern = family.shape["hybrid_override_pattern"]
    published: dict[str, Any] = {
        "hybrid_override_pattern": pattern,
        "num_hidden_layers": len(pattern),
        "norm_eps": 1e-5,
    }
    if "E" not in pattern:
        published |= dict.fromkeys(("num_experts_per_tok", "n_routed_experts", "n_group", "topk_group"))
    return family._replace(published=published)


_EXAONE = "it knows the windows of EXAONE 4 of 64 layers alone"
_FLASH = "it knows how GLM-4.7-Flash rates experts by its 47 layers alone"
_LITE = "it knows a query without a latent of DeepSeek-V2-Lite's 27 layers alone"
_ROUNDED = "it rounds the limits of YaRN's ramp, which gpt-oss does not"
_FACTOR = "it takes YaRN's own factor on scores where the file has another"
_OLMO3 = {
    kind: rope | ({"attention_factor": 0.1 * math.log(8) + 1} if "factor" in rope else {})
    for kind, rope in sparse_models.CONFIGS["olmo3"]["rope_parameters"].items()
}
_MELLUM = {  # llama.cpp has one base for both kinds of layers
    kind: rope | {"rope_theta": 500_000.0} | ({"attention_factor": 0.1 * math.log(8) + 1} if "factor" in rope else {})
    for kind, rope in sparse_models.CONFIGS["mellum"]["rope_parameters"].items()
}
_GROWTH = "its files do not say how queries grow, and it does not know"
_MISTRAL4 = sparse_models.CONFIGS["mistral4"]["rope_parameters"] | {"llama_4_scaling_beta": 0.1}
_IN_TURN = "it weighs Phi-3.5-MoE's experts by a softmax of all of them"
_PHIMOE = classic_models.CONFIGS["phimoe"]["rope_parameters"] | dict.fromkeys(("short_mscale", "long_mscale"), 1.5**0.5)
"""With the factor that the converter reckons, of eight times the original context."""
_PLAIN = {"rope_type": "default", "rope_theta": 150_000.0}
_KIMI = {
    "first_k_dense_replace": 1,
    "linear_attn_config": {
        "full_attn_layers": [5],
        "head_dim": 32,
        "kda_layers": [1, 2, 3, 4],
        "num_heads": 2,
        "short_conv_kernel_size": 4,
    },
    "moe_router_activation_func": "sigmoid",
}
_HUNYUAN = {"moe_intermediate_size": [96] * 4, "moe_topk": [2] * 4, "num_shared_expert": [1] * 4}
_GEMMA3 = {"query_pre_attn_scalar": 32, "sliding_window_pattern": 6, "num_hidden_layers": 8}
FAMILIES: dict[str, Family] = {
    "llama": _plain("llama", SENTENCEPIECE),
    "llama, linear": _plain("llama-linear", SENTENCEPIECE),
    "llama, 3.1": _plain("llama-3.1", "llama-bpe"),
    "mistral": _plain("mistral", SENTENCEPIECE, sliding_window=None),
    "mixtral": _plain("mixtral", SENTENCEPIECE),
    "ministral3": _sparse("ministral3", "tekken"),
    "qwen2": _plain("qwen2", "qwen2"),
    "qwen2, YaRN": _plain("qwen2-yarn", "qwen2")._replace(peer_differs=_FACTOR),
    "qwen2_moe": _sparse("qwen2_moe", "qwen2", head_dim=16),
    "qwen3": _plain("qwen3", "qwen2"),
    "qwen3_moe": _plain("qwen3_moe", "qwen2"),
    "olmo2": _plain("olmo2", "dbrx"),
    "olmo3": _sparse("olmo3", "dbrx", head_dim=16, rope_parameters=_OLMO3),
    "olmoe": _plain("olmoe", "olmo", num_key_value_heads=4),
    "phi3": _plain("phi3", SENTENCEPIECE, sliding_window=512),
    "phi3, LongRoPE": _plain("phi3-longrope", SENTENCEPIECE),
    "granite": _hybrid("granite", "refact"),
    "smollm3": _plain("smollm3", "smaug-bpe"),
    "gemma2": _plain("gemma2", SENTENCEPIECE, query_pre_attn_scalar=32, rope_theta=10_000.0),
    "gemma3": _plain("gemma3", SENTENCEPIECE, **_GEMMA3),
    "gemma3, linear": _plain("gemma3-linear", SENTENCEPIECE, **_GEMMA3),
    "gemma4, 31B": _gemma4("31B"),
    "gemma4, E2B": _gemma4("E2B", num_kv_shared_layers=3),
    "gemma4, 26B-A4B": _gemma4("26B-A4B"),
    "llama4_text": _sparse("llama4_text, one chunk", "llama4"),
    "gpt_oss": _sparse("gpt_oss", "gpt-4o")._replace(peer_differs=_ROUNDED),
    "gpt_oss, plain positions": _sparse("gpt_oss", "gpt-4o", rope_parameters=_PLAIN),
    "glm4_moe": _sparse("glm4_moe", "glm4"),
    "glm4_moe_lite": _sparse("glm4_moe_lite", "glm4")._replace(
        published={"first_k_dense_replace": 1}, peer_differs=_FLASH
    ),
    "ernie4_5": _sparse("ernie4_5", SENTENCEPIECE),
    "ernie4_5_moe": _sparse("ernie4_5_moe", SENTENCEPIECE, intermediate_size=128, moe_layer_interval=1),
    "hunyuan_v1_dense": _sparse("hunyuan_v1_dense", "hunyuan-dense", max_position_embeddings=32_768),
    "hunyuan_v1_moe": _sparse("hunyuan_v1_moe", "hunyuan")._replace(published=_HUNYUAN),
    "seed_oss": _sparse("seed_oss", "seed-coder"),
    "exaone4": _sparse("exaone4", "exaone4", head_dim=16)._replace(peer_differs=_EXAONE),
    "deepseek_v2": _sparse("deepseek_v2", "deepseek-llm")._replace(peer_differs=_LITE),
    "deepseek_v3": _sparse("deepseek_v3", "deepseek-v3", attention_bias=False)._replace(
        published={"scoring_func": "sigmoid"}
    ),
    "lfm2": _hybrid("lfm2", "lfm2"),
    "lfm2_moe": _hybrid("lfm2_moe", "lfm2", routed_scaling_factor=1.0),
    "qwen3_5": _hybrid("qwen3_5", "qwen35", linear_key_head_dim=32),
    "qwen3_5_moe": _hybrid("qwen3_5_moe", "qwen35", linear_key_head_dim=32),
    "qwen3_next": _hybrid("qwen3_next", "qwen2", linear_key_head_dim=32),
    "granitemoehybrid": _granite("granitemoehybrid"),
    "granitemoehybrid, attention": _granite("granitemoehybrid-attention"),
    "granitemoehybrid, dense": _granite("granitemoehybrid-dense", position_embedding_type="nope", mamba_conv_bias=True),
    "jamba": _hybrid("jamba", SENTENCEPIECE),
    "kimi_linear": _hybrid("kimi_linear", "kimi-k2", linear_num_heads=2, n_group=1, rms_norm_eps=1e-6)._replace(
        published=_KIMI
    ),
    "mamba": _hybrid("mamba", "olmo", use_bias=False),
    "falcon_mamba": _hybrid("falcon_mamba", "olmo", mixer_rms_eps=1e-5),
    "mamba2": _hybrid("mamba2", "olmo"),
    "jamba, dense": _hybrid("jamba-dense", SENTENCEPIECE, mamba_expand=2, mamba_conv_bias=True),
    "nemotron_h": _nemotron("nemotron_h-dense"),
    "nemotron_h, experts": _nemotron("nemotron_h-experts"),
    "gemma": _sparse("gemma", SENTENCEPIECE),
    "glm4": _sparse("glm4", "glm4"),
    "arcee": _sparse("arcee", "llama-bpe", mlp_bias=False),
    "apertus": _sparse("apertus", "tekken", head_dim=16),
    "mellum": _sparse("mellum", "mellum2", head_dim=16, rope_parameters=_MELLUM),
    "youtu": _sparse("youtu", "youtu"),
    "internlm3": _sparse("internlm3", SENTENCEPIECE),
    "granitemoe": _sparse("granitemoe", "refact"),
    "granitemoeshared": _sparse("granitemoeshared", "refact"),
    "dots1": _sparse("dots1", "qwen2", num_key_value_heads=4, attention_bias=False)._replace(
        published={"scoring_func": "sigmoid"}
    ),
    "minimax_m2": _sparse("minimax_m2", "minimax-m2")._replace(published={"rotary_dim": 16, "scoring_func": "sigmoid"}),
    "cohere": _sparse("cohere", "command-r", attention_bias=False),
    "cohere2": _sparse("cohere2", "command-r", head_dim=16)._replace(published={"rotary_pct": 1.0}),
    "starcoder2": _sparse("starcoder2", "starcoder", sliding_window=None),
    "phi": _sparse("phi", "phi-2", intermediate_size=256),
    "stablelm": _sparse("stablelm", "stablelm2"),
    "stablelm, parallel": _sparse("stablelm, parallel", "stablelm2"),
    "nemotron": _sparse("nemotron", SENTENCEPIECE, head_dim=16),
    "olmo": _sparse("olmo", "olmo"),
    "gpt_neox": _sparse("gpt_neox", "olmo")._replace(published={"rotary_pct": 0.25}),
    "afmoe": _sparse("afmoe", "afmoe")._replace(published={"route_norm": True}),
    "exaone_moe": _sparse("exaone_moe", "exaone-moe")._replace(published={"scoring_func": "sigmoid"}),
    "solar_open": _sparse("solar_open", "solar-open")._replace(published={"partial_rotary_factor": 1.0}),
    "minicpm3": _sparse("minicpm3, as published", SENTENCEPIECE),
    "mistral4": _sparse("mistral4", "tekken", rope_parameters=_MISTRAL4)._replace(
        published={"architectures": ["Ministral3ForCausalLM"]}, peer_differs=_GROWTH
    ),
    "falcon_h1": _hybrid("falcon_h1", "falcon-h1", head_dim=32),
    "falcon": _sparse("falcon", "falcon")._replace(published={"num_kv_heads": None}),
    "falcon, new": _sparse("falcon, new", "falcon"),
    "bloom": _sparse("bloom", "bloom")._replace(published={"seq_length": 512}),
    "glm": _sparse("glm", "chatglm-bpe", head_dim=16)._replace(
        published={"seq_length": 512, "layernorm_epsilon": 1.5625e-7}
    ),
    "gpt2": _sparse("gpt2", "gpt-2")._replace(published={"n_ctx": 512}),
    "gpt_bigcode": _sparse("gpt_bigcode", "starcoder"),
    "phimoe": _sparse("phimoe", SENTENCEPIECE, rope_parameters=_PHIMOE)._replace(
        published={"architectures": ["PhiMoEForCausalLM"]}, peer_differs=_IN_TURN
    ),
    **{name: _published(name) for name in classic_models.PUBLISHED},
    "hy_v3": _sparse("hy_v3", "hunyuan-dense"),
    "jais2": _sparse("jais2", "jais-2"),
    "granite_swa": _sparse("granite_swa", "dbrx")._replace(published={"no_rope_layers": [0, 1, 0, 1]}),
    "granitemoe_swa": _sparse("granitemoe_swa", "dbrx"),
    "cohere2_moe": _sparse("cohere2_moe", "cohere2moe"),
    "iquestcoder": _sparse("iquestcoder", SENTENCEPIECE),
}


def random_family(name: str, folder: Path) -> Any:
    """Write a family's model and tokenizer into a folder; return transformers' model in float32."""
    import torch
    from transformers import AutoConfig

    kind, shape, words, *_ = FAMILIES[name]
    special = {"vocab_size": VOCABULARY, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    if kind == "gemma4_text":
        special["vocab_size_per_layer_input"] = VOCABULARY
    torch.manual_seed(7)
    config = AutoConfig.for_model(kind, **shape | special)
    config._attn_implementation = "eager"
    model = sparse_models.decoder_of(config).eval()
    with torch.no_grad():
        for key, values in {**dict(model.named_parameters()), **dict(model.named_buffers())}.items():
            _randomise(key, values)
    if (
        kind == "nemotron_h"
    ):  # its prompts have steps of `time_step_min` at least, its answers and NVIDIA's code have not
        for layer in model.model.layers:
            layer.mixer.time_step_limit = (0.0, float("inf"))
    model.save_pretrained(folder)
    if kind == "kimi_linear":
        _name_as_published(folder / "model.safetensors")
    if name in classic_models.PUBLISHED:
        _write_published(folder / "model.safetensors", name)
    write_tokenizer(folder, words)
    return model


def _write_published(path: Path, name: str) -> None:
    """Write tensors as a family has them that transformers has not."""
    from safetensors.torch import load_file, save_file

    save_file(classic_models.PUBLISHED[name][0](load_file(path)), path, {"format": "pt"})


def _name_as_published(path: Path) -> None:
    """Give Kimi Linear's blocks without experts their published names: transformers writes those of experts."""
    from safetensors.torch import load_file, save_file

    def name(key: str) -> str:
        is_dense = key.split(".")[-2] in ("gate_proj", "up_proj", "down_proj") and ".shared_experts." not in key
        return key.replace(".block_sparse_moe.", ".mlp.") if is_dense else key

    save_file({name(key): tensor for key, tensor in load_file(path).items()}, path, {"format": "pt"})


def _randomise(key: str, values: Any) -> None:
    """Fill a tensor so that no norm, bias, scale or correction is neutral."""
    import torch

    end = key.rpartition(".")[2]
    if not values.is_floating_point() or any(part in key for part in ("inv_freq", "embed_scale", "mup_vector")):
        return
    noise = torch.randn_like(values)
    if "correction_bias" in key or "expert_bias" in key:
        values.copy_(torch.rand_like(values) * 0.5)
    elif end in {"A_log", "dt_bias", "D"}:
        values.copy_(torch.empty_like(values).uniform_(-3.0, 0.5))
    elif end in {"layer_scalar", "per_expert_scale"}:
        values.copy_(torch.rand_like(values) * 0.6 + 0.7)
    elif "sinks" in key:
        values.copy_(noise * 2)
    elif values.dim() < 2:
        values.add_(noise * 0.1)
    elif "embed_tokens" in key:
        values.copy_(noise * values.shape[-1] ** -0.5)
    else:
        values.copy_(noise * 1.5 * values.shape[-1] ** -0.5)


def write_tokenizer(folder: Path, words: str) -> None:
    """Write a tokenizer trained on the text of the demo: byte-level BPE, or SentencePiece's."""
    if words == SENTENCEPIECE:
        _write_sentencepiece(folder)
        tokens = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}
        kind = "LlamaTokenizer"
    elif words == "gemma4":
        _write_merged(folder)
        tokens = {"pad_token": "<pad>", "bos_token": "<bos>", "eos_token": "<eos>", "unk_token": "<unk>"}
        kind = "GemmaTokenizer"
    else:
        _write_byte_level(folder)
        tokens = {"pad_token": _PAD, "bos_token": _BEGIN, "eos_token": _END}
        kind = "PreTrainedTokenizerFast"
    settings = {**tokens, "tokenizer_class": kind, "add_bos_token": True, "add_eos_token": False}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def _texts() -> Iterator[str]:
    yield from TEXT.read_text(encoding="utf-8").splitlines()


def _write_byte_level(folder: Path) -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=_NUM_TRAINED,
        special_tokens=_MARKERS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_texts(), trainer)
    tokenizer.save(str(folder / "tokenizer.json"))


def _write_merged(folder: Path) -> None:
    """Gemma 4's: marked spaces, merges, and bytes for what no piece has."""
    from tokenizers import Tokenizer, decoders, models, normalizers, trainers

    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    markers = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>"]
    trainer = trainers.BpeTrainer(vocab_size=VOCABULARY - 256, special_tokens=markers, show_progress=False)
    tokenizer.train_from_iterator((word for line in _texts() for word in line.split()), trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    about = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    vocabulary = about["model"]["vocab"]
    vocabulary |= {f"<0x{byte:02X}>": len(vocabulary) + byte for byte in range(256)}
    (folder / "tokenizer.json").write_text(json.dumps(about), encoding="utf-8")


def _write_sentencepiece(folder: Path) -> None:
    import sentencepiece

    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=_texts(),
        model_prefix=str(folder / "tokenizer"),
        model_type="bpe",
        vocab_size=_NUM_TRAINED,
        byte_fallback=True,
        character_coverage=1.0,
        minloglevel=2,
        control_symbols=["<|endoftext|>"],
    )
    (folder / "tokenizer.vocab").unlink()
