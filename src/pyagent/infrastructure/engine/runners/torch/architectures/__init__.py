"""Architectures of plugins, and the shipped ones of another shape than the CPU runner's description has.

`gpt2` and `gpt_neox` are descriptions over the layers that `layers` makes; `brought` runs them. They are imported with
the plugins: torch is imported where a model is loaded.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyagent.core.hooks import hookimpl
from pyagent.core.runners.architecture import Architecture
from pyagent.infrastructure.engine.runners.torch.architectures.gpt2 import Gpt2
from pyagent.infrastructure.engine.runners.torch.architectures.gpt_neox import GptNeoX


@hookimpl
def pyagent_register_architectures() -> Sequence[Architecture]:
    """GPT-2 and GPT-NeoX."""
    return [Gpt2(), GptNeoX()]
