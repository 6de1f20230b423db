"""Puts the tiny model's tokenizer and chat template into a folder of safetensors, as transformers saves them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from support.reference_decoder import write_family
from support.tiny_model import CHAT_TEMPLATE, CONTROL_TOKENS, metadata, vocabulary

from pyagent.infrastructure.engine.tokens.gguf_vocabulary import build_tokenizer

NUM_TOKENS = len(vocabulary()[0])


def write_model_folder(folder: Path, family: str = "llama", **changes: Any) -> Path:
    """Write a random model of a family that has a tokenizer; returns `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    usual: dict[str, Any] = {"vocab_size": NUM_TOKENS + 3, "bos_token_id": 1, "eos_token_id": [2, 0]}
    write_family(folder, family, **(usual | changes))
    write_tokenizer(folder)
    return folder


def write_tokenizer(folder: Path, **changes: Any) -> None:
    """Write tokenizer.json and tokenizer_config.json; `changes` are those of the tiny model's metadata."""
    build_tokenizer(metadata(**changes), str(folder)).save(str(folder / "tokenizer.json"))
    about = {"bos_token": CONTROL_TOKENS[1], "eos_token": CONTROL_TOKENS[2], "add_bos_token": False}
    (folder / "tokenizer_config.json").write_text(json.dumps({**about, "chat_template": CHAT_TEMPLATE}))
