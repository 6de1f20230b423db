"""A PyAgent plugin with one tokenizer: models of ours read bytes, and files named `*.bytes.gguf` are such models."""

from collections.abc import Sequence
from pathlib import Path

from pyagent.plugin import Tokenizer, TokenizerFactory, hookimpl

CONTROLS = {"<|end|>": 256, "<|user|>": 257, "<|assistant|>": 258}


class Bytes:
    """Tokens 0 to 255 are bytes, the others separate turns."""

    num_tokens = 256 + len(CONTROLS)
    special_tokens = CONTROLS
    begin_id = None
    end_ids = (CONTROLS["<|end|>"],)
    has_leading_space = False

    def encode(self, text: str) -> list[int]:
        for name, token in CONTROLS.items():
            if name in text:
                before, _, after = text.partition(name)
                return [*self.encode(before), token, *self.encode(after)]
        return list(text.encode())

    def token_bytes(self, token: int) -> bytes:
        return bytes([token]) if token < 256 else b""


class ByteModels:
    name = "bytes"

    def matches(self, path: Path) -> bool:
        return path.name.endswith(".bytes.gguf")

    def load(self, path: Path) -> Tokenizer:
        return Bytes()


@hookimpl
def pyagent_register_tokenizers() -> Sequence[TokenizerFactory]:
    return [ByteModels()]
