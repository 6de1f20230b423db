"""Small models of random weights with a head that drafts further tokens, of each family whose heads are known.

That of `eagle3` is a folder of its own; the others' are in the models' files.
"""

from __future__ import annotations

from pathlib import Path

from support.gguf_writer import Tensors
from support.hybrid_model import hybrid_tensors, mtp_tensors, write_hybrid, write_mtp
from support.kv_sequences import head_of
from support.tiny_eagle import write_head, write_target
from support.tiny_sparse import LAYERS, sparse_head, sparse_tensors, write_sparse

FAMILIES = ("qwen35", "glm4moe", "deepseek2")
HEAD = "blk.4."
"""What the names of each head's tensors begin with."""


def headed_tensors(family: str) -> Tensors:
    """Return a model's tensors, those of its head among them."""
    return mtp_tensors() if family == "qwen35" else {**sparse_tensors(family), **sparse_head(family)}


def write_headed(path: Path, family: str, tensors: Tensors | None = None) -> Path:
    """Write a model with a head, which may be a folder beside it; return `path`."""
    if family == "eagle3":
        write_head(head_of(path))
        return write_target(path)
    tensors = headed_tensors(family) if tensors is None else tensors
    if family == "qwen35":
        return write_mtp(path, tensors)
    return write_sparse(path, family, dict(tensors), block_count=LAYERS + 1, nextn_predict_layers=1)


def write_headless(path: Path, family: str) -> Path:
    """Write the same model without its head; return `path`."""
    if family == "eagle3":
        return write_target(path)
    if family == "qwen35":
        return write_hybrid(path, family, 7, hybrid_tensors(family))
    return write_sparse(path, family)
