"""Precision and recall of `pyagent.core.trust` on the labelled texts, and what a scan costs.

    python benchmarks/trust.py [--wrong PART] [--json]

`tuned` is the part that the rules were written on, `held_out` the part that was written before any rule and not looked
at since. `--wrong tuned` shows the texts of a part that are told wrongly.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

from pyagent.core.trust.findings import FLAGGED, Scan
from pyagent.core.trust.scan import scan

DATA = Path(__file__).parent.parent / "tests" / "data" / "trust"
PARTS = ("tuned", "held_out")
LABELS = ("injection", "manipulation", "benign")


def texts(part: str) -> list[tuple[str, str]]:
    """Return label and text of each."""
    lines = (DATA / f"{part}.jsonl").read_text(encoding="utf-8").splitlines()
    return [(row["label"], row["text"]) for row in map(json.loads, lines)]


def flags(found: Scan) -> set[str]:
    """Return what a scan flags a text as."""
    return {group for group in ("injection", "manipulation") if getattr(found, group) >= FLAGGED}


def measured(rows: list[tuple[str, set[str]]]) -> dict[str, dict[str, float | int]]:
    """Return precision and recall for each kind, and for a flag of any kind."""
    table = {}
    for kind in ("injection", "manipulation", "any"):
        is_so = [label == kind or (kind == "any" and label != "benign") for label, _ in rows]
        said = [kind in told or (kind == "any" and bool(told)) for _, told in rows]
        hits = sum(a and b for a, b in zip(is_so, said, strict=True))
        table[kind] = {
            "texts": sum(is_so),
            "precision": round(hits / max(1, sum(said)), 3),
            "recall": round(hits / max(1, sum(is_so)), 3),
            "benign_flagged": sum(said[at] for at, (label, _) in enumerate(rows) if label == "benign"),
            "benign": sum(label == "benign" for label, _ in rows),
        }
    return table


def cost() -> dict[str, float]:
    """Return milliseconds of a scan: the best of several."""
    prose = " ".join(text for _, text in texts("tuned") if text.isascii())
    benign = " ".join(text for label, text in texts("tuned") if label == "benign" and text.isascii())
    plain = "The meeting begins at nine, and the report on the harbour is due on Friday. "
    cases = {
        "10 KB of prose": (plain * 200)[:10_000],
        "10 KB of benign texts": (benign * 3)[:10_000],
        "10 KB of the labelled texts": (prose * 2)[:10_000],
        "1 MB of prose": (plain * 14_000)[:1_000_000],
        "1 MB of the labelled texts": (prose * 100)[:1_000_000],
        "1 MB of one trigger word": ("ignore " * 150_000)[:1_000_000],
    }
    return {name: round(_best(text) * 1000, 2) for name, text in cases.items()}


def _best(text: str) -> float:
    scan(text)
    times = []
    for _ in range(20 if len(text) < 100_000 else 3):
        began = time.perf_counter()
        scan(text)
        times.append(time.perf_counter() - began)
    return min(times)


def main() -> None:
    parser = argparse.ArgumentParser(description="precision, recall and cost of the rules of trust")
    parser.add_argument("--wrong", choices=PARTS)
    parser.add_argument("--only", choices=PARTS)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    result: dict[str, object] = {}
    for part in [given.only] if given.only else PARTS:
        rows = [(label, text, scan(text)) for label, text in texts(part)]
        result[part] = measured([(label, flags(found)) for label, _, found in rows])
        if given.wrong == part:
            for label, text, found in rows:
                if flags(found) != {label} - {"benign"}:
                    print(f"{label:<13}{found.injection:<6}{found.manipulation:<6}{text!r:.160}")
                    for each in found.findings:
                        print(f"      {each.kind} {each.weight} {each.quote!r}")
    if not given.only:
        result["ms"] = cost()
    if given.json:
        print(json.dumps(result))
        return
    for part, table in result.items():
        print(part)
        for kind, row in table.items():  # type: ignore[attr-defined]
            print(f"  {kind:<28}{row}")


if __name__ == "__main__":
    main()
