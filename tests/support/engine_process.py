"""The engine in processes of its own: what to ask it, and ways to kill it."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

from support.native import engine_of

from pyagent.core.backends import Answer, collect
from pyagent.core.messages import ChatRequest, JsonSchemaFormat, Message, ResponseFormat, SamplingParams
from pyagent.infrastructure.engine.backend import NativeBackend
from pyagent.infrastructure.engine.subprocess.client import ProcessEngine

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 40},
        "sizes": {"type": "array", "items": {"type": "integer"}},
    },
    "required": ["name", "sizes"],
}


def remote(backend: NativeBackend) -> ProcessEngine:
    assert isinstance(backend.engine, ProcessEngine)
    return backend.engine


def process_id(backend: NativeBackend, copy: int = 0) -> int:
    found = remote(backend).copies.supervisors[copy].status.process_id
    assert found is not None
    return found


def ask(text: str = "the user", **sampling: object) -> ChatRequest:
    params = {"max_tokens": 12, "ignore_eos": True, **sampling}
    return ChatRequest(messages=[Message("user", text)], sampling=SamplingParams(**params))  # type: ignore[arg-type]


def eight(num_tokens: int) -> list[ChatRequest]:
    """Greedy, seeded and penalised answers, with stop texts, log probabilities and forms."""
    schema = ResponseFormat(type="json_schema", json_schema=JsonSchemaFormat(schema=SCHEMA))
    return [
        ask("the user", temperature=0, max_tokens=num_tokens),
        ask("the system", temperature=0, max_tokens=num_tokens, repetition_penalty=1.3, frequency_penalty=0.4),
        ask("and on", seed=1, max_tokens=num_tokens, top_p=0.9),
        ask("12 more", seed=2, max_tokens=num_tokens, presence_penalty=1.0, top_logprobs=2),
        ask("at ease", seed=3, max_tokens=num_tokens, stop=("ing the", "qqqq")),
        ask("at the", temperature=0, max_tokens=num_tokens, stop=("\n\nthe ", "user and")),
        ChatRequest(prompt="Paris", response_format=schema, sampling=SamplingParams(seed=4, max_tokens=num_tokens)),
        ChatRequest(
            prompt="Rome", response_format=schema, sampling=SamplingParams(temperature=0, max_tokens=num_tokens)
        ),
    ]


async def answers_in_this_process(path: Path, requests: list[ChatRequest]) -> list[Answer]:
    async with engine_of(path, process=False) as backend:
        return list(await asyncio.gather(*(collect(backend.chat(request)) for request in requests)))


def told(answer: Answer) -> tuple[str, object, int, list[object]]:
    return (
        answer.text,
        answer.last.finish_reason,
        answer.usage.completion_tokens,
        [entry for delta in answer.deltas for entry in delta.logprobs],
    )


async def killed_in_mid_stream(
    backend: NativeBackend, requests: list[ChatRequest], num_pieces: int, times: int = 1
) -> list[Answer]:
    """The answers, with the first copy's process killed each time so many more pieces have come."""
    count, kills = 0, 0

    async def one(request: ChatRequest) -> Answer:
        nonlocal count, kills
        deltas = []
        async for delta in backend.chat(request):
            deltas.append(delta)
            count += 1
            if kills < times and count >= num_pieces * (kills + 1):
                kills += 1
                os.kill(process_id(backend), signal.SIGKILL)
        return Answer(text="".join(delta.content for delta in deltas), last=deltas[-1], deltas=deltas)

    return list(await asyncio.gather(*(one(request) for request in requests)))


POISON = '''
"""A queue policy that kills its process when a request of the client "poison" comes to wait."""
import os, signal
from pyagent.core.hooks import hookimpl
from pyagent.infrastructure.engine.scheduler.policies.ordered import make_fcfs

def make(options):
    policy = make_fcfs({})
    class Poisoned:
        def __getattr__(self, name):
            return getattr(policy, name)
        def add(self, request, now):
            policy.add(request, now)
            if request.origin.client == "poison":
                os.kill(os.getpid(), signal.SIGKILL)
    return Poisoned()

@hookimpl
def pyagent_register_queue_policies():
    return {"poisoned": make}
'''
