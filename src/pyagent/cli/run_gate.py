"""`pyagent runs gate`: whether scores of runs are good and steady enough for a release, as an exit code."""

from __future__ import annotations

import math
import sys
from statistics import fmean, pvariance
from typing import Annotated

import typer

from pyagent.cli.options import AsJson
from pyagent.cli.output import write_json
from pyagent.core.errors import RequestError
from pyagent.core.fleet.stability import Gate

_REFUSED = 1
_MAX_SCORES = 100_000
_MAX_CHARACTERS = 10_000_000


def gate(
    min_mean: Annotated[float, typer.Option("--min", help="What the scores have to be on average.")],
    score: Annotated[
        list[str] | None, typer.Option("--score", metavar="S", help="A score, oldest first; - reads them. Repeated.")
    ] = None,
    variance: Annotated[float | None, typer.Option("--variance", help="The most that their variance may be.")] = None,
    allow_falling: Annotated[bool, typer.Option("--allow-falling", help="Pass scores that get worse.")] = False,
    as_json: AsJson = False,
) -> int:
    """Pass (0) or refuse (1) a release by its scores: their mean, their variance, and whether they get worse."""
    for name, bound in (("min", min_mean), ("variance", variance)):
        if bound is not None and not math.isfinite(bound):
            raise RequestError(f"--{name} takes a number as 0.9, got {bound}", param=name)
    scores = _scores(score or [])
    faults = Gate(min_mean=min_mean, max_variance=variance, allows_falling=allow_falling).faults(scores)
    mean, spread = fmean(scores), pvariance(scores)
    if as_json:
        write_json({"passes": not faults, "faults": faults, "mean": mean, "variance": spread, "scores": len(scores)})
    else:
        told = "refused: " + "; ".join(faults) if faults else "passed"
        sys.stdout.write(f"{told} ({len(scores)} scores, mean {mean:.6g}, variance {spread:.6g})\n")
    return _REFUSED if faults else 0


def _scores(words: list[str]) -> list[float]:
    texts = [text for word in words for text in (_piped() if word == "-" else [word])]
    if not texts:
        raise RequestError(
            "there are no scores; give --score 0.9, more than once, or --score - to read them", param="score"
        )
    if len(texts) > _MAX_SCORES:
        raise RequestError(f"a gate takes up to {_MAX_SCORES:,} scores, got {len(texts):,}", param="score")
    return [_number(text) for text in texts]


def _piped() -> list[str]:
    return sys.stdin.read(_MAX_CHARACTERS).split() if sys.stdin else []


def _number(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number) or abs(number) > 1e100:
        raise RequestError(f"a score is a number as 0.92, got {text!r:.40}", param="score")
    return number
