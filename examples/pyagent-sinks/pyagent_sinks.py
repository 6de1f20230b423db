"""Attention sinks: each token sees the first four and the last thousand, whatever the model was trained with."""

from collections.abc import Sequence
from typing import Any

from pyagent.plugin import AttentionBackend, FlexAttention, hookimpl


def mask(head: Any, query: Any, key: Any) -> Any:
    return (key < 4) | (query - key < 1000)


@hookimpl
def pyagent_register_attention_backends() -> Sequence[AttentionBackend]:
    return [FlexAttention("sinks", mask)]
