"""Without a GPU, Triton's kernels run in its interpreter: it reads the variable when it is imported first.

What needs torch is not collected where there is none; `make oracle` has it.
"""

from __future__ import annotations

import os
from importlib.util import find_spec

import numpy as np
import pytest


@pytest.fixture(autouse=True, scope="session")
def _plain_arrays_of_gguf():
    """Let the package `gguf` cut words of a vocabulary out of a plain array over its memory map.

    Cut out of the map itself, Gemma's 262,144 take 20 of the 43 seconds in which transformers reads the file.
    """
    from gguf import GGUFReader

    cut = GGUFReader._get

    def cut_plainly(reader, *arguments, **named):
        reader.data = reader.data.view(np.ndarray)
        return cut(reader, *arguments, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(GGUFReader, "_get", cut_plainly)
        yield


if find_spec("torch") is None:
    collect_ignore_glob = ["test_torch_*.py", "test_triton_*.py", "test_attention_*.py"]
else:
    import torch

    if not torch.cuda.is_available():
        os.environ["TRITON_INTERPRET"] = "1"
