"""Without a GPU, Triton's kernels run in its interpreter: it reads the variable when it is imported first."""

from __future__ import annotations

import os

import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
