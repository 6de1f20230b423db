"""Which of a model's matrices are quantised, whatever file they are in."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from pyagent.infrastructure.engine.runners.torch.parallel.shard import Span
from pyagent.infrastructure.engine.runners.torch.quantised.blocks import GgufBlocks
from pyagent.infrastructure.engine.runners.torch.quantised.folder import QuantisedFolder
from pyagent.infrastructure.engine.runners.torch.quantised.groups import GroupedMatrix
from pyagent.infrastructure.engine.runners.torch.quantised.scheme import is_mxfp4, read_scheme

if TYPE_CHECKING:
    from pyagent._rust import ModelFile


class StoredMatrix(Protocol):
    """A matrix that can stay quantised."""

    def row_bytes(self, columns: Span) -> int:
        """Return the bytes that some columns of a row take on the device."""
        ...

    def read(self, rows: Span, columns: Span, device: torch.device) -> Iterator[GroupedMatrix]:
        """Yield a rank's rows, some at a time. Raises `ModelError` for what is not as the configuration says."""
        ...


class QuantisedMatrices(Protocol):
    """A model's matrices, by the names of GGUF files without `.weight`."""

    def find(self, name: str, rows: Span, columns: Span) -> StoredMatrix | None:
        """Return a matrix of which these columns can stay quantised; None where they cannot, or it is not."""
        ...

    def fill(self, name: str, target: Tensor, rows: Span, columns: Span) -> bool:
        """Put weights into `target`, dequantised; False where the file's reader gives numbers itself."""
        ...


def quantised_matrices(file: ModelFile, path: str) -> QuantisedMatrices:
    """Return the matrices of an open model. Raises `ModelError` naming a format that is not implemented."""
    about = file.quantization
    if about is None or (file.config.has_sinks and is_mxfp4(about)):  # whose experts are read in another way
        return GgufBlocks(file)
    return QuantisedFolder(file, path, read_scheme(about, path))
