"""What a logits processor that does nothing adds to sampling a row: CPU time, beside sampling without any.

python benchmarks/logits_processors.py
"""

from __future__ import annotations

import random
import statistics
import time
from array import array
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

from pyagent import _rust
from pyagent.core.logits_processors import BroughtLogitsProcessor
from pyagent.infrastructure.engine.logits.row_processors import BatchProcessor, RowProcessor
from pyagent.infrastructure.engine.logits.step_logits import StepLogits

ROUNDS = 40


def requests(num_rows: int, *, is_batched: bool) -> list[Any]:
    """As many requests, each with a processor that changes nothing."""
    crowd = SimpleNamespace(update_state=lambda update: None, apply=lambda logits: None)
    make = {"make_batch": lambda vocabulary: crowd} if is_batched else {"make": lambda args, vocabulary: None}
    factory: Any = SimpleNamespace(name="nothing", arguments={}, is_argmax_invariant=False, **make)
    brought, vocabulary = BroughtLogitsProcessor.of(factory, "benchmark"), SimpleNamespace()
    batch = BatchProcessor(brought, vocabulary) if is_batched else None  # type: ignore[arg-type]

    def nothing(prompt: object, output: object, logits: object) -> None: ...

    def request(place: int) -> Any:
        processor = RowProcessor(brought, {}, vocabulary, batch, nothing)  # type: ignore[arg-type]
        return SimpleNamespace(id=place, tokens=[1] * 100, num_prompt_tokens=50, processors=(processor,))

    return [request(place) for place in range(num_rows)]


def micros(sample: Callable[[], Any]) -> float:
    """The median CPU time of a step."""
    seconds: list[float] = []
    for _ in range(ROUNDS):
        start = time.process_time()
        assert not sample()[2]
        seconds.append(time.process_time() - start)
    return 1e6 * statistics.median(seconds)


def main() -> None:
    """Print a line for each vocabulary and batch."""
    step = StepLogits(60)
    print("vocabulary  rows  plain us/row  + a function  + a batch processor")
    for vocab_size in (49_152, 128_256):
        for num_rows in (1, 16):
            logits = array("f", [random.gauss(0, 3) for _ in range(vocab_size)]) * num_rows
            samplers = [_rust.SamplerState(temperature=0.8, top_p=0.95, seed=place) for place in range(num_rows)]
            sample = partial(_rust.sample_logits, logits, samplers, [0] * num_rows)
            plain = micros(sample)
            added: list[float] = []
            for is_batched in (False, True):
                asked = requests(num_rows, is_batched=is_batched)
                processed = frozenset(range(num_rows))
                took = micros(partial(sample, process=partial(step.process, asked), processed=processed))
                added.append((took - plain) / num_rows)
            print(f"{vocab_size:>10}  {num_rows:>4}  {plain / num_rows:>12.0f}  {added[0]:>12.0f}  {added[1]:>19.0f}")


if __name__ == "__main__":
    main()
