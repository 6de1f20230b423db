"""Accuracy and calibration of the agent `classification` on labelled texts and on scikit-learn's bundled tables.

    python benchmarks/classify.py [--only trained|model|tables] [--model NAME] [--json]

`trained` and `auto` leave out one example after the other; `likelihood` and `choice` are shown no example, `choice,
shots` two of each label, which are not counted. Tables are texts such as `sepal length 5.1, sepal width 3.5`;
`trained` leaves out a fifth at a time. They need scikit-learn.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import Sequence
from pathlib import Path

from pyagent.cli.startup import read_settings
from pyagent.core.fleet.agent import Task
from pyagent.core.naive_bayes import probabilities
from pyagent.fleet import Fleet
from pyagent.logic.agents.classification import Classification
from pyagent.logic.classification.calibration import calibrated, expected_calibration_error
from pyagent.logic.classification.texts import Example
from pyagent.logic.classification.trained import train

DATA = Path(__file__).parent.parent / "tests" / "data" / "classification"
SETS = ("sentiment", "topic", "intent")
DESCRIPTIONS = {
    "intent": {
        "track": "where a parcel is",
        "cancel": "stopping an order",
        "return": "sending something back for money",
        "account": "a login, password or profile",
    }
}
TABLES = ("iris", "wine", "breast_cancer")


def texts(name: str) -> list[Example]:
    """Return the examples of a set."""
    lines = (DATA / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
    return [Example(row["text"], row["label"]) for row in map(json.loads, lines)]


def table(name: str) -> list[Example]:
    """Return the rows of one of scikit-learn's tables as texts."""
    from sklearn import datasets

    data = getattr(datasets, f"load_{name}")()
    names = [str(each).replace("(cm)", "").strip() for each in data.feature_names]
    return [
        Example(", ".join(f"{each} {value:g}" for each, value in zip(names, row, strict=True)), str(label))
        for row, label in zip(data.data, (data.target_names[nth] for nth in data.target), strict=True)
    ]


def trained(examples: Sequence[Example]) -> dict[str, float]:
    """Return what leaving one out after the other says of the exact classifier."""
    began = time.perf_counter()
    told = calibrated(train([(each.text, each.label) for each in examples]).leave_one_out())
    return {
        "accuracy": told.accuracy or 0.0,
        "ece_before": told.ece_before or 0.0,
        "ece": told.ece or 0.0,
        "seconds": round(time.perf_counter() - began, 3),
    }


def folds(examples: Sequence[Example], num_folds: int = 5) -> dict[str, float]:
    """Return the accuracy of the exact classifier, a part of the examples left out at a time."""
    right, told = 0, []
    for fold in range(num_folds):
        kept = [(each.text, each.label) for nth, each in enumerate(examples) if nth % num_folds != fold]
        classifier = train(kept)
        temperature = calibrated(classifier.leave_one_out()).temperature or 1.0
        for each in examples[fold::num_folds]:
            shares = probabilities(classifier.scores(each.text) or {}, temperature)
            best = max(shares, key=lambda label: shares[label])
            right += best == each.label
            told.append((shares[best], best == each.label))
    return {"accuracy": round(right / len(examples), 3), "ece": round(expected_calibration_error(told), 3)}


async def by_model(
    fleet: Fleet, examples: Sequence[Example], arguments: dict[str, object], shots: Sequence[Example] = ()
) -> dict[str, float]:
    """Return what the agent says of texts that it was shown no label of."""
    labels = list(dict.fromkeys(each.label for each in examples))
    shown = [{"text": each.text, "label": each.label} for each in shots]
    rows = [each for each in examples if each not in shots]
    began = time.perf_counter()
    found = []
    for each in rows:
        task = Task(text=each.text, arguments={"labels": labels, "examples": shown, **arguments})
        result = await fleet.run_agent("classification", task)
        assert isinstance(result, Classification)
        found.append((result.items[0].probability, result.items[0].label == each.label))
    return {
        "accuracy": round(sum(is_right for _, is_right in found) / len(found), 3),
        "ece": round(expected_calibration_error(found), 3),
        "ms_a_text": round(1000 * (time.perf_counter() - began) / len(found)),
    }


async def auto(fleet: Fleet, examples: Sequence[Example], arguments: dict[str, object]) -> dict[str, float]:
    """Return what a classifier says that is trained on all other examples, and whose doubtful texts a model sees."""
    labels = list(dict.fromkeys(each.label for each in examples))
    found, num_asked, began = [], 0, time.perf_counter()
    for nth, each in enumerate(examples):
        others = [{"text": one.text, "label": one.label} for at, one in enumerate(examples) if at != nth]
        task = Task(text=each.text, arguments={"labels": labels, "examples": others, **arguments})
        result = await fleet.run_agent("classification", task)
        assert isinstance(result, Classification)
        num_asked += "+" in result.items[0].method
        found.append((result.items[0].probability, result.items[0].label == each.label))
    return {
        "accuracy": round(sum(is_right for _, is_right in found) / len(found), 3),
        "ece": round(expected_calibration_error(found), 3),
        "asked": num_asked,
        "ms_a_text": round(1000 * (time.perf_counter() - began) / len(found)),
    }


async def models(model: str | None, result: dict[str, dict[str, object]]) -> None:
    """Measure what asks a model."""
    async with Fleet(read_settings(None, None, model)) as fleet:
        for name in SETS:
            examples = texts(name)
            labels = list(dict.fromkeys(each.label for each in examples))
            shots = [each for label in labels for each in [one for one in examples if one.label == label][:2]]
            more = {"descriptions": DESCRIPTIONS[name]} if name in DESCRIPTIONS else {}
            row = result.setdefault(name, {})
            row["likelihood"] = await by_model(fleet, examples, {"method": "likelihood", **more})
            row["choice"] = await by_model(fleet, examples, {"method": "choice", **more})
            row["choice, shots"] = await by_model(fleet, examples, {"method": "choice", **more}, shots)
            row["auto"] = await auto(fleet, examples, more)


def main() -> None:
    parser = argparse.ArgumentParser(description="accuracy and calibration of the agent classification")
    parser.add_argument("--only", choices=["trained", "model", "tables"])
    parser.add_argument("--model")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    result: dict[str, dict[str, object]] = {}
    if given.only in {None, "trained"}:
        for name in SETS:
            result.setdefault(name, {})["trained"] = trained(texts(name))
    if given.only in {None, "tables"}:
        for name in TABLES:
            try:
                rows = table(name)
            except ImportError:
                print("the tables need scikit-learn")
                break
            result.setdefault(name, {})["trained"] = trained(rows) | {"five_folds": folds(rows)}
    if given.only in {None, "model"}:
        asyncio.run(models(given.model, result))
    if given.json:
        print(json.dumps(result))
        return
    for name, table_of in result.items():
        print(name)
        for method, row in table_of.items():
            print(f"  {method:<22}{row}")


if __name__ == "__main__":
    main()
