"""Structured output: compiling the schemas of bfcl-eval, the masks of a step, and decoding held to a schema.

Schemas are compiled and walked at random with llguidance and, where it is installed, xgrammar, over SmolLM2's 49,152
tokens followed by pairs of them up to 131,072. Their figures are processor time, of all threads for compiling, so that
other work on the machine adds little; xgrammar takes hundreds of times as long to compile: take few cases with it.
Sixteen answers are then decoded in turns, free and held to each of two schemas, with as many tokens each, by PyAgent's
server and by llama.cpp's beside it. The schemas are a list of records, as applications ask for, and a list of texts of
5 to 40 letters, where a mask has to look at the length of each token.

Run: `python benchmarks/structured_output.py --bfcl FOLDER`, the folder of the installed package `bfcl_eval`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
from bfcl_cases import Leaderboard
from peers import NUM_THREADS, Server, llama_cpp_server, pyagent_server
from tool_templates import template_of

from pyagent import load_settings
from pyagent.core.errors import RequestError
from pyagent.core.grammars import GrammarBackendFactory, GrammarSource, mask_bytes
from pyagent.infrastructure.engine.grammar.guidance import GUIDANCE
from pyagent.infrastructure.engine.grammar.xgrammar import XGRAMMAR
from pyagent.infrastructure.engine.tokens import ModelTokenizer
from pyagent.infrastructure.models.store import ModelStore

ROOT = Path(__file__).parents[1]
VOCAB_SIZE, MODEL_VOCAB = 131_072, 49_152
MAX_TOKENS = 60
FRUIT = {
    "name": {"type": "string"},
    "colour": {"enum": ["red", "green", "yellow", "brown"]},
    "price": {"type": "number"},
    "in_season": {"type": "boolean"},
}
RECORD = {"type": "object", "properties": FRUIT, "required": list(FRUIT), "additionalProperties": False}
SCHEMAS = {
    "records": {"type": "array", "items": RECORD, "minItems": 40},
    "bounded texts": {"type": "array", "items": {"type": "string", "minLength": 5, "maxLength": 40}, "minItems": 40},
}


class LargeVocabulary:
    """A model's vocabulary, followed by pairs of its tokens."""

    size = VOCAB_SIZE

    def __init__(self, tokenizer: ModelTokenizer) -> None:
        self._tokenizer = tokenizer
        self.end_ids, self.control_ids = tokenizer.end_ids, frozenset(tokenizer.control_ids())
        own, draw = tokenizer.vocabulary(), random.Random(1)
        words = [token for token in own if token.isascii() and 2 <= len(token) <= 6]
        pairs = {draw.choice(words) + draw.choice(words) for _ in range(2 * VOCAB_SIZE)} - set(own)
        self._tokens = [*own, *sorted(pairs)][:VOCAB_SIZE]

    def tokens(self) -> list[bytes]:
        return self._tokens

    def encode(self, text: str) -> list[int]:
        return self._tokenizer.encode_further(text)


def walked(factory: GrammarBackendFactory, vocabulary: LargeVocabulary, schemas: Sequence[dict[str, Any]]) -> str:
    """Compile each schema, and walk through it at random; return a row of the table."""
    backend = factory.open(vocabulary)
    row = bytearray(mask_bytes(VOCAB_SIZE))
    compiled, masks, refused = list[float](), list[float](), 0
    for number, schema in enumerate(schemas):
        draw, start = random.Random(number), time.process_time()
        try:
            matcher = backend.compile(GrammarSource("json_schema", json.dumps(schema)))
        except RequestError:
            refused += 1
            continue
        compiled.append(time.process_time() - start)
        for _ in range(MAX_TOKENS):
            if matcher.is_finished:
                break
            start = time.thread_time()
            backend.fill_masks([(matcher, 0)], memoryview(row))
            masks.append(time.thread_time() - start)
            token = _drawn(row, draw)
            if token in vocabulary.end_ids:
                break
            matcher.accept(token)
    figures = [statistics.median(compiled) * 1e3, _p99(compiled) * 1e3]
    figures += [statistics.mean(masks) * 1e6, statistics.median(masks) * 1e6, _p99(masks) * 1e6]
    cells = " | ".join(f"{value:.2f}" if value < 10 else f"{value:.0f}" for value in figures)
    return f"| {factory.name} | {len(compiled)} of {len(schemas)} | {cells} | {len(masks)} |"


def _drawn(row: bytearray, draw: random.Random) -> int:
    """A random token of those that a mask allows."""
    while True:
        for _ in range(2000):
            token = draw.randrange(VOCAB_SIZE)
            if row[token // 8] >> token % 8 & 1:
                return token
        bits = int.from_bytes(row, "little")
        places = [token for token in range(VOCAB_SIZE) if bits >> token & 1] if bits.bit_count() < 2000 else []
        if places:
            return draw.choice(places)


def _p99(values: Sequence[float]) -> float:
    return sorted(values)[len(values) * 99 // 100]


async def rate(server: Server, turn: int, num_sequences: int, num_tokens: int, held_to: str) -> float:
    """Tokens per second of answers asked for at once, each with all its tokens; free where `held_to` is empty."""
    body: dict[str, Any] = {"max_tokens": num_tokens, "temperature": 0.8, "seed": turn, "ignore_eos": True}
    if held_to:
        body["response_format"] = {"type": "json_schema", "json_schema": {"name": "list", "schema": SCHEMAS[held_to]}}
    asked = [[{"role": "user", "content": f"List {n + 2} kinds of fruit as JSON."}] for n in range(num_sequences)]
    async with httpx.AsyncClient(base_url=server.url, timeout=600, trust_env=False) as client:
        start = time.perf_counter()
        calls = [client.post("/v1/chat/completions", json=body | {"messages": messages}) for messages in asked]
        answers = [answer.raise_for_status().json() for answer in await asyncio.gather(*calls)]
        seconds = time.perf_counter() - start
    return sum(answer["usage"]["completion_tokens"] for answer in answers) / seconds


def decode(servers: dict[str, Server], num_sequences: int, num_tokens: int, repeats: int) -> None:
    """Print each server's tokens per second of answers at once, free and held to each schema, in turns."""
    rates: dict[tuple[str, str], list[float]] = defaultdict(list)
    for turn in range(repeats + 1):
        for name, server in servers.items():
            for held_to in ("", *SCHEMAS):
                found = asyncio.run(rate(server, turn, num_sequences, num_tokens, held_to))
                if turn:  # the first ones load libraries, and compile
                    rates[name, held_to].append(found)
    for name in servers:
        free = rates[name, ""]
        print(f"\n{name}, {num_sequences} answers of {num_tokens} tokens over HTTP, tokens/s: free {_told(free)}")
        for held_to in SCHEMAS:
            held = rates[name, held_to]
            ratio = statistics.median(one / other for one, other in zip(held, free, strict=True))
            print(f"  held to {held_to}: {_told(held)}; ratio {ratio:.2f} (median of {repeats} turns)")


def decoding(chosen: argparse.Namespace, model: Path) -> None:
    """Decode with PyAgent, and with llama.cpp where its wheel is."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        servers = {"pyagent": stack.enter_context(pyagent_server(model, context=1024))}
        if chosen.peer.exists():
            (folder / "template.jinja").write_text(template_of(model) or "")
            slots, threads = chosen.sequences, NUM_THREADS
            peer = llama_cpp_server(
                chosen.peer, model, folder / "template.jinja", context=1024, slots=slots, threads=threads
            )
            servers["llama.cpp"] = stack.enter_context(peer)
        else:
            print(f"llama.cpp is left out: {chosen.peer} is not there")
        decode(servers, chosen.sequences, chosen.tokens, chosen.repeats)


def _told(values: list[float]) -> str:
    return f"{statistics.median(values):.0f} [{min(values):.0f}-{max(values):.0f}]"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bfcl", type=Path, required=True)
    parser.add_argument("--cases", type=int, default=60, help="of each category")
    parser.add_argument("--sequences", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=5, help="turns of decoding; 0 leaves it out")
    parser.add_argument("--peer", type=Path, default=ROOT / ".peers/bin/python", help="a Python with xllamacpp")
    chosen = parser.parse_args()
    cases = Leaderboard(chosen.bfcl).cases(chosen.cases)
    found = {json.dumps(schema): schema for case in cases for schema in case.schemas().values()}
    path = ModelStore(load_settings().settings.paths.models).locate("smollm2:135m")
    vocabulary = LargeVocabulary(ModelTokenizer.load(path, vocab_size=MODEL_VOCAB))
    print("| backend | schemas | compile p50, ms | p99, ms | mask mean, us | p50, us | p99, us | masks |")
    print("|---|---|---|---|---|---|---|---|")
    for factory in (GUIDANCE, XGRAMMAR):
        if factory.unavailable_reason() is None:
            print(walked(factory, vocabulary, list(found.values())), flush=True)
    if chosen.repeats:
        decoding(chosen, path)


if __name__ == "__main__":
    main()
