"""What lookahead decoding (Fu et al. 2024, arXiv 2402.02057) adds to copies of texts, by SmolLM2's greedy answers.

    .venv/bin/python benchmarks/lookahead.py [--tokens 200] [--most 7] [--slopes 0.05,0.1] [--windows 5x4]

The answers are code and prose that the model writes; the engine's own choice of drafts runs over a machine on which
each row more adds the slope of a step without drafts. The free form: after a refused draft, what the model said behind
it is proposed next, in one's place or where texts propose nothing; and the pairs of a refused draft and what was said
after it are kept in a pool. The full form: windows of W guesses and N - 1 levels are computed in every step, and of the
N-grams that these leave, those that begin with the text's last token are verified, W at most. Its rows are counted; a
row that several of them share is counted once. Nothing depends on what else the machine does.
"""

from __future__ import annotations

import argparse
import random
import sys
from array import array
from collections import Counter, defaultdict, deque
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from pyagent import _rust
from pyagent.core.runners.batch import Batch, StepOutput
from pyagent.infrastructure.engine.drafts.options import DraftOptions
from pyagent.infrastructure.engine.drafts.speculation import Speculation
from pyagent.infrastructure.engine.scheduler.step_plan import Plan
from pyagent.infrastructure.engine.tokens import ModelTokenizer

sys.path.append(str(Path(__file__).parent.parent / "tests"))
from support.counting_runner import Client
from support.models import located

PROMPTS = {
    "code": (
        "def read_table(path):\n    rows = []\n    with open(path) as file:\n        for line in file:\n",
        "class Account:\n    def __init__(self, owner, balance=0):\n        self.owner = owner\n",
        "import json\nimport sys\n\n\ndef main():\n    settings = json.load(open(sys.argv[1]))\n",
    ),
    "prose": (
        "The history of the printing press begins in",
        "Once upon a time there was a fisherman who lived",
        "Photosynthesis is the process by which plants",
    ),
}


class Model:
    """SmolLM2 with one text, and copies of it that go on otherwise."""

    def __init__(self, path: Path) -> None:
        self.model = _rust.CpuModel.load(path, threads=2, kv_bytes=1 << 28)
        info = self.model.info()
        self.pool = _rust.BlockPool(info["num_pages"], groups=info["kv_groups"])

    def best(self, sequence: int, tokens: list[int]) -> list[int]:
        """Return the likeliest token after each of some that a sequence goes on with; the pool learns of them."""
        self.pool.reserve(sequence, self.pool.num_tokens(sequence) + len(tokens))
        self.model.execute(self.pool, [sequence], [len(tokens)], tokens, num_outputs=[len(tokens)])
        logits, size = array("f", self.model.logits()), self.model.info()["vocab_size"]
        rows = (logits[at : at + size] for at in range(0, len(logits), size))
        return [row.index(max(row)) for row in rows]

    def best_after(self, tokens: list[int]) -> list[int]:
        """Return the same for tokens after the text, which stays as it is."""
        self.model.copy_pages(self.pool.fork(1, 2))
        found = self.best(2, tokens)
        self.pool.release(2)
        return found

    def write(self, prompt: list[int], count: int) -> list[int]:
        """Return the greedy answer to a prompt."""
        self.pool.add(1, prompt)
        log = [self.best(1, prompt)[-1]]
        while len(log) < count:
            log += self.best(1, log[-1:])
        self.pool.release(1)
        return log

    def follow(self, prompt: list[int]) -> None:
        """Begin with a prompt again."""
        self.pool.clear_index()
        self.pool.add(1, prompt)
        self.best(1, prompt)


def num_right(drafts: Sequence[int], coming: Sequence[int]) -> int:
    """Return how many drafts are what comes, up to the first that is not."""
    pairs = enumerate(zip(drafts, coming, strict=False))
    return next((at for at, (one, other) in pairs if one != other), min(len(drafts), len(coming)))


def replay(model: Model, prompt: list[int], answer: list[int], most: int, slope: float) -> Counter[str]:
    """Replay an answer with the engine's drafts; count what they give, and what the free form would give besides."""
    told = Counter[str]()
    speculation = Speculation(DraftOptions(num_speculative_tokens=most), 64, lambda _, count: count)
    request, text = Client(0, prompt, len(answer)).request, prompt + answer
    request.tokens.append(answer[0])
    model.follow(prompt)
    pool: dict[int, list[int]] = {}
    guessed: list[int] = []  # what the model said behind the last refused draft
    while len(request.tokens) < len(text):
        plan = Plan(Batch(lengths=[1], tokens=request.tokens[-1:], num_decoding=1), [request], [], 1)
        drafts = {row: ahead.tokens for row, ahead in speculation.choose(plan).items()}
        plan.add_drafts(drafts)
        made, coming = drafts.get(0, []), text[len(request.tokens) :]
        right = num_right(made, coming)
        told["guesses"] += bool(guessed)
        told["guesses right"] += bool(num_right(guessed, coming))
        told["tokens of guesses"] += max(0, num_right(guessed, coming) - right)
        if not made:
            pooled: list[int] = []
            while len(pooled) < most and (more := pool.get([*request.tokens[-1:], *pooled][-1])):
                pooled += more[-1:]
            told["pooled"] += bool(pooled)
            told["tokens of the pool"] += num_right(pooled, coming)
        said = model.best_after([request.tokens[-1], *made]) if right < len(made) else []
        guessed = said[right + 1 :]
        for before, after in zip(made[right:], guessed, strict=False):
            pool.setdefault(before, []).append(after)
        output = StepOutput(coming[:1])
        if right:
            output.more[0] = coming[1 : right + 1]
        model.best(1, text[len(request.tokens) - 1 : len(request.tokens) + right])
        request.tokens += coming[: right + 1]
        speculation.note(plan, output, 1 + slope * (plan.num_tokens - 1))
        told.update(steps=1, tokens=right + 1, rows=plan.num_tokens)
    model.pool.release(1)
    return told


class Window(NamedTuple):
    """Of the full form: so many guesses, and tokens of an n-gram."""

    guesses: int
    size: int


def look_ahead(model: Model, prompt: list[int], answer: list[int], window: Window) -> Counter[str]:
    """Replay an answer with the full form alone; count tokens, and rows."""
    told, draw, text = Counter[str](), random.Random(1), prompt + answer
    model.follow(prompt)
    levels = [[draw.choice(prompt) for _ in range(window.guesses)] for _ in range(window.size - 1)]
    ngrams: dict[int, deque[tuple[int, ...]]] = defaultdict(lambda: deque(maxlen=window.guesses))
    place = len(prompt) + 1
    while place < len(text):
        candidates = ngrams[text[place - 1]]
        right = max((num_right(one, text[place:]) for one in candidates), default=0)
        prefixes = {one[:length] for one in candidates for length in range(1, window.size)}
        new: list[int] = []
        for column in range(window.guesses):
            down = [level[column] for level in levels]
            new.append(model.best_after([text[place - 1], *levels[0][: column + 1], *down[1:]])[-1])
            if (ngram := (*down[1:], new[-1])) not in ngrams[down[0]]:
                ngrams[down[0]].append(ngram)
        levels = [[*levels[1][1:], draw.choice(prompt)], *levels[2:], new] if len(levels) > 1 else [new]
        told.update(steps=1, tokens=right + 1, rows=1 + window.guesses * (window.size - 1) + len(prefixes))
        model.best(1, text[place - 1 : place + right])
        place += right + 1
    model.pool.release(1)
    return told


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=200, help="of an answer")
    parser.add_argument("--most", type=int, default=7, help="drafts in a step")
    parser.add_argument("--slopes", default="0.05,0.1")
    parser.add_argument("--windows", default="5x4", help="guesses x tokens of an n-gram")
    asked = parser.parse_args()
    path = located("smollm2:135m")
    model = Model(path)
    tokenizer = ModelTokenizer.load(path, vocab_size=model.model.info()["vocab_size"])
    for kind, prompts in PROMPTS.items():
        texts = [(prompt := tokenizer.encode_text(text), model.write(prompt, asked.tokens)) for text in prompts]
        for slope in map(float, asked.slopes.split(",")):
            told = sum((replay(model, *text, asked.most, slope) for text in texts), Counter[str]())
            print(
                f"{kind}, a row more {slope}: {told['tokens'] / told['steps']:.3f} tokens a step, {dict(told)}",
                flush=True,
            )
        for sizes in asked.windows.split(","):
            window = Window(*map(int, sizes.split("x")))
            told = sum((look_ahead(model, *text, window) for text in texts), Counter[str]())
            a_step = f"{told['tokens'] / told['steps']:.3f} tokens and {told['rows'] / told['steps']:.1f} rows a step"
            print(f"{kind}, windows of {sizes}: {a_step}", flush=True)


if __name__ == "__main__":
    main()
