"""The families whose GGUF files have other tensors than their folders, by `model_type`."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

from pyagent.infrastructure.models.quantize.gguf_file import Metadata
from pyagent.infrastructure.models.quantize.layouts import (
    attention_sinks,
    delta_nets,
    described,
    falcon_h1,
    gemma4,
    grouped_heads,
    latent_attention,
    short_convolutions,
    state_spaces,
)
from pyagent.infrastructure.models.quantize.layouts.stored import Made, Stored

if TYPE_CHECKING:
    from pyagent._rust import ModelConfig

Config = Mapping[str, object]


def _none_computed(_config: Config, _model: ModelConfig) -> dict[str, array[float]]:
    return {}


class Family(NamedTuple):
    """What GGUF files call a family, what they say of it besides, their tensors, and those that are computed."""

    name: Callable[[ModelConfig], str]
    keys: Callable[[Config, ModelConfig], Metadata]
    tensors: Callable[[Stored, Config, ModelConfig], Iterator[Made]]
    computed: Callable[[Config, ModelConfig], dict[str, array[float]]] = _none_computed
    in_weights: frozenset[str] = frozenset()
    """What the engine reads of a folder that a file has in its weights."""
    left_out: tuple[str, ...] = ()
    """What names of heads that draft begin with, for which files have no place."""


def _called(name: str) -> Callable[[ModelConfig], str]:
    return lambda _: name


def _delta_nets(name: str) -> Family:
    return Family(_called(name), delta_nets.keys, delta_nets.tensors)


def _described(family: described.Described) -> Family:
    return Family(_called(family.name), family.all_keys, family.tensors, left_out=("model.mtp_", "mtp."))


_LATENT = Family(_called("deepseek2"), latent_attention.keys, latent_attention.tensors)
LAID_OUT: Mapping[str, Family] = {
    "qwen3_5": _delta_nets("qwen35"),
    "qwen3_5_moe": _delta_nets("qwen35moe"),
    "qwen3_next": _delta_nets("qwen3next"),
    "gemma4": Family(_called("gemma4"), gemma4.keys, gemma4.tensors, gemma4.computed),
    "gpt_oss": Family(_called("gpt-oss"), attention_sinks.keys, attention_sinks.tensors),
    "lfm2": Family(_called("lfm2"), short_convolutions.keys, short_convolutions.tensors),
    "lfm2_moe": Family(_called("lfm2moe"), short_convolutions.keys, short_convolutions.tensors),
    "glm4_moe": Family(_called("glm4moe"), grouped_heads.keys, grouped_heads.tensors),
    "solar_open": Family(_called("glm4moe"), grouped_heads.keys, grouped_heads.tensors),
    "glm4_moe_lite": _LATENT,
    "deepseek_v2": _LATENT,
    "deepseek_v3": _LATENT,
    "youtu": Family(_called("deepseek2"), latent_attention.youtu_keys, latent_attention.tensors),
    "mistral4": Family(_called("mistral4"), latent_attention.mistral4_keys, latent_attention.mistral4_tensors),
    "minicpm3": Family(_called("minicpm3"), latent_attention.minicpm3_keys, latent_attention.minicpm3_tensors),
    "granitemoehybrid": Family(state_spaces.granite_name, state_spaces.granite_keys, state_spaces.granite_tensors),
    "nemotron_h": Family(state_spaces.nemotron_name, state_spaces.nemotron_keys, state_spaces.nemotron_tensors),
    "granitemoe": Family(state_spaces.granite_name, state_spaces.granite_keys, state_spaces.granite_tensors),
    "granitemoeshared": Family(state_spaces.granite_name, state_spaces.granite_keys, state_spaces.granite_tensors),
    "falcon_h1": Family(_called("falcon-h1"), falcon_h1.keys, falcon_h1.tensors, in_weights=falcon_h1.IN_WEIGHTS),
    **{name: _described(family) for name, family in described.DESCRIBED.items()},
}
"""Text halves of models with pictures have `_text` behind their names."""


def laid_out(config: Config) -> Family | None:
    """Return the family of a `config.json`, if its GGUF files have other tensors."""
    return LAID_OUT.get(str(config.get("model_type")).removesuffix("_text"))
