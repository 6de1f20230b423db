"""What a classification comes to: each text's label with its probability, the runner-up, and by what it was found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from pyagent.core.one_line import printable
from pyagent.logic.classification.calibration import Calibration

_SHOWN = 60
_MOST_SHOWN = 5


class LabelShare(msgspec.Struct, frozen=True):
    """A label, and how likely it is."""

    label: str
    probability: float


class Labelled(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A text's label; None where none is likely enough. `labels` has all that fit, or else the likeliest few.

    `path` leads through a taxonomy, as far as it is likely enough; the probability is that of the whole path.
    """

    place: str
    text: str
    label: str | None
    probability: float
    method: str
    runner_up: str | None = None
    runner_up_probability: float | None = None
    labels: list[LabelShare] = []
    path: list[str] = []

    def __str__(self) -> str:
        """Return one line: label, probability, runner-up, and the text's beginning."""
        shown = printable(" ".join(self.text[: 2 * _SHOWN].split()))
        text = shown if len(shown) <= _SHOWN else f"{shown[: _SHOWN - 1]}…"
        if self.path:
            label = " > ".join(self.path)
        elif self.label is None:
            label = "(no label is likely enough)"
        else:
            label = self.label
        rival = "" if self.runner_up is None else f", then {self.runner_up} {self.runner_up_probability:.2f}"
        return f"{label} {self.probability:.2f}{rival}  ({self.method}) {text!r}"


class Classification(msgspec.Struct, frozen=True, kw_only=True):
    """All texts in their order. `calibration` tells what probabilities were fitted on, where they were."""

    items: list[Labelled]
    num_without_label: int
    labels: list[str]
    is_multi: bool = False
    calibration: Calibration | None = None
    note: str = ""

    def __str__(self) -> str:
        lines = [_multi_line(each) if self.is_multi else str(each) for each in self.items]
        if len(self.items) > 1 and not self.is_multi:
            counts: dict[str, int] = {}
            for each in self.items:
                counts[each.label or "(none)"] = counts.get(each.label or "(none)", 0) + 1
            lines.append(", ".join(f"{label}: {count}" for label, count in sorted(counts.items(), key=lambda x: -x[1])))
        if (fitted := self.calibration) is not None:
            lines.append(
                f"on {fitted.num_examples} examples left out in turn: {fitted.accuracy:.0%} right, calibration error "
                f"{fitted.ece_before:.2f} before, {fitted.ece:.2f} at temperature {fitted.temperature:g}"
            )
        return "\n".join([*lines, *([f"({self.note})"] if self.note else [])])


def _multi_line(item: Labelled) -> str:
    shown = printable(" ".join(item.text[:_SHOWN].split()))
    told = ", ".join(f"{each.label} {each.probability:.2f}" for each in item.labels) or "(no label is likely enough)"
    return f"{told}  ({item.method}) {shown!r}"


def best_first(shares: Mapping[str, float]) -> list[LabelShare]:
    """Return labels by probability; equal ones in their order."""
    ranked = sorted(shares.items(), key=lambda pair: -pair[1])
    return [LabelShare(label, round(share, 4)) for label, share in ranked]


def single(place: str, text: str, shares: Mapping[str, float], method: str, threshold: float) -> Labelled:
    """Return the likeliest label, if it is likely enough."""
    ranked = best_first(shares)
    best, rival = ranked[0], ranked[1] if len(ranked) > 1 else None
    return Labelled(
        place=place,
        text=text,
        label=best.label if best.probability >= threshold else None,
        probability=best.probability,
        method=method,
        runner_up=None if rival is None else rival.label,
        runner_up_probability=None if rival is None else rival.probability,
        labels=ranked[:_MOST_SHOWN],
    )


def several(place: str, text: str, shares: Mapping[str, float], method: str, threshold: float) -> Labelled:
    """Return all labels that are likely enough, each by itself."""
    ranked = best_first(shares)
    fitting = [each for each in ranked if each.probability >= threshold]
    best, rival = ranked[0], ranked[1] if len(ranked) > 1 else None
    return Labelled(
        place=place,
        text=text,
        label=best.label if fitting else None,
        probability=best.probability,
        method=method,
        runner_up=None if rival is None else rival.label,
        runner_up_probability=None if rival is None else rival.probability,
        labels=fitting,
    )


def along(place: str, text: str, path: Sequence[LabelShare], method: str, rival: LabelShare | None) -> Labelled:
    """Return a path through a taxonomy; the probability is the product of its levels'."""
    probability = 1.0
    for step in path:
        probability *= step.probability
    return Labelled(
        place=place,
        text=text,
        label=path[-1].label if path else None,
        probability=round(probability, 4),
        method=method,
        runner_up=None if rival is None else rival.label,
        runner_up_probability=None if rival is None else rival.probability,
        labels=list(path),
        path=[step.label for step in path],
    )
