"""What folders of encoders call their tensors and sizes, and GGUF files: BERT's families, a table for each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple, cast

from pyagent.infrastructure.engine.tokens.model_folder import object_in
from pyagent.infrastructure.models.quantize.gguf_file import Metadata, float32, string, uint32

Config = Mapping[str, object]

_BERT_PARTS: Mapping[str, str] = {
    "attention.self.query": "attn_q",
    "attention.self.key": "attn_k",
    "attention.self.value": "attn_v",
    "attention.output.dense": "attn_output",
    "attention.output.LayerNorm": "attn_output_norm",
    "intermediate.dense": "ffn_up",
    "output.dense": "ffn_down",
    "output.LayerNorm": "layer_output_norm",
}
_BERT_TABLES: Mapping[str, str] = {
    "embeddings.word_embeddings": "token_embd",
    "embeddings.position_embeddings": "position_embd",
    "embeddings.token_type_embeddings": "token_types",
    "embeddings.LayerNorm": "token_embd_norm",
}
_NOMIC_PARTS: Mapping[str, str] = {
    "attn.Wqkv": "attn_qkv",
    "attn.out_proj": "attn_output",
    "norm1": "attn_output_norm",
    "mlp.fc11": "ffn_up",
    "mlp.fc12": "ffn_gate",
    "mlp.fc2": "ffn_down",
    "norm2": "layer_output_norm",
}
_NOMIC_TABLES: Mapping[str, str] = {
    "embeddings.word_embeddings": "token_embd",
    "embeddings.token_type_embeddings": "token_types",
    "emb_ln": "token_embd_norm",
}
_MODERN_PARTS: Mapping[str, str] = {
    "attn.Wqkv": "attn_qkv",
    "attn.Wo": "attn_output",
    "attn_norm": "attn_norm",
    "mlp.Wi": "ffn_up",
    "mlp.Wo": "ffn_down",
    "mlp_norm": "ffn_norm",
}
_MODERN_TABLES: Mapping[str, str] = {
    "embeddings.tok_embeddings": "token_embd",
    "embeddings.norm": "token_embd_norm",
    "final_norm": "output_norm",
}
_NUMBERS_OF_POOLING: Mapping[object, int] = {"mean": 1, "cls": 2}


def _nothing(_config: Config) -> Metadata:
    return {}


class EncoderFamily(NamedTuple):
    """A family's names in GGUF files and here, and its folders' of tensors, without `.weight` and `.bias`."""

    gguf: str
    name: str
    tables: Mapping[str, str]
    parts: Mapping[str, str]
    layers: str = "encoder.layer."
    prefixes: Sequence[str] = ("",)
    """What names begin with; models of another task once had something there."""
    head: Mapping[str, str] = {}
    """Of what gives labels numbers; these names have no prefix. Empty: GGUF has no place for them."""
    activation: tuple[str, str, Sequence[str]] = ("hidden_act", "gelu", ("gelu",))
    """The setting that names it, what it is where nothing is said, and what files can have."""
    epsilon: str = "layer_norm_eps"
    keys: Callable[[Config], Metadata] = _nothing

    def names(self, prefix: str, num_layers: int, *, has_labels: bool) -> Iterator[tuple[str, str]]:
        """Yield what a folder may have, and what GGUF calls it."""
        tops = {f"{prefix}{name}": gguf for name, gguf in self.tables.items()}
        for name, gguf in {**tops, **(self.head if has_labels else {})}.items():
            yield from _ends(name, gguf)
        for layer in range(num_layers):
            for name, gguf in self.parts.items():
                yield from _ends(f"{prefix}{self.layers}{layer}.{name}", f"blk.{layer}.{gguf}")


def _ends(name: str, gguf: str) -> Iterator[tuple[str, str]]:
    for end in ("weight", "bias"):
        yield f"{name}.{end}", f"{gguf}.{end}"


def number_in(config: Config, *names: str, default: float = 0) -> float:
    """Return a number of `config.json`, by the first of several names that it has there; the engine has read it."""
    found = (config.get(name) for name in names)
    return next((value for value in found if isinstance(value, int | float)), default)


def every_which(config: Config) -> int | None:
    """Return every how many of ModernBERT's layers sees everything, from the first on; None where it is otherwise."""
    told = config.get("layer_types")
    if not isinstance(told, list):
        return int(number_in(config, "global_attn_every_n_layers", default=3))
    kinds = cast("list[object]", told)
    far = [layer for layer, kind in enumerate(kinds) if kind == "full_attention"]
    period = far[1] if len(far) > 1 else len(kinds)
    return period if far == [*range(0, len(kinds), max(1, period))] else None


def _nomic(config: Config) -> Metadata:
    said = number_in(config, "rotary_emb_base", "rope_theta", default=1_000.0)
    base = number_in(object_in(config, "rope_parameters"), "rope_theta", default=said)
    return {"rope.freq_base": float32(base)}


def _modern(config: Config) -> Metadata:
    """Say what ModernBERT's layers see, and by which bases their tokens turn."""
    found: Metadata = {
        "attention.sliding_window": uint32(int(number_in(config, "local_attention", default=128))),
        "attention.sliding_window_pattern": uint32(every_which(config) or 0),
        "rope.scaling.type": string("none"),
        "vocab_size": uint32(int(number_in(config, "vocab_size"))),
        "hidden_activation": string(str(config.get("hidden_activation", "gelu"))),
    }
    bases = {"freq_base": ("full_attention", "global", 160_000.0), "freq_base_swa": ("sliding_attention", "local", 1e4)}
    for key, (kind, name, usual) in bases.items():
        said = number_in(config, f"{name}_rope_theta", default=usual)
        of_kind = object_in(object_in(config, "rope_parameters"), kind)
        found[f"rope.{key}"] = float32(number_in(of_kind, "rope_theta", default=said))
    if (pooling := _NUMBERS_OF_POOLING.get(config.get("classifier_pooling", "cls"))) is not None:
        found["classifier.pooling_type"] = uint32(pooling)
    return found


_ROBERTA = EncoderFamily(
    "bert",
    "roberta",
    _BERT_TABLES,
    _BERT_PARTS,
    prefixes=("", "roberta."),
    head={"classifier.dense": "cls", "classifier.out_proj": "cls.output"},
)
ENCODER_FAMILIES: Mapping[str, EncoderFamily] = {
    "bert": EncoderFamily("bert", "bert", _BERT_TABLES, _BERT_PARTS, prefixes=("", "bert.")),
    "roberta": _ROBERTA,
    "xlm-roberta": _ROBERTA,
    "camembert": _ROBERTA,
    "nomic_bert": EncoderFamily(
        "nomic-bert",
        "nomic_bert",
        _NOMIC_TABLES,
        _NOMIC_PARTS,
        "encoder.layers.",
        ("", "nomic_bert."),
        activation=("hidden_act", "silu", ("silu",)),
        keys=_nomic,
    ),
    "modernbert": EncoderFamily(
        "modern-bert",
        "modernbert",
        _MODERN_TABLES,
        _MODERN_PARTS,
        "layers.",
        ("", "model."),
        {"head.dense": "cls", "head.norm": "cls.norm", "classifier": "cls.output"},
        ("hidden_activation", "gelu", ("gelu", "silu")),
        "norm_eps",
        _modern,
    ),
}
"""By `model_type`."""
