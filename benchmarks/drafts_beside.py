"""Drafts copied from text beside llama.cpp's, on one model and the same prompts; tokens a second of decoding.

    PEERS_HOME=... .venv/bin/python benchmarks/drafts_beside.py [--model FILE] [--files 4] [--tokens 200]

Prompts have a file of this repository and ask for it after an edit. Both servers answer greedily, each as the model
goes on by itself, so texts differ by roundings; what a server gains is its ratio to itself without drafts. Each prompt
is read before its answer is timed. Ours copies from the request's own text alone, as llama.cpp's ways do.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from drafts import edits
from peers import LlamaCpp, Server, pyagent_server
from quiet import machine

from pyagent.infrastructure.models.store import ModelStore

CONTEXT = 4096
WAYS = ("ngram-simple", "ngram-map-k", "ngram-mod")
"""Of llama.cpp, with its own settings."""


def seconds_of(start: Callable[[], Server], prompts: list[str], num_tokens: int) -> float:
    """What a server's answers take, the prompts left out."""
    with start() as server:
        server.complete("Once", 16)
        spent = 0.0
        for prompt in prompts:
            server.complete(prompt, 1)
            spent += server.complete(prompt, num_tokens)
        return spent


def ours(model: Path, method: str) -> Callable[[], Server]:
    settings = {"PYAGENT_ENGINE__SPECULATIVE__METHOD": method}
    return lambda: pyagent_server(model, context=CONTEXT, settings=settings)


def theirs(peer: LlamaCpp, model: Path, way: str) -> Callable[[], Server]:
    return lambda: peer.server(model, context=CONTEXT, slots=1, flash=True, more=("--spec-type", way))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--files", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=200)
    asked = parser.parse_args()
    model = asked.model or ModelStore(Path.home() / ".local/share/pyagent/models").locate("smollm2:135m")
    tasks = edits(asked.files)
    prompts = [f"{before}\n\n# {subject}. The whole file again:\n\n" for subject, before, _, _ in tasks]
    servers = {"PyAgent": [(method, ours(model, method)) for method in ("off", "ngram")]}
    if (peer := LlamaCpp.found()) is not None:
        servers["llama.cpp"] = [(way, theirs(peer, model, way)) for way in ("none", *WAYS)]
    print(f"{model.name}, {len(prompts)} answers of {asked.tokens} tokens; {machine()}")
    print("| server | drafts | tok/s | of those without |\n|---|---|---|---|")
    for name, ways in servers.items():
        plain = 0.0
        for way, start in ways:
            seconds = seconds_of(start, prompts, asked.tokens)
            plain = plain or seconds
            rate = len(prompts) * asked.tokens / seconds
            print(f"| {name} | {way} | {rate:.0f} | {plain / seconds:.2f} |", flush=True)


if __name__ == "__main__":
    main()
