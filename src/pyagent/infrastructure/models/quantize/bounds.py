"""What a folder's tokenizer and chat template may ask for before they are run: no more than real ones by far.

tokenizer.json is a program over texts, and hostile input: a few hundred bytes can turn a letter into gigabytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import cast

from pyagent.core.errors import ModelError
from pyagent.infrastructure.engine.tokens.model_folder import object_in
from pyagent.infrastructure.engine.tokens.templates import MAX_TEMPLATE_CHARS

_MOST_TOKEN_CHARS = 4_096
_MOST_STEPS, _MOST_DEPTH = 64, 16
_MOST_GROWTH = 1_024
"""How many times as long a text may become."""

Json = Mapping[str, object]


def refuse_large_tokenizer(file: Path, told: Json) -> None:
    """Raise `ModelError` where what tokenizer.json says has tokens too long, or makes texts too long or too slowly."""
    vocabulary = object_in(object_in(told, "model"), "vocab")
    added = (token.get("content") for token in _objects(told.get("added_tokens")))
    longest = max((len(token) for token in (*vocabulary, *added) if isinstance(token, str)), default=0)
    if longest > _MOST_TOKEN_CHARS:
        _refuse(file, f"it has a token of {longest} characters; expected at most {_MOST_TOKEN_CHARS}")
    steps, growth = [*_steps(file, told.get("normalizer"), 0)], 1.0
    if len(steps) > _MOST_STEPS:
        _refuse(file, f"its normalizer has {len(steps)} steps; expected at most {_MOST_STEPS}")
    for step in steps:
        growth *= _growth(step)
    if growth > _MOST_GROWTH:
        times = f"{growth:,.0f}" if growth < 1e9 else "over a billion"
        _refuse(file, f"its normalizer can make a text {times} times as long; expected at most {_MOST_GROWTH:,}")


def refuse_large_template(path: Path, template: str) -> None:
    """Raise `ModelError` for a chat template that PyAgent would not run, of a model's own."""
    if len(template) > MAX_TEMPLATE_CHARS:
        text = f"{path}: a chat template of {len(template)} characters; the limit is {MAX_TEMPLATE_CHARS}"
        raise ModelError(text, model=str(path))


def _steps(file: Path, normalizer: object, depth: int) -> Iterator[Json]:
    """Yield what a normalizer does, one after the other, out of sequences in sequences."""
    if depth > _MOST_DEPTH:
        _refuse(file, f"its normalizer's sequences are nested deeper than {_MOST_DEPTH}")
    for step in _objects([normalizer]):
        if step.get("type") == "Sequence":
            for inner in _objects(step.get("normalizers")):
                yield from _steps(file, inner, depth + 1)
        else:
            yield step


def _growth(step: Json) -> float:
    """Return how many times as long a step can make a text of some length."""
    made = step.get("content" if step.get("type") == "Replace" else "prepend")
    length = len(made) if isinstance(made, str) else 0
    pattern = object_in(step, "pattern").get("String")
    if isinstance(pattern, str) and pattern:
        return max(1.0, length / len(pattern))
    return 1.0 + length  # of a pattern that finds nothing between all letters, or before the first


def _objects(values: object) -> Iterable[Json]:
    found = cast("Sequence[object]", values) if isinstance(values, list) else ()
    return (cast("Json", value) for value in found if isinstance(value, dict))


def _refuse(file: Path, what: str) -> None:
    raise ModelError(f"{file}: {what}", model=str(file.parent))
