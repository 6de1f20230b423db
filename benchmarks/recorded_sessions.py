"""What agents asked and answered, recorded: sessions of `agentic-swarm-bench`, and runs of our own.

The package (Apache 2.0) is a wheel that holds JSON lines, a request to the model in each, with all messages so far: the
longest of a file is its session, and each message of the assistant in it is an answer to those before. Ours are what
`pyagent runs export` writes. A session becomes one text that grows: each answer's prompt is a beginning of it.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

MOST_MESSAGE = 400
"""Tokens of a message that was read, such as a tool's result: what is more is cut."""
LEAST_ANSWER = 8
Message = dict[str, Any]


class Turn(NamedTuple):
    """A prompt and the answer that was given, as tokens; the prompts of a session begin alike."""

    session: str
    prompt: list[int]
    answer: list[int]


def swarm_turns(wheel: Path, encode: Callable[[str], list[int]], most_tokens: int, most_answer: int) -> list[Turn]:
    """Return the turns of the package's sessions, of each the first `most_tokens` tokens."""
    turns: list[Turn] = []
    with zipfile.ZipFile(wheel) as package:
        for name in sorted(name for name in package.namelist() if name.endswith(".jsonl")):
            with package.open(name) as lines:
                longest = max((json.loads(line)["messages"] for line in lines if line.strip()), key=len)
            session = "/".join(name.split("/")[-2:]).removesuffix(".jsonl")
            turns += turns_of(session, longest, encode, most_tokens, most_answer)
    return turns


def run_turns(
    exports: list[Path], encode: Callable[[str], list[int]], most_tokens: int, most_answer: int
) -> list[Turn]:
    """Return the turns of runs, each as `pyagent runs export` wrote it; those of more tokens are left out."""
    turns: list[Turn] = []
    for path in exports:
        with path.open() as lines:
            events = [json.loads(line).get("event") or {} for line in lines]
        for event in (one for one in events if one.get("event") == "model_called"):
            log = [token for message in event["messages"] for token in read(message, encode)] + begun(
                "assistant", encode
            )
            answer = encode(text_of({"content": event["answer"], "tool_calls": event["tool_calls"]}))
            if LEAST_ANSWER <= len(answer) <= most_tokens - len(log):
                turns.append(Turn(path.stem, log, answer[:most_answer]))
    return turns


def turns_of(
    session: str, messages: list[Message], encode: Callable[[str], list[int]], most_tokens: int, most_answer: int
) -> Iterator[Turn]:
    """Yield an answer for each message of the assistant, until the session has `most_tokens`."""
    log: list[int] = []
    for message in messages:
        answer = encode(text_of(message)) if message["role"] == "assistant" else []
        if len(log) + len(answer) > most_tokens:
            return
        if len(answer) >= LEAST_ANSWER:
            yield Turn(session, log + begun("assistant", encode), answer[:most_answer])
        log += read(message, encode)


def read(message: Message, encode: Callable[[str], list[int]]) -> list[int]:
    """A message in a prompt: whole where it is the assistant's."""
    tokens = encode(text_of(message))
    return begun(message["role"], encode) + (tokens if message["role"] == "assistant" else tokens[:MOST_MESSAGE])


def begun(role: str, encode: Callable[[str], list[int]]) -> list[int]:
    """What stands before a message."""
    return encode(f"<|im_end|>\n<|im_start|>{role}\n")


def text_of(message: Message) -> str:
    """What a model reads or writes of a message: its text, then its calls of tools as Qwen writes them."""
    content = message.get("content") or ""
    parts = [content if isinstance(content, str) else json.dumps(content)]
    for call in message.get("tool_calls") or ():
        told = call.get("function", call)
        parts.append(f"<tool_call>\n{json.dumps({key: told.get(key) for key in ('name', 'arguments')})}\n</tool_call>")
    return "\n".join(filter(None, parts))
