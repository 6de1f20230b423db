"""Small random models that embed or rank, with tokenizers trained on the demo's text, for llama.cpp's converter."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from support.converted_models import SENTENCEPIECE, TEXT, write_tokenizer
from support.llama_cpp import NULL

VOCABULARY = 420
_NUM_TRAINED = 300
_SHAPE: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "max_position_embeddings": 300,
    "vocab_size": VOCABULARY,
    "initializer_range": 0.3,
}
_NOMIC = {
    "n_embd": 64,
    "n_head": 4,
    "n_inner": 96,
    "n_layer": 4,
    "n_positions": 8192,
    "layer_norm_epsilon": 1e-12,
    "rotary_emb_base": 1000.0,
    "activation_function": "swiglu",
    "causal": False,
    "prenorm": False,
    "rotary_emb_fraction": 1.0,
    "rotary_emb_interleaved": False,
    "rotary_emb_scale_base": NULL,
    "mlp_fc1_bias": False,
    "mlp_fc2_bias": False,
    "qkv_proj_bias": False,
}
_JINA_V3 = {"model_type": "xlm-roberta", "architectures": ["XLMRobertaModel"], "lora_adaptations": ["separation"]}
_JINA_V3 |= {"position_embedding_type": "rotary", "rotary_emb_base": 20_000.0}
_MODERN = {"layer_norm_eps": 1e-5, "global_attn_every_n_layers": 3}
_MODERN_SHAPE = _SHAPE | {
    "local_attention": 32,
    "pad_token_id": 0,
    "bos_token_id": 2,
    "cls_token_id": 2,
    "eos_token_id": 3,
    "sep_token_id": 3,
}
_DECODER: dict[str, Any] = {**_SHAPE, "num_key_value_heads": 2, "head_dim": 16, "pad_token_id": 0}
_XLM: dict[str, Any] = {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2, "type_vocab_size": 1}


class Encoder(NamedTuple):
    """What transformers calls a family, a configuration, how texts are cut, and how they are pooled."""

    kind: str
    shape: Mapping[str, Any]
    tokens: str
    pooling: str = "mean"
    published: Mapping[str, Any] = MappingProxyType({})
    """What published files of it say in `config.json` where transformers now has other words; None is nothing."""
    num_labels: int | None = None
    dense: tuple[int, ...] = ()
    """Widths of steps after pooling."""
    peer_differs: str = ""
    """Why llama.cpp does not give transformers' numbers, where it does not."""

    @property
    def words(self) -> str:
        """The converter's name for how the tokenizer cuts."""
        names = {"pieces": "jina-v2-en", "roberta": "roberta-bpe", "modern": "modern-bert", "decoder": "qwen2"}
        return names.get(self.tokens, "default")


_XLM_CLASSIFIER = _SHAPE | _XLM | {"id2label": {0: "bad", 1: "so so", 2: "good"}, "label2id": {}}
_BOTH_WAYS = {"use_bidirectional_attention": True, "sliding_window": 32, "num_hidden_layers": 7}
_BOTH_WAYS |= {"query_pre_attn_scalar": 16, "bos_token_id": 1, "eos_token_id": 2}
ENCODERS: dict[str, Encoder] = {
    "bert": Encoder("bert", _SHAPE, "pieces", "cls"),
    "bert, cased": Encoder("bert", _SHAPE, "cased pieces", peer_differs="it lowers the letters of a cased model"),
    "roberta": Encoder("roberta", _SHAPE | _XLM, "roberta"),
    "xlm-roberta": Encoder("xlm-roberta", _SHAPE | _XLM, "unigrams", "cls"),
    "jina_embeddings_v3": Encoder("jina_embeddings_v3", _SHAPE | _XLM, "unigrams", published=_JINA_V3),
    "modernbert": Encoder("modernbert", _MODERN_SHAPE, "modern", published=_MODERN),
    "nomic_bert": Encoder("nomic_bert", _SHAPE, "pieces", published=_NOMIC),
    "qwen3": Encoder("qwen3", _DECODER, "decoder", "lasttoken"),
    "gemma3_text": Encoder("gemma3_text", _DECODER | _BOTH_WAYS, SENTENCEPIECE, dense=(128, 64)),
}
RANKERS: dict[str, Encoder] = {
    "xlm-roberta": Encoder("xlm-roberta", _SHAPE | _XLM | {"num_labels": 1}, "unigrams", num_labels=1),
    "roberta, 3 labels": Encoder("roberta", _XLM_CLASSIFIER, "roberta", num_labels=3),
    "modernbert": Encoder(
        "modernbert",
        _MODERN_SHAPE | {"num_labels": 1, "classifier_pooling": "mean"},
        "modern",
        published=_MODERN,
        num_labels=1,
    ),
    "modernbert, first token": Encoder(
        "modernbert",
        _MODERN_SHAPE | {"num_labels": 1, "classifier_pooling": "cls"},
        "modern",
        published=_MODERN,
        num_labels=1,
    ),
}


def random_encoder(about: Encoder, folder: Path) -> Any:
    """Write a model, its tokenizer and what sentence-transformers adds; return transformers' model in float32."""
    import torch
    from transformers import AutoConfig, AutoModel, AutoModelForSequenceClassification

    torch.manual_seed(5)
    config = AutoConfig.for_model(about.kind, **about.shape)
    config._attn_implementation = "eager"
    made = AutoModel if about.num_labels is None else AutoModelForSequenceClassification
    model = made.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for values in model.parameters():
            noise = torch.randn_like(values)
            values.copy_(values + noise * 0.2 if values.dim() == 1 else noise * 1.2 * values.shape[-1] ** -0.5)
    model.save_pretrained(folder)
    write_words(about.tokens, folder)
    _write_steps(about, folder)
    return model


def _write_steps(about: Encoder, folder: Path) -> None:
    import torch
    from safetensors.torch import save_file

    if about.num_labels is not None:
        return
    kinds = [("Transformer", ""), ("Pooling", "1_Pooling")]
    kinds += [("Dense", f"{number}_Dense") for number, _ in enumerate(about.dense, 2)]
    steps = [{"idx": at, "name": str(at), "path": path, "type": f"m.{kind}"} for at, (kind, path) in enumerate(kinds)]
    (folder / "modules.json").write_text(json.dumps(steps))
    names = {"mean": "mean_tokens", "cls": "cls_token", "lasttoken": "lasttoken"}
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({f"pooling_mode_{names[about.pooling]}": True}))
    width = about.shape["hidden_size"]
    for number, rows in enumerate(about.dense, 2):
        step = folder / f"{number}_Dense"
        step.mkdir()
        shape = {"in_features": width, "out_features": rows, "bias": False}
        identity = {"activation_function": "torch.nn.modules.linear.Identity"}
        (step / "config.json").write_text(json.dumps(shape | identity))
        save_file({"linear.weight": torch.randn(rows, width) * width**-0.5}, step / "model.safetensors")
        width = rows


def dense_steps(about: Encoder, folder: Path, rows: Any) -> Any:
    """Apply the steps after pooling."""
    from safetensors.torch import load_file

    for number, _ in enumerate(about.dense, 2):
        rows = rows @ load_file(folder / f"{number}_Dense" / "model.safetensors")["linear.weight"].T
    return rows


def write_words(kind: str, folder: Path) -> None:
    """Write a tokenizer: pieces, cased or not, unigrams, RoBERTa's or ModernBERT's bytes, or a decoder's."""
    if kind == SENTENCEPIECE:
        write_tokenizer(folder, SENTENCEPIECE)
        settings = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>", "tokenizer_class": "LlamaTokenizer"}
        settings |= {"add_bos_token": True, "add_eos_token": True, "add_prefix_space": False}
        (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    elif kind == "unigrams":
        _write_unigrams(folder)
    elif kind.endswith("pieces"):
        _write_pieces(folder, is_cased=kind.startswith("cased"))
    else:
        _write_bytes(folder, kind)


def _lines() -> Iterator[str]:
    yield from TEXT.read_text(encoding="utf-8").splitlines()


def _save(folder: Path, tokenizer: Any, names: Mapping[str, str], *, doubled: bool = False, **settings: Any) -> None:
    """Write a tokenizer that puts special tokens around a text, and between those of a pair."""
    from tokenizers import processors

    first, last = names["cls_token"], names["sep_token"]
    between = [last, last] if doubled else [last]
    kind = "0" if doubled else "1"
    special = [(name, tokenizer.token_to_id(name)) for name in dict.fromkeys((first, last))]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=[first, "$A", last],
        pair=[first, "$A", *between, f"$B:{kind}", f"{last}:{kind}"],
        special_tokens=special,
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({**names, **settings}))


def _write_pieces(folder: Path, *, is_cased: bool) -> None:
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    names |= {"mask_token": "[MASK]"}
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=not is_cased)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(
        vocab_size=_NUM_TRAINED, special_tokens=list(names.values()), show_progress=False
    )
    tokenizer.train_from_iterator(_lines(), trainer)
    _save(folder, tokenizer, names, tokenizer_class="BertTokenizer", do_lower_case=not is_cased)


def _write_bytes(folder: Path, kind: str) -> None:
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

    bert = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    roberta = {"bos_token": "<s>", "pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
    roberta |= {"cls_token": "<s>", "sep_token": "</s>"}
    names = roberta if kind == "roberta" else bert
    tokenizer = Tokenizer(models.BPE())
    if kind == "modern":
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = list(dict.fromkeys(names.values()))
    special += ["<|im_start|>", "<|im_end|>", "<|endoftext|>"] if kind == "decoder" else []
    trainer = trainers.BpeTrainer(
        vocab_size=_NUM_TRAINED,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_lines(), trainer)
    if kind != "decoder":
        _save(folder, tokenizer, names, doubled=kind == "roberta", tokenizer_class="PreTrainedTokenizerFast")
        return
    _end_texts(tokenizer, "<|endoftext|>")
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"pad_token": "<|endoftext|>", "eos_token": "<|im_end|>", "tokenizer_class": "PreTrainedTokenizerFast"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def _end_texts(tokenizer: Any, end: str) -> None:
    from tokenizers import processors

    tokenizer.post_processor = processors.TemplateProcessing(
        single=["$A", end], pair=["$A", "$B:1", f"{end}:1"], special_tokens=[(end, tokenizer.token_to_id(end))]
    )


def _write_unigrams(folder: Path) -> None:
    """SentencePiece's unigrams with fairseq's numbers, as XLM-RoBERTa has them."""
    import sentencepiece
    from sentencepiece import sentencepiece_model_pb2
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

    prefix = folder / "sentencepiece.bpe"
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=_lines(),
        model_prefix=str(prefix),
        model_type="unigram",
        vocab_size=_NUM_TRAINED,
        character_coverage=1.0,
        minloglevel=2,
        hard_vocab_limit=False,
    )
    (folder / "sentencepiece.bpe.vocab").unlink()
    model = sentencepiece_model_pb2.ModelProto()
    model.ParseFromString((folder / "sentencepiece.bpe.model").read_bytes())
    pieces = [("<s>", 0.0), ("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0)]
    pieces += [(piece.piece, piece.score) for piece in model.pieces[3:]] + [("<mask>", 0.0)]
    tokenizer = Tokenizer(models.Unigram(pieces, 3))
    tokenizer.normalizer = normalizers.Precompiled(model.normalizer_spec.precompiled_charsmap)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace("▁", "always")]
    )
    names = {"bos_token": "<s>", "pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
    names |= {"cls_token": "<s>", "sep_token": "</s>", "mask_token": "<mask>"}
    tokenizer.add_special_tokens(list(dict.fromkeys(names.values())))
    _save(folder, tokenizer, names, doubled=True, tokenizer_class="XLMRobertaTokenizer")
