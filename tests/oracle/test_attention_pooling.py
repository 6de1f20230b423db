"""Pooling by attention beside its formula in torch, over transformers' layers on the same weights."""

from __future__ import annotations

import json
from array import array
from pathlib import Path
from typing import Any

import pytest
from support.tiny_encoder import write_json

from pyagent import _rust

pytestmark = pytest.mark.oracle

HIDDEN = 48
BODY: dict[str, Any] = {
    "vocab_size": 90,
    "hidden_size": HIDDEN,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "num_key_value_heads": 1,
    "intermediate_size": 80,
    "max_position_embeddings": 256,
    "initializer_range": 0.3,
    "eos_token_id": 2,
}
TEXTS = [[(13 * i + 7 * length) % 85 + 3 for i in range(length)] for length in (1, 2, 5, 17, 67, 130)]
SECOND_TEXT = 1 << 31


def vectors(packed: bytes, width: int) -> Any:
    import numpy as np

    return np.frombuffer(array("f", packed), dtype=np.float32).reshape(-1, width)


def save(folder: Path, config: dict[str, Any], tensors: dict[str, Any]) -> None:
    from safetensors.torch import save_file

    write_json(folder / "config.json", config)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")


def body(kind: str) -> Any:
    """A tiny random decoder whose norms are not all the same."""
    import torch
    from transformers import AutoConfig, AutoModel

    torch.manual_seed(11)
    made = AutoModel.from_config(AutoConfig.for_model(kind, **BODY, attn_implementation="eager")).eval()
    with torch.no_grad():
        for tensor in made.parameters():
            tensor.add_(torch.randn_like(tensor) * 0.1)
    return made


def random_tensors(shapes: dict[str, tuple[int, ...]]) -> dict[str, Any]:
    """Random numbers of a spread by which attention prefers some tokens."""
    import torch

    torch.manual_seed(7)
    return {
        name: torch.randn(shape) * (0.6 if len(shape) == 1 else shape[-1] ** -0.5) for name, shape in shapes.items()
    }


def write_nv_embed(folder: Path) -> tuple[Any, dict[str, Any]]:
    """A folder as NV-Embed's, with 3 heads of 20 numbers over 5 learned vectors; the body and the block's tensors."""
    model, inner, begin = body("mistral"), 60, "latent_attention_model."
    attends, feeds = f"{begin}cross_attend_blocks.0.", f"{begin}cross_attend_blocks.1."
    norms = (f"{attends}norm", f"{attends}norm_context", f"{feeds}norm")
    tensors = random_tensors(
        {
            f"{begin}latents": (5, HIDDEN),
            f"{attends}fn.to_q.weight": (inner, HIDDEN),
            f"{attends}fn.to_kv.weight": (2 * inner, HIDDEN),
            f"{attends}fn.to_out.weight": (HIDDEN, inner),
            f"{feeds}fn.net.0.weight": (8 * HIDDEN, HIDDEN),
            f"{feeds}fn.net.0.bias": (8 * HIDDEN,),
            f"{feeds}fn.net.2.weight": (HIDDEN, 4 * HIDDEN),
            f"{feeds}fn.net.2.bias": (HIDDEN,),
            **{f"{norm}.{part}": (HIDDEN,) for norm in norms for part in ("weight", "bias")},
        }
    )
    latents = {"num_latents_value": 5, "num_cross_heads": 3, "cross_dim_head": 20, "hidden_dim": HIDDEN}
    config = {
        "architectures": ["NVEmbedModel"],
        "model_type": "nvembed",
        "add_eos": True,
        "add_pad_token": True,
        "is_mask_instruction": True,
        "mask_type": "b",
        "padding_side": "right",
        "hidden_size": HIDDEN,
        "latent_attention_config": {"model_type": "latent_attention", "latent_dim": HIDDEN, **latents},
        "text_config": model.config.to_dict() | {"model_type": "bidir_mistral", "sliding_window": 4},
    }
    named = {f"embedding_model.{name}": tensor for name, tensor in model.state_dict().items()}
    save(folder, config, named | tensors)
    return model, tensors


def test_latent_attention_equals_its_formula_over_transformers(tmp_path: Path) -> None:
    """NV-Embed: tokens that see all others, then latents, then the mean of what is behind an instruction: to 1e-5."""
    import torch
    from torch.nn.functional import gelu, layer_norm, linear, normalize, scaled_dot_product_attention

    model, tensors = write_nv_embed(tmp_path)
    tensors = {name: tensor.double() for name, tensor in tensors.items()}
    attends, feeds = (f"latent_attention_model.cross_attend_blocks.{block}." for block in (0, 1))

    def norm(x: Any, name: str) -> Any:
        return layer_norm(x, (HIDDEN,), tensors[f"{name}.weight"], tensors[f"{name}.bias"])

    def heads(x: Any) -> Any:
        return x.view(len(x), 3, 20).transpose(0, 1)

    def rows(text: list[int]) -> Any:
        mask = torch.zeros(1, 1, len(text), len(text))
        x = model(torch.tensor([text]), attention_mask=mask).last_hidden_state[0].double()
        context = norm(tensors["latent_attention_model.latents"], f"{attends}norm_context")
        key, value = linear(context, tensors[f"{attends}fn.to_kv.weight"]).chunk(2, dim=-1)
        query = linear(norm(x, f"{attends}norm"), tensors[f"{attends}fn.to_q.weight"])
        found = scaled_dot_product_attention(heads(query), heads(key), heads(value)).transpose(0, 1).flatten(1)
        x = linear(found, tensors[f"{attends}fn.to_out.weight"]) + x
        inner = linear(norm(x, f"{feeds}norm"), *(tensors[f"{feeds}fn.net.0.{part}"] for part in ("weight", "bias")))
        inner, gates = inner.chunk(2, dim=-1)
        return linear(inner * gelu(gates), *(tensors[f"{feeds}fn.net.2.{part}"] for part in ("weight", "bias"))) + x

    ours = _rust.EncoderModel.load(tmp_path, threads=2)
    about = ours.info()
    assert (about["pooling"], about["closing_token"]) == ("mean after latent attention", 2)
    assert _rust.model_task(tmp_path) == "embed"
    with torch.inference_mode():
        found = [rows(text) for text in TEXTS]
        expected = normalize(torch.stack([one.mean(0) for one in found]), dim=1).numpy()
        behind = normalize(torch.stack([one[3:].mean(0) for one in found[3:]]), dim=1).numpy()
    together = vectors(ours.compute(TEXTS), HIDDEN)
    assert abs(together - expected).max() < 1e-5
    assert all((vectors(ours.compute([text]), HIDDEN) == row).all() for text, row in zip(TEXTS, together, strict=True))
    instructed = [[*text[:3], *(token | SECOND_TEXT for token in text[3:])] for text in TEXTS[3:]]
    assert abs(vectors(ours.compute(instructed), HIDDEN) - behind).max() < 1e-5
    assert abs(together[3:] - behind).max() > 1e-3


@pytest.mark.parametrize("has_norms", [True, False])
@pytest.mark.parametrize(("mode", "width"), [("post_normal", 36), ("pre_normal", HIDDEN), ("pre_gptj", HIDDEN)])
def test_a_learned_query_equals_multi_head_attention_over_transformers(
    mode: str, width: int, has_norms: bool, tmp_path: Path
) -> None:
    """CodeFuse's pooling in each of its forms, over Qwen 2: texts at once and in parts, within 1e-5."""
    import torch
    from torch.nn.functional import layer_norm, linear, normalize, relu

    model, num_heads, begin = body("qwen2"), 3, "mha_pma.mab."
    names = {"post_normal": "ln0 ln1", "pre_normal": "ln_q ln_kv ln_o ln_final", "pre_gptj": "ln_q ln_kv ln_final"}
    shapes: dict[str, tuple[int, ...]] = {"mha_pma.S": (1, 1, width)}
    for layer, cols in (("fc_q", width), ("fc_k", HIDDEN), ("fc_v", HIDDEN), ("fc_o", width)):
        shapes |= {f"{begin}{layer}.weight": (width, cols), f"{begin}{layer}.bias": (width,)}
    for name in names[mode].split() if has_norms else ():
        shapes |= {f"{begin}{name}.{part}": (width,) for part in ("weight", "bias")}
    tensors = random_tensors(shapes)
    config = model.config.to_dict() | {
        "architectures": ["CodeFuse_CGE_Large"],
        "embedding_method": "pma",
        "inf_seq_length": 200,
        "padding_side": "right",
        "keep_max_layer": -1,
        "compress_dim": width,
        "pma_num_heads": num_heads,
        "pma_ln": has_norms,
        "pma_norm": False,
        "pma_norm_mode": mode,
    }
    named = {f"plm_model.model.{name}": tensor for name, tensor in model.state_dict().items()}
    save(tmp_path, config, named | tensors)
    tensors = {name: tensor.double() for name, tensor in tensors.items()}

    def part(name: str) -> list[Any]:
        return [tensors[f"{begin}{name}.{which}"] for which in ("weight", "bias")]

    def norm(x: Any, name: str) -> Any:
        return layer_norm(x, (width,), *part(name)) if f"{begin}{name}.weight" in tensors else x

    attention = torch.nn.MultiheadAttention(width, num_heads, kdim=HIDDEN, vdim=HIDDEN, batch_first=True).double()
    # Scores are over the root of all heads' width (Lee et al. 2019), and not of one head's.
    scale = num_heads**-0.5
    with torch.no_grad():
        matrices = [part("fc_q")[0] * scale, part("fc_k")[0], part("fc_v")[0]]
        if attention.in_proj_weight is None:  # as queries and keys are of two widths
            for own, matrix in zip("qkv", matrices, strict=True):
                getattr(attention, f"{own}_proj_weight").copy_(matrix)
        else:
            attention.in_proj_weight.copy_(torch.cat(matrices))
        attention.in_proj_bias.copy_(torch.cat([part("fc_q")[1] * scale, part("fc_k")[1], part("fc_v")[1]]))
        attention.out_proj.weight.copy_(torch.eye(width))
        attention.out_proj.bias.zero_()

    def pooled(text: list[int]) -> Any:
        x = model(torch.tensor([text])).last_hidden_state.double()
        query = tensors["mha_pma.S"]
        normalised, keys = norm(query, "ln_q"), norm(x, "ln_kv") if mode != "post_normal" else x
        summed = query + attention(normalised, keys, keys)[0]
        if mode == "pre_gptj":
            found = summed + relu(linear(normalised, *part("fc_o")))
        else:
            summed = norm(summed, "ln0" if mode == "post_normal" else "ln_o")
            found = summed + relu(linear(summed, *part("fc_o")))
        return norm(found, "ln1" if mode == "post_normal" else "ln_final")[0, 0]

    ours = _rust.EncoderModel.load(tmp_path, threads=2)
    about = ours.info()
    assert (about["pooling"], about["num_dimensions"], about["max_tokens"]) == ("attention", width, 200)
    with torch.inference_mode():
        expected = normalize(torch.stack([pooled(text) for text in TEXTS]), dim=1).numpy()
    together = vectors(ours.compute(TEXTS), width)
    assert abs(together - expected).max() < 1e-5
    assert abs(together[3] - together[4]).max() > 1e-3
    in_parts = _rust.EncoderModel.load(tmp_path, threads=2, most_tokens=50)
    begun = in_parts.begin(TEXTS[-1], gives_tokens=False)
    while (packed := in_parts.advance(begun)) is None:
        pass
    assert (vectors(packed, width)[0] == together[-1]).all()


def test_what_differs_is_refused_by_name(tmp_path: Path) -> None:
    """A step, a layer and a tensor that are not as expected."""
    write_nv_embed(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    latents = config["latent_attention_config"]
    write_json(tmp_path / "config.json", config | {"latent_attention_config": latents | {"num_latents_value": 6}})
    with pytest.raises(_rust.ModelFileError, match=r"latents' is 5 x 48; expected 6 x 48"):
        _rust.EncoderModel.load(tmp_path, threads=1)
