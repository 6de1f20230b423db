"""A folder of an encoder, as llama.cpp's converter writes it: keys, pieces of words, tensors.

Nothing here is trusted: what was written is read back and compared, its tokens too.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NoReturn, cast

from pyagent import _rust
from pyagent.core.errors import ModelError
from pyagent.infrastructure.engine.encoders.text_tokens import SECOND_TEXT, Text, TextTokens
from pyagent.infrastructure.models.quantize.encoder_families import ENCODER_FAMILIES, every_which, number_in
from pyagent.infrastructure.models.quantize.encoder_words import encoder_words
from pyagent.infrastructure.models.quantize.folder_tensors import NONE_KEPT, SourceTensor
from pyagent.infrastructure.models.quantize.gguf_file import Metadata, boolean, float32, string, strings, uint32

_POOLINGS: Mapping[str, int] = {"mean": 1, "cls": 2, "lasttoken": 3}
"""llama.cpp's numbers."""
_RANK = 4
"""That of a model with labels."""
_SAME = ("vocab_size", "num_dimensions", "num_layers", "max_tokens", "num_outputs", "labels")
_PROBES: Sequence[Text] = (
    "The lighthouse of 1234567 men's boats, it's LIT.",
    "Ångström's naïve café — wasn't it?\n\t Two  spaces, 東京 и Москва 🙂 x²",
    "[CLS] unaffable[MASK] foo_bar CamelCase",
    ("two  texts", "of a pair"),
)

Config = Mapping[str, object]


class EncoderSource:
    """A folder of safetensors with an encoder that embeds, ranks or classifies."""

    num_experts = 0
    kept = NONE_KEPT

    def __init__(self, path: Path, config: Config) -> None:
        """Raise `ModelError` for what a GGUF file has no words for."""
        self.path = path
        self._family = ENCODER_FAMILIES[str(config.get("model_type"))]
        about = _rust.describe_encoder(path)
        if about is None or about["architecture"] != self._family.name:
            kind = "no encoder that embeds, ranks or classifies" if about is None else about["architecture"]
            self._refuse(f"it is {kind}; encoders that can be written: {', '.join(ENCODER_FAMILIES)}")
        self._about, self.num_layers, self.file_bytes = about, about["num_layers"], about["file_bytes"]
        self._refuse_unsaid(config)
        self._file = _rust.TensorFile(path)
        self._to_names = dict(self._found(config))
        types = self._dims("token_types.weight")
        self._num_types = types[1] if types else 0
        words = encoder_words(path, about["vocab_size"], self._num_types)
        self.metadata = self._described(config) | words

    def tensors(self) -> Sequence[SourceTensor]:
        """Return the model's; its table of positions has a row for each token of the longest text."""
        found: list[SourceTensor] = []
        for name, (own, _) in self._to_names.items():
            dims, kind = cast("tuple[list[int], str]", self._file.find(own))
            rows = [self._about["max_tokens"]] if name == "position_embd.weight" else dims[1:]
            found.append(SourceTensor(name, [dims[0], *rows], kind))
        return found

    def read(self, name: str, first_row: int, out: array[float]) -> None:
        """Read rows as they are."""
        own, skipped = self._to_names[name]
        self._file.read_floats(own, skipped + first_row, memoryview(out).cast("B"))

    def check(self, written: Path) -> None:
        """Compare the two as the engine reads them, and what texts become."""
        try:
            after = _rust.describe_encoder(written)
        except _rust.ModelFileError as error:
            self._refuse(str(error))
        compared = _SAME if self._has_labels else (*_SAME, "pooling")
        for name in compared:
            one, other = self._about[name], None if after is None else after[name]
            if one != other:
                self._refuse(f"its {name.replace('_', ' ')} {one!s:.80} would be read {other!s:.80}")
        before, made = (TextTokens(path, 1 << 20, self._about["vocab_size"]) for path in (self.path, written))
        for text in _PROBES:
            if self._told_apart(before.encode([text])) != self._told_apart(made.encode([text])):
                self._refuse(f"{str(text)[:40]!r} would become other tokens")

    def _told_apart(self, texts: list[list[int]]) -> list[list[int]]:
        """Return tokens, of which a model that tells no second text apart sees none."""
        seen = -1 if self._num_types > 1 else ~SECOND_TEXT
        return [[token & seen for token in text] for text in texts]

    @property
    def _has_labels(self) -> bool:
        return self._about["labels"] is not None

    def _refuse(self, why: str) -> NoReturn:
        raise ModelError(f"{self.path}: cannot be written as GGUF: {why}", model=str(self.path))

    def _refuse_unsaid(self, config: Config) -> None:
        """Refuse what GGUF has no key for."""
        about, (key, usual, known) = self._about, self._family.activation
        labels_texts = _rust.model_task(self.path) != "token_classify"
        if self._has_labels and (not self._family.head or about["ranks_by_words"] or not labels_texts):
            self._refuse("its labels have no place there")
        if about["ranks_by_tokens"]:
            self._refuse("late interaction has no name there")
        if not self._has_labels and about["pooling"] not in _POOLINGS:
            self._refuse(f"pooling by {about['pooling']} has no name there; expected {', '.join(_POOLINGS)}")
        if (activation := config.get(key, usual)) not in known:
            self._refuse(
                f"its activation is {activation!s:.40}; files of {self._family.gguf} have {' or '.join(known)}"
            )
        if self._has_labels and config.get("classifier_activation", "gelu") != "gelu":
            self._refuse("the activation before its labels is not gelu, of which there is no key")
        if not self._has_labels and (about["num_outputs"] != about["num_dimensions"] or self._has_dense()):
            self._refuse("its steps after pooling have no place there")
        if config.get("model_type") == "modernbert" and every_which(config) is None:
            self._refuse("layers that see everything, other than every so many from the first on, have no key there")

    def _has_dense(self) -> bool:
        file = self.path / "modules.json"
        return file.exists() and b".Dense" in file.read_bytes()[: 1 << 20]

    def _found(self, config: Config) -> Iterator[tuple[str, tuple[str, int]]]:
        """Yield GGUF's names, the folder's, and how many rows at their beginning stand for nothing."""
        names = self._family.names("", 0, has_labels=False)
        embedding = next(own for own, gguf in names if gguf == "token_embd.weight")
        prefixes = (prefix for prefix in self._family.prefixes if self._file.find(f"{prefix}{embedding}") is not None)
        prefix = next(prefixes, "")
        # RoBERTa's positions begin behind that of padding.
        skipped = 0 if config.get("model_type") == "bert" else 1 + int(number_in(config, "pad_token_id", default=1))
        used: set[str] = set()
        for own, gguf in self._family.names(prefix, self.num_layers, has_labels=self._has_labels):
            if self._file.find(own) is not None:
                used.add(own)
                yield gguf, (own, skipped if gguf == "position_embd.weight" else 0)
        header = _rust.read_model_header(self.path, arrays=False)
        of_layers = (name for name, *_ in header["tensors"] if name.startswith(f"{prefix}{self._family.layers}"))
        if lost := sorted(set(of_layers) - used):
            self._refuse(f"tensor '{lost[0]:.100}' would be lost: files of {self._family.gguf} have none such")

    def _dims(self, name: str) -> Sequence[int]:
        found = self._file.find(self._to_names[name][0]) if name in self._to_names else None
        return found[0] if found else ()

    def _described(self, config: Config) -> Metadata:
        def size(*names: str) -> bytes:
            return uint32(int(number_in(config, *names)))

        pooling = _RANK if self._has_labels else _POOLINGS[self._about["pooling"]]
        epsilon = number_in(config, self._family.epsilon, "layer_norm_epsilon", default=1e-12)
        keys: Metadata = {
            "block_count": uint32(self.num_layers),
            "context_length": uint32(self._about["max_tokens"]),
            "embedding_length": size("hidden_size", "n_embd"),
            "feed_forward_length": size("intermediate_size", "n_inner"),
            "attention.head_count": size("num_attention_heads", "n_head"),
            "attention.layer_norm_epsilon": float32(epsilon),
            "attention.causal": boolean(False),
            "pooling_type": uint32(pooling),
            **self._family.keys(config),
        }
        if (labels := self._about["labels"]) is not None:
            keys["classifier.output_labels"] = strings(labels)
        name = self._family.gguf
        general = {
            "general.architecture": string(name),
            "general.type": string("model"),
            "general.name": string(self.path.resolve().name),
        }
        return general | {f"{name}.{key}": value for key, value in keys.items()}
