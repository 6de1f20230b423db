"""How many tokens a step gives where agents' recorded sessions are replayed, without a model: what drafts are right.

    .venv/bin/python benchmarks/draft_lengths.py [--swarm WHEEL] [--runs FILE ...] [--turns 40] [--session-tokens 40000]
                                                 [--most 7] [--slope 0.1 | --steps 1,1.01,1.03]

The sessions are those of `recorded_sessions.py`, in SmolLM2's tokens, one request at a time, each session a tenant; the
last row is of random tokens, which repeat nothing. The engine's own choice of drafts runs over a machine on which each
row more adds `--slope` of a step without drafts (0.1 on two cores, decision 69), or on which steps of 1, 2, 3 rows take
what `--steps` says and larger ones the last of it, as the Rust example `decode_beside_reading` measures it. So nothing
depends on what else the machine does; the ratio is to going without. `drafts.py` has the seconds of a model's shape in
its place.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import recorded_sessions
from recorded_sessions import Turn, run_turns, swarm_turns

from pyagent.core.runners.batch import Batch, StepOutput
from pyagent.infrastructure.engine.drafts.options import DraftOptions
from pyagent.infrastructure.engine.drafts.speculation import Speculation
from pyagent.infrastructure.engine.scheduler.step_plan import Plan
from pyagent.infrastructure.engine.tokens import ModelTokenizer
from pyagent.infrastructure.models.describe import describe_model
from pyagent.infrastructure.models.store import ModelStore

sys.path.append(str(Path(__file__).parent.parent / "tests"))
from support.counting_runner import Client


class Told(NamedTuple):
    """Of a session: steps and their seconds, in steps without drafts; tokens, and drafts verified and right."""

    steps: int
    seconds: float
    tokens: int
    drafted: int
    right: int


def replay(turns: list[Turn], most: int, step_seconds: Callable[[int], float]) -> Told:
    """Replay a session's answers, each token as it was recorded."""
    speculation = Speculation(DraftOptions(num_speculative_tokens=most), 64, lambda _, count: count)
    steps = tokens = drafted = right = 0
    seconds = 0.0
    for number, turn in enumerate(turns):
        text, request = turn.prompt + turn.answer, Client(number, turn.prompt, len(turn.answer)).request
        request.tokens.append(turn.answer[0])
        while len(request.tokens) < len(text):
            plan = Plan(Batch(lengths=[1], tokens=request.tokens[-1:], num_decoding=1), [request], [], 1)
            drafts = {row: ahead.tokens for row, ahead in speculation.choose(plan).items()}
            plan.add_drafts(drafts)
            made, coming = drafts.get(0, []), text[len(request.tokens) :]
            num_right = next((at for at, token in enumerate(made) if token != coming[at]), len(made))
            output = StepOutput(coming[:1])
            if num_right:
                output.more[0] = coming[1 : num_right + 1]
            request.tokens += coming[: num_right + 1]
            taken = step_seconds(plan.num_tokens)
            speculation.note(plan, output, taken)
            steps, seconds, tokens = steps + 1, seconds + taken, tokens + num_right + 1
            drafted, right = drafted + len(made), right + num_right
        request.finish_reason = "stop"
        speculation.end(request)
    return Told(steps, seconds, tokens, drafted, right)


def random_turns(count: int) -> list[Turn]:
    """Answers that repeat nothing, for as many prompts."""
    draw = random.Random(5)
    return [Turn("random tokens", *(draw.sample(range(49_000), k=size) for size in (400, 300))) for _ in range(count)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--swarm", type=Path, help="a wheel of agentic-swarm-bench")
    parser.add_argument("--runs", type=Path, nargs="*", default=[], help="runs that `pyagent runs export` wrote")
    parser.add_argument("--turns", type=int, default=40, help="of each session")
    parser.add_argument("--session-tokens", type=int, default=40_000)
    parser.add_argument("--answer-tokens", type=int, default=400)
    parser.add_argument("--most", type=int, default=7, help="drafts in a step")
    parser.add_argument("--slope", type=float, default=0.1)
    parser.add_argument("--steps", help="seconds of steps of 1, 2, 3, ... rows, by those of one row")
    asked = parser.parse_args()
    recorded_sessions.MOST_MESSAGE = asked.session_tokens
    by_rows = [float(seconds) for seconds in asked.steps.split(",")] if asked.steps else []

    def step_seconds(num_rows: int) -> float:
        return by_rows[min(num_rows, len(by_rows)) - 1] if by_rows else 1 + asked.slope * (num_rows - 1)

    path = ModelStore(Path.home() / ".local/share/pyagent/models").locate("smollm2:135m")
    tokenizer = ModelTokenizer.load(path, vocab_size=describe_model(path).vocab_size)
    bounds = tokenizer.encode_text, asked.session_tokens, asked.answer_tokens
    turns = [*(swarm_turns(asked.swarm, *bounds) if asked.swarm else []), *run_turns(asked.runs, *bounds)]
    sessions: dict[str, list[Turn]] = {}
    for turn in [*turns, *random_turns(4)]:
        sessions.setdefault(turn.session, []).append(turn)
    print("| session | answers | tokens | tokens a step | drafts right | of those without |\n|---|---|---|---|---|---|")
    for name, of_session in sessions.items():
        chosen = of_session[: asked.turns]
        told = replay(chosen, asked.most, step_seconds)
        share = f"{told.right / told.drafted:.0%}" if told.drafted else "none made"
        row = f"| {name} | {len(chosen)} | {told.tokens:,} | {told.tokens / told.steps:.2f} | {share} |"
        print(f"{row} {told.tokens / told.seconds:.2f} |", flush=True)


if __name__ == "__main__":
    main()
