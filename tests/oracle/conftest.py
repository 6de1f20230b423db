"""Without a GPU, Triton's kernels run in its interpreter: it reads the variable when it is imported first.

What needs torch is not collected where there is none; `make oracle` has it.
"""

from __future__ import annotations

import os
from importlib.util import find_spec

if find_spec("torch") is None:
    collect_ignore_glob = ["test_torch_*.py", "test_triton_*.py", "test_attention_*.py"]
else:
    import torch

    if not torch.cuda.is_available():
        os.environ["TRITON_INTERPRET"] = "1"
