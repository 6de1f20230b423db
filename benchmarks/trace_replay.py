"""Recorded agents with and without the fleet's hints: how much of their prompts comes from the cache.

    .venv/bin/python benchmarks/trace_replay.py --traces FOLDER [--scale 16] [--copies 2] [--turns 25] [--spare 0.15]

FOLDER holds the recorded sessions in Claude's format of the package `agentic-swarm-bench` (its `scenarios/data`; fetch
it with `pip download --no-deps agentic-swarm-bench` and unzip it). Each message is shortened to one part in `--scale`,
so that prompts of 30,000 to 100,000 tokens fit a small model's context; who says what in which order stays. Several
copies of each session run side by side, each with its own first words after the common system prompt, and take turns
as if each waited for its tool while the others work. Between the turns come documents nobody asks for again.

The KV memory is what the agents' last prompts need, and `--spare` of that. The same replay runs twice: with hints
(an agent that waits is retained, a document that is read is demoted) and without (least recently used goes first).
Shown is the share of the agents' prompt tokens that came from the cache, beside what could: what prompts have in common
with earlier ones, the first and the last of each agent. Everything is computed: it takes minutes.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from quiet import machine

from pyagent.assembly import make_chain, make_host
from pyagent.core.backends import collect
from pyagent.core.chain import Chain
from pyagent.core.messages import ChatRequest, Hint, Message, SamplingParams, Usage
from pyagent.core.settings import Engine, Settings
from pyagent.infrastructure.engine.memory.process import resident_bytes
from pyagent.infrastructure.engine.models.memory_estimate import Estimates
from pyagent.infrastructure.engine.plugin import options_of
from pyagent.infrastructure.engine.sessions.prompt_normalization import settle, with_moved
from pyagent.infrastructure.engine.tokens.tokenizer import ModelTokenizer
from pyagent.infrastructure.models.describe import describe_model
from pyagent.infrastructure.models.store import ModelStore

ANSWER = SamplingParams(max_tokens=4, temperature=0.0, ignore_eos=True)
DOCUMENT_TOKENS = 1500


@dataclass(frozen=True)
class Agent:
    """A recorded session: the messages of each of its requests."""

    name: str
    requests: Sequence[list[Message]]


def shortened(message: dict[str, object], scale: int) -> Message:
    """A recorded message in one part of its length; what tools say comes as a user's words."""
    role = message["role"]
    content = message.get("content")
    text = content if isinstance(content, str) else json.dumps(content or message.get("tool_calls") or "")
    kept = text[: max(8, len(text) // scale)]
    return Message("assistant" if role == "assistant" else "system" if role == "system" else "user", kept)


def read_agent(path: Path, copy: int, scale: int, turns: int) -> Agent:
    """One copy of a recorded session."""
    name = f"{path.stem}-{copy}"
    requests: list[list[Message]] = []
    for line in path.read_text().splitlines():
        recorded = json.loads(line)["messages"]
        if len(recorded) > 2 and recorded[0]["role"] == "system":
            messages = [shortened(message, scale) for message in recorded]
            messages[1] = Message(messages[1].role, f"Task {name}. {messages[1].text}")
            requests.append(messages)
    return Agent(name, requests[:turns])


def documents(seed: int) -> Iterator[list[Message]]:
    """Texts to read once."""
    draw = random.Random(seed)
    letters = "abcdefghijklmnopqrstuvwxyz"
    while True:
        words = ("".join(draw.choices(letters, k=draw.randint(2, 8))) for _ in range(DOCUMENT_TOKENS // 3))
        yield [Message("user", "Sum up: " + " ".join(words))]


async def ask(chain: Chain, messages: list[Message], session: str) -> Usage:
    """A short answer's usage."""
    answer = await collect(chain.chat(ChatRequest(messages=messages, session=session, sampling=ANSWER)))
    return answer.usage


async def replay(settings: Settings, agents: Sequence[Agent], *, is_hinted: bool) -> tuple[float, float]:
    """The share of the agents' prompt tokens that came from the cache, and the seconds it took."""
    chain = make_chain(settings, make_host(settings))
    texts, start = documents(1), time.perf_counter()
    num_prompt = num_cached = num_documents = 0
    try:
        for turn in range(max(len(agent.requests) for agent in agents)):
            for agent in agents:
                if turn >= len(agent.requests):
                    continue
                usage = await ask(chain, agent.requests[turn], agent.name)
                num_prompt += usage.prompt_tokens
                num_cached += usage.prompt_tokens_details.cached_tokens
                if is_hinted:
                    is_done = turn + 1 == len(agent.requests)
                    chain.hint(Hint(kind="demote" if is_done else "retain", session=agent.name))
                num_documents += 1
                await ask(chain, next(texts), f"document-{num_documents}")
                if is_hinted:
                    chain.hint(Hint(kind="demote", session=f"document-{num_documents}"))
    finally:
        await chain.close()
    return num_cached / num_prompt, time.perf_counter() - start


async def last_prompts(settings: Settings, agents: Sequence[Agent]) -> int:
    """Tokens of the agents' longest prompts in all."""
    chain = make_chain(settings, make_host(settings))
    try:
        longest = [max(agent.requests, key=lambda messages: sum(len(m.text) for m in messages)) for agent in agents]
        return sum([(await ask(chain, messages, "")).prompt_tokens for messages in longest])
    finally:
        await chain.close()


def common(left: Sequence[int], right: Sequence[int]) -> int:
    """Tokens that both begin with."""
    pairs = enumerate(zip(left, right, strict=False))
    return next((number for number, (a, b) in pairs if a != b), min(len(left), len(right)))


def most_share(model: str, agents: Sequence[Agent]) -> float:
    """The share that would come from a cache that forgets nothing, but for answers."""
    tokenizer = ModelTokenizer.load(ModelStore(Settings().paths.models).locate(model), vocab_size=1 << 30)
    firsts, lasts = dict[str, list[int]](), dict[str, list[int]]()
    num_prompt = num_cached = 0
    for turn in range(max(len(agent.requests) for agent in agents)):
        for agent in agents:
            if turn < len(agent.requests):
                tokens = tokenizer.encode_rendered(tokenizer.render_chat(with_moved(settle(agent.requests[turn]))))
                num_prompt += len(tokens)
                earlier = [*firsts.values(), *lasts.values()]
                num_cached += max((common(tokens, other) for other in earlier), default=0)
                firsts.setdefault(agent.name, tokens)
                lasts[agent.name] = tokens
    return num_cached / num_prompt


def settings_for(model: str, kv_tokens: int | None = None, *, is_hinted: bool = False) -> Settings:
    """Settings whose memory holds the process, the model and the keys and values of so many tokens."""
    memory = None
    if kv_tokens is not None:
        settings = Settings(engine=Engine(models=[model]))
        path = ModelStore(settings.paths.models).locate(model)
        about, options = describe_model(path), options_of(settings, make_host(settings))
        most = Estimates.of(options.runner_for(path)[1], options, 1 << 40)
        memory = (
            resident_bytes() + most.weights + most.tokenizer + most.workspace + kv_tokens * about.kv_bytes_per_token
        )
    return Settings(chain=[f"native:{model}"], engine=Engine(models=[model], memory=memory, hints=is_hinted))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--traces", type=Path, required=True, help="the folder of recorded sessions (*.jsonl)")
    parser.add_argument("--model", default="smollm2:135m")
    parser.add_argument("--scale", type=int, default=16)
    parser.add_argument("--copies", type=int, default=2)
    parser.add_argument("--turns", type=int, default=25)
    parser.add_argument("--spare", type=float, default=0.15)
    arguments = parser.parse_args()
    paths = sorted(arguments.traces.rglob("*claude*/*.jsonl"))
    if not paths:
        raise SystemExit(f"no recorded sessions under {arguments.traces}")
    scale, turns = arguments.scale, arguments.turns
    agents = [read_agent(path, copy, scale, turns) for path in paths for copy in range(arguments.copies)]
    num_tokens = asyncio.run(last_prompts(settings_for(arguments.model), agents))
    kv_tokens = int(num_tokens * (1 + arguments.spare))
    num_requests = sum(len(agent.requests) for agent in agents)
    print(f"{len(agents)} agents, {num_requests} requests, KV memory for {kv_tokens} tokens; {machine()}")
    print("| | prompt tokens from the cache | seconds |\n|---|---|---|")
    print(f"| at most | {most_share(arguments.model, agents):.1%} | |", flush=True)
    for name, is_hinted in (("without hints", False), ("with hints", True)):
        settings = settings_for(arguments.model, kv_tokens, is_hinted=is_hinted)
        share, seconds = asyncio.run(replay(settings, agents, is_hinted=is_hinted))
        print(f"| {name} | {share:.1%} | {seconds:.0f} |", flush=True)


if __name__ == "__main__":
    main()
