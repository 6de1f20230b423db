"""A PyAgent plugin with a logits processor: `keep_script` lets a model write letters of one script only."""

import math
import unicodedata
from array import array
from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

from pyagent.plugin import LogitsProcessorFactory, RequestLogitsProcessor, Vocabulary, hookimpl

Spans = list[tuple[int, int]]


def script_of(letter: str) -> str:
    """`cyrillic` for `д`, as Unicode names it."""
    return unicodedata.name(letter, "").partition(" ")[0].lower()


def is_written(token: bytes, script: str) -> bool:
    """Whether a token has letters of the script only; what is a part of a letter may be anybody's."""
    try:
        return all(script_of(letter) == script for letter in token.decode() if letter.isalpha())
    except UnicodeDecodeError:
        return False


def spans_of(tokens: list[int]) -> Spans:
    """Tokens as spans of neighbours, each of which is excluded at once."""
    spans: Spans = []
    for token in tokens:
        if spans and spans[-1][1] == token:
            spans[-1] = (spans[-1][0], token + 1)
        else:
            spans.append((token, token + 1))
    return spans


class KeepScript:
    """`{"name": "keep_script", "args": {"script": "latin"}}`"""

    name = "keep_script"
    arguments = {"properties": {"script": {"type": "string"}}, "required": ["script"], "additionalProperties": False}
    is_argmax_invariant = False

    def __init__(self) -> None:
        self.tables: WeakKeyDictionary[Vocabulary, dict[str, Spans]] = WeakKeyDictionary()

    def make(self, args: dict[str, Any], vocabulary: Vocabulary) -> RequestLogitsProcessor:
        """A function that excludes all other letters. The table behind it is made once for a model."""
        tables = self.tables.setdefault(vocabulary, {})
        script = args["script"].lower()
        if script not in tables:
            tokens = enumerate(vocabulary.tokens())
            others = [token for token, data in tokens if not is_written(data, script)]
            tables[script] = spans_of([token for token in others if token not in vocabulary.control_ids])
        spans, excluded = tables[script], memoryview(array("f", [-math.inf]) * vocabulary.size)

        def keep(prompt: Sequence[int], output: Sequence[int], logits: "memoryview[float]") -> None:
            for start, stop in spans:
                logits[start:stop] = excluded[start:stop]

        return keep


@hookimpl
def pyagent_register_logits_processors() -> list[LogitsProcessorFactory]:
    """The processor `keep_script`."""
    return [KeepScript()]
