"""Speculative decoding beside going without: recorded answers replayed, in turns; tokens a second of decoding.

    .venv/bin/python benchmarks/drafts.py [--model FILE] [--draft MODEL] [--threads 2] [--rounds 3] [--batch 1]
                                          [--files 4] [--only KIND ...] [--swarm WHEEL] [--runs FILE ...]

The texts are this repository's own history: the prompt has a file as it was before a commit, the answer is the file
after it (`edit`), the commit's diff (`diff`), or, after the diff, a report that quotes it (`report`). `prose` is a page
of the documentation without anything to copy from but itself, `noise` is random tokens, which repeat nothing. Whatever
the model, the recorded answer is sampled: each row has a mask that allows its token alone, with drafts and without. So
the lengths accepted are those of real texts, and what a step takes is that of the model's shape. Engines take turns,
request by request, and of each request the quickest round counts: what others do on the machine only adds.

`--swarm` replays the sessions of a wheel of `agentic-swarm-bench`, and `--runs` those that `pyagent runs export` wrote
(`recorded_sessions.py`), `--turns` of each kind at most. Texts are in SmolLM2's tokens. A model of random weights
(`random_shapes.py`) may have fewer: they are then numbered anew, which repeats what they repeat.

With `--draft`, a third engine has that draft model too. Texts are then in the draft model's tokens, which it drafts as
it does for any target; the model may be of random weights (`random_model.py`), with as many tokens or more. How often
such drafts are right is how well the draft model foretells what people wrote, which is less than what a larger model of
its family writes: the ratios are a lower bound.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import random
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from recorded_sessions import Turn, run_turns, swarm_turns

from pyagent.core.backends import collect
from pyagent.core.messages import ChatRequest, Origin, SamplingParams
from pyagent.core.runners.batch import Batch, StepOutput
from pyagent.core.runners.factory import KvReservation, LargestStep, RunnerOptions
from pyagent.infrastructure.engine.backend import NativeBackend
from pyagent.infrastructure.engine.client import LocalEngine
from pyagent.infrastructure.engine.drafts.options import DraftOptions
from pyagent.infrastructure.engine.memory.ledger import Ledger
from pyagent.infrastructure.engine.memory.system import total_for
from pyagent.infrastructure.engine.models import draft_loading
from pyagent.infrastructure.engine.models.model_pool import ModelPool
from pyagent.infrastructure.engine.options import EngineOptions, SchedulerLimits
from pyagent.infrastructure.engine.runners.choice import RunnerChoice
from pyagent.infrastructure.engine.runners.cpu import CpuRunner
from pyagent.infrastructure.engine.runners.cpu_factory import CpuRunnerFactory
from pyagent.infrastructure.engine.tokens import ModelTokenizer
from pyagent.infrastructure.models.describe import describe_model
from pyagent.infrastructure.models.store import ModelStore

REPOSITORY = Path(__file__).parent.parent
MOST_PROMPT, MOST_ANSWER = 1_600, 400
"""Tokens."""


@dataclass(frozen=True)
class Recorded:
    """A prompt and the answer that was given, as tokens."""

    kind: str
    prompt: list[int]
    answer: list[int]


class Replay(CpuRunner):
    """Samples the recorded answers, whatever the model says."""

    answers: dict[tuple[int, ...], list[int]]

    def execute(self, batch: Batch) -> StepOutput:
        row_bytes = -(-self.vocab_size // 32) * 4
        for row, sequence in enumerate(batch.sequence_ids[: len(batch.samplers)]):
            answer = self._answers[sequence]
            masks = bytearray(row_bytes * (1 + batch.num_drafts.get(row, 0)))
            for place in range(1 + batch.num_drafts.get(row, 0)):
                token = answer[min(batch.steps[row] + place, len(answer) - 1)]
                masks[row_bytes * place + token // 8] |= 1 << token % 8
            batch.masks[row] = bytes(masks)
        return super().execute(batch)

    def add(self, sequence_id: int, tokens: list[int], *args: object, **named: object) -> int:
        known = self.__dict__.setdefault("_answers", {})
        if sequence_id not in known:
            known[sequence_id] = self.answers[tuple(tokens)]
        return super().add(sequence_id, tokens, *args, **named)  # type: ignore[arg-type]


class ReplayFactory(CpuRunnerFactory):
    """Makes them, and a draft model as it is."""

    def __init__(self, target: Path) -> None:
        self._target = target

    def load(self, path: Path, options: RunnerOptions, step: LargestStep, kv: KvReservation | None) -> CpuRunner:
        return (Replay if path == self._target else CpuRunner)(path, options, kv)


def backend_of(target: Path, draft: Path | None, drafts: DraftOptions | None, threads: int) -> NativeBackend:
    """An engine that replays, with or without drafts."""
    options = EngineOptions(
        RunnerOptions(threads=threads, kv_bytes=1 << 30),
        SchedulerLimits(max_num_batched_tokens=512),
        runners=RunnerChoice((ReplayFactory(target),)),
        drafts=drafts,
    )
    pool = ModelPool({"replay": target, "draft": draft or target}.__getitem__, options, Ledger(total_for(None)))
    return NativeBackend(["replay"], LocalEngine(pool), look=lambda _: "")


def git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout


def edits(num_files: int) -> Iterator[tuple[str, str, str, str]]:
    """Subject, file before, file after and diff of commits that change a Python file of middling size a little."""
    for commit in git("log", "--format=%H", "-n", "400", "--no-merges").split():
        for line in git("show", "--numstat", "--format=", commit).splitlines():
            added, removed, path = line.split("\t")
            if not path.endswith(".py") or not added.isdigit() or not 2 <= int(added) <= 30 or int(removed) == 0:
                continue
            before, after = git("show", f"{commit}^:{path}"), git("show", f"{commit}:{path}")
            if 1_500 <= len(after) <= 4_500:
                diff = git("show", "--format=", commit, "--", path)
                yield git("log", "-1", "--format=%s", commit).strip(), before, after, diff
                num_files -= 1
                break
        if not num_files:
            return


def recorded(tokens: Callable[[str], list[int]], vocab_size: int, num_files: int) -> list[Recorded]:
    """The sessions."""
    found: list[Recorded] = []

    def add(kind: str, prompt: list[int], answer: list[int]) -> None:
        found.append(Recorded(kind, prompt[-MOST_PROMPT:], answer[:MOST_ANSWER]))

    for subject, before, after, diff in edits(num_files):
        task = f"{before}\n\n{subject}. Write "
        add("edit", tokens(task + "the whole file.\n\n"), tokens(after))
        add("diff", tokens(task + "a diff.\n\n"), tokens(diff))
        lines = [line[1:] for line in diff.splitlines() if line[:1] in {"+", "-"} and len(line) > 30]
        told = "".join(f"- `{line.strip()}` is in the change.\n" for line in lines)
        add("report", tokens(f"$ git show\n{diff}\n\nReport what changed.\n\n"), tokens(f"{subject}:\n{told}"))
    pages = sorted((REPOSITORY / "docs" / "explanation").glob("*.md"), key=lambda page: page.stat().st_size)
    for page in pages[-num_files:]:
        text = page.read_text()
        add("prose", tokens("Explain.\n\n" + text[:600]), tokens(text[1_500:4_500]))
    draw = random.Random(5)
    for _ in range(num_files):
        add("noise", *(draw.choices(range(1_000, vocab_size), k=count) for count in (400, 300)))
    return found


def replayed(asked: argparse.Namespace, tokens: Callable[[str], list[int]]) -> Iterator[Recorded]:
    """The sessions of agents that were asked for."""
    bounds = tokens, asked.session_tokens, asked.answer_tokens
    kinds = {
        "swarm": [*swarm_turns(asked.swarm, *bounds)] if asked.swarm else [],
        "runs": run_turns(asked.runs, *bounds),
    }
    for kind, turns in kinds.items():
        of_session: dict[str, list[Turn]] = {}
        for turn in turns:
            of_session.setdefault(turn.session, []).append(turn)
        share = max(1, asked.turns // max(1, len(of_session)))
        for turn in chain.from_iterable(of_one[:share] for of_one in of_session.values()):
            yield Recorded(f"{kind} {turn.session}" if asked.apart else kind, turn.prompt, turn.answer)


def renumbered(sessions: list[Recorded]) -> list[Recorded]:
    """The same with other numbers for their tokens, from 1,000 on."""
    numbers: dict[int, int] = {}

    def anew(tokens: list[int]) -> list[int]:
        return [numbers.setdefault(token, 1_000 + len(numbers)) for token in tokens]

    return [Recorded(one.kind, anew(one.prompt), anew(one.answer)) for one in sessions]


async def seconds_of(backend: NativeBackend, batch: list[Recorded], tag: str) -> tuple[float, int, int, int]:
    """Seconds of decoding a batch, its tokens, the drafts verified and those accepted."""
    requests = [
        ChatRequest(
            prompt_token_ids=tuple(one.prompt),
            sampling=SamplingParams(temperature=0, max_tokens=len(one.answer), ignore_eos=True),
            origin=Origin(tenant=tag),
        )
        for one in batch
    ]
    answers = await asyncio.gather(*(collect(backend.chat(request)) for request in requests))
    usages = [answer.usage for answer in answers if answer.usage is not None and answer.usage.timings is not None]
    spent = max(usage.timings.inter_token_seconds * (usage.completion_tokens - 1) for usage in usages)  # type: ignore[union-attr]
    num_accepted = sum(usage.accepted_prediction_tokens for usage in usages)
    num_drafted = num_accepted + sum(usage.rejected_prediction_tokens for usage in usages)
    return spent, sum(usage.completion_tokens for usage in usages), num_drafted, num_accepted


async def measure(engines: dict[str, NativeBackend], of_kind: list[Recorded], size: int, rounds: int) -> None:
    """Replay texts of one kind on all engines in turns, and print a row for each."""
    batches = [of_kind[at : at + size] for at in range(0, len(of_kind), size)]
    least = {name: [math.inf] * len(batches) for name in engines}
    drafted, accepted, num_tokens = (dict.fromkeys(engines, 0) for _ in range(3))
    for turn in range(rounds):
        for at, batch in enumerate(batches):
            for name in sorted(engines, reverse=turn % 2 == 0):
                tag = f"{of_kind[0].kind} {turn} {at}"  # a tenant of its own: no earlier answer is copied
                seconds, count, num_drafted, num_accepted = await seconds_of(engines[name], batch, tag)
                least[name][at] = min(least[name][at], seconds)
                drafted[name] += num_drafted
                accepted[name] += num_accepted
                num_tokens[name] += count
    count, before = sum(len(one.answer) for one in of_kind), sum(least["without"])
    for name, seconds in least.items():
        steps = num_tokens[name] - accepted[name]
        share = f"{accepted[name] / drafted[name]:.0%} of {drafted[name] // rounds}" if drafted[name] else "none"
        print(
            f"| {of_kind[0].kind} | {name} | {count / sum(seconds):.1f} | {before / sum(seconds):.2f} | {share} "
            f"| {num_tokens[name] / max(1, steps):.2f} |",
            flush=True,
        )


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--draft", help="a model's name or file")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--files", type=int, default=4)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--only", nargs="*", help="kinds of texts, or how they begin")
    parser.add_argument("--tokens", default="smollm2:135m", help="a model in whose tokens the texts are")
    parser.add_argument("--swarm", type=Path, help="a wheel of agentic-swarm-bench")
    parser.add_argument("--runs", type=Path, nargs="*", default=[], help="runs that `pyagent runs export` wrote")
    parser.add_argument("--turns", type=int, default=24, help="of a kind of sessions")
    parser.add_argument("--session-tokens", type=int, default=4_000)
    parser.add_argument("--answer-tokens", type=int, default=200)
    parser.add_argument("--apart", action="store_true", help="a row for each session")
    asked = parser.parse_args()
    store = ModelStore(Path.home() / ".local/share/pyagent/models")
    path = asked.model or store.locate("smollm2:135m")
    draft = None if asked.draft is None else store.locate(asked.draft)
    engines = {
        "without": backend_of(path, None, None, asked.threads),
        "copied": backend_of(path, None, DraftOptions(), asked.threads),
    }
    if draft is not None:
        draft_loading.check_vocabulary = lambda *_: None  # the target's matter is only its shape
        by_model = DraftOptions(method="draft_model", models={"": "draft"})
        engines["draft model"] = backend_of(path, draft, by_model, asked.threads)
    model = await engines["copied"].load()
    speaks = draft or store.locate(asked.tokens)
    tokenizer = ModelTokenizer.load(speaks, vocab_size=describe_model(speaks).vocab_size)
    sessions = recorded(tokenizer.encode_text, tokenizer.vocab_size, asked.files)
    sessions += replayed(asked, tokenizer.encode_text)
    if tokenizer.vocab_size > model.tokenizer.vocab_size:
        sessions = renumbered(sessions)
    Replay.answers = {tuple(one.prompt): one.answer for one in sessions}
    print(f"{path.name}, {asked.threads} threads, batches of {asked.batch}, draft model {asked.draft}")
    print("| text | drafts | tok/s | of those without | accepted of drafts | tokens a step |\n|" + "---|" * 6)
    kinds = dict.fromkeys(one.kind for one in sessions)
    for kind in [kind for kind in kinds if not asked.only or kind.startswith(tuple(asked.only))]:
        await measure(engines, [one for one in sessions if one.kind == kind], asked.batch, asked.rounds)
    for engine in engines.values():
        await engine.close()


if __name__ == "__main__":
    asyncio.run(main())
