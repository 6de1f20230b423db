"""llama.cpp's own converter and its server, as `make converter` fetches them: into `.cache/llama.cpp` and `.peers`."""

from __future__ import annotations

import importlib
import json
import logging
import subprocess
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.peers import PYTHON, ROOT

SOURCE = ROOT / ".cache" / "llama.cpp"
NULL = object()
"""What published files say by `null`."""
FILE_TYPES = {"f32": "ALL_F32", "f16": "MOSTLY_F16", "q8_0": "MOSTLY_Q8_0"}


def convert(
    folder: Path,
    path: Path,
    file_type: str,
    words: str,
    published: Mapping[str, Any],
    *,
    has_mtp: bool = False,
    **options: bool,
) -> Path:
    """Write a folder of safetensors as llama.cpp's converter does; return `path`.

    The converter knows how a tokenizer cuts texts into words by a hash of what it makes of a text. A tokenizer of a
    test has no known hash, and `words` is the name that it would have. `published` is what the converter finds in
    `config.json` of published files, in place of what transformers now writes there; None is nothing. `has_mtp` says
    that a head that drafts is written too. `options` are the converter's own.
    """
    package = _converter()
    with warnings.catch_warnings(), pytest.MonkeyPatch.context() as changed:
        warnings.simplefilter("ignore")
        changed.setattr(package.TextModel, "get_vocab_base_pre", lambda *_: words)
        told = {**package.ModelBase.load_hparams(folder, False), **published}
        hparams = {
            key: None if value is NULL else value
            for key, value in told.items()
            if key not in published or value is not None
        }
        model = package.get_model_class(package.get_model_architecture(hparams, package.ModelType.TEXT))
        if model.supports_mtp_export:
            changed.setattr(model, "no_mtp", not has_mtp)
        if hasattr(model, "module_paths"):  # of all models that it converts
            changed.setattr(model, "module_paths", [])
        # Hunyuan's published tokenizer is code of the model's own; other folders have bytes in place of pieces.
        if words in {"hunyuan", "gpt-2"}:
            changed.setattr(model, "set_vocab", package.TextModel._set_vocab_gpt2)
        gguf = importlib.import_module("gguf")
        model(folder, gguf.LlamaFileType[FILE_TYPES[file_type]], path, hparams=hparams, **options).write()
    return path


def _converter() -> Any:
    """The converter's package; skips where `make converter` has not fetched it."""
    if not (SOURCE / "conversion").is_dir():
        pytest.skip(f"{SOURCE} is not here; `make converter` fetches it")
    if str(SOURCE) not in sys.path:
        sys.path[:0] = [str(SOURCE), str(SOURCE / "gguf-py")]
        for name in [name for name in sys.modules if name.partition(".")[0] == "gguf"]:
            del sys.modules[name]  # that of the oracle's packages is older
    logging.getLogger("hf-to-gguf").setLevel(logging.WARNING)
    logging.getLogger("gguf").setLevel(logging.WARNING)
    return importlib.import_module("conversion")


class LlamaCpp:
    """llama.cpp's server in a process of its own, which reads a model for each question."""

    def __init__(self, log: Path, script: str) -> None:
        self._log = log
        self._script = ROOT / "tests" / "peers" / script
        self._process: subprocess.Popen[str] | None = None

    def ask(self, path: Path, **asked: Any) -> dict[str, Any]:
        """What the script answers."""
        if self._process is None:
            with self._log.open("a") as output:
                self._process = subprocess.Popen(
                    [PYTHON, self._script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=output, text=True
                )
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(json.dumps({"path": str(path), **asked}) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line.startswith("{"):
            self.close()
            raise AssertionError(f"llama.cpp ended: {line}{self._log.read_text(errors='replace')[-2000:]}")
        answer = json.loads(line)
        assert "error" not in answer, answer["error"]
        return answer

    def close(self) -> None:
        """End the process, if there is one."""
        if self._process:
            self._process.kill()
            self._process.communicate()
            self._process = None


@contextmanager
def llama_cpp(log: Path, script: str = "llama_greedy.py") -> Iterator[LlamaCpp]:
    """llama.cpp's server until the end of the block, asked by a script in `tests/peers`."""
    if not PYTHON.exists():
        pytest.skip(f"{PYTHON} is not here; `make converter` installs llama.cpp's server")
    peer = LlamaCpp(log, script)
    try:
        yield peer
    finally:
        peer.close()


def tensors_of(path: Path) -> Iterator[tuple[str, Any]]:
    """Each tensor of a GGUF file, in float32, as llama.cpp's package `gguf` reads it."""
    _converter()
    gguf = importlib.import_module("gguf")
    for tensor in gguf.GGUFReader(path).tensors:
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        yield tensor.name, values.reshape(tuple(reversed([int(size) for size in tensor.shape])))
