"""Writes docs/reference/models.md from tests/oracle/families.tsv: which families of models were compared with what.

.venv/bin/python docs/model_reference.py > docs/reference/models.md
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path

TABLE = Path(__file__).parents[1] / "tests/oracle/families.tsv"
"""A family a line: its name, form of its files, runner, what is compared, on which weights, and the test that does."""

_BEGINNING = """# Models that were compared

Each row is a test of `make oracle`, or of `make converter` where it names llama.cpp's converter: the engine computes a
model's numbers, a reference does, and the test says how far they may be apart. The reference is transformers, unless
the row names another. A family without a row has no such test.
[What can be run](../how-to/own-model-file.md#what-can-be-run) has the types of files and weights;
`pyagent models show FILE` says what one file is.

"Whole, in chunks and in a batch" says how the engine was given the text: in one step, in several, and beside other
texts. A logit is the number that a model gives each token of its vocabulary before one is chosen; "greedy tokens" are
those of the greatest. "To 1e-4" is the largest difference of two numbers. "gguf's tensors" means that the engine reads
the same numbers of a file as the Python package `gguf`.

"random, float32" is a small model with random weights and what is peculiar to the family: it shows that the engine's
formulas are right. "random, quantised" and "random, MXFP4 experts" are such models with weights of few bits. Of the
others the real weights were read, in the type that is named.
"""

_END = "This page is made by `docs/model_reference.py` from `tests/oracle/families.tsv`, which names each row's test."


def rows() -> list[dict[str, str]]:
    """Return the table's lines."""
    with TABLE.open(newline="") as file:
        return list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))


def render() -> str:
    """Return the page."""
    lines = ["| family | files | runner | what was compared | weights |", "|---|---|---|---|---|"]
    fields = ("family", "files", "runner", "compared", "weights")
    lines += [f"| {' | '.join(row[field] for field in fields)} |" for row in rows()]
    return "\n".join([_BEGINNING, *lines, "", _END, ""])


if __name__ == "__main__":
    sys.stdout.write(render())
