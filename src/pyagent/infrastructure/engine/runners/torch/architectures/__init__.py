"""Architectures of plugins, and the shipped ones of another shape than the CPU runner's description has.

`gpt2`, `gpt_neox` and `qwen_vl` are descriptions over the layers that `layers` makes; `brought` runs them. They are
imported with the plugins: torch is imported where a model is loaded.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyagent.core.hooks import hookimpl
from pyagent.core.runners.architecture import Architecture
from pyagent.infrastructure.engine.runners.torch.architectures.gpt2 import Gpt2
from pyagent.infrastructure.engine.runners.torch.architectures.gpt_neox import GptNeoX
from pyagent.infrastructure.engine.runners.torch.architectures.qwen_vl import QWEN_VL


@hookimpl
def pyagent_register_architectures() -> Sequence[Architecture]:
    """GPT-2, GPT-NeoX, and the text half of Qwen's models of pictures and text."""
    return [Gpt2(), GptNeoX(), *QWEN_VL]
