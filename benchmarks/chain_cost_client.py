"""One client of `chain_cost.py`, in a process of its own: asks, checks each answer, prints its figures as JSON."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable
from urllib.parse import urlsplit

from fake_upstream import answer_to

QUESTION = "What is the answer?"
RIGHT = "".join(answer_to(QUESTION, 8))
MESSAGES = [{"role": "user", "content": QUESTION}]
Ask = Callable[[], Awaitable[str]]


def by_httpx(url: str) -> Ask:
    import httpx

    client = httpx.AsyncClient(trust_env=False, timeout=30, limits=httpx.Limits(max_connections=None))

    async def ask() -> str:
        text = ""
        body = {"model": "fake", "messages": MESSAGES, "stream": True}
        async with client.stream("POST", f"{url}/chat/completions", json=body) as response:
            async for line in response.aiter_lines():
                if line.startswith("data: {"):
                    text += json.loads(line[6:])["choices"][0]["delta"].get("content", "")
        return text

    return ask


def by_backend(url: str, *, is_chain: bool) -> Ask:
    from pyagent.core.backends import collect
    from pyagent.core.chain import Chain
    from pyagent.core.messages import ChatRequest, Message
    from pyagent.infrastructure.backends.openai import OpenAIBackend

    links = [OpenAIBackend(url, model="fake"), OpenAIBackend(url, model="spare")]
    backend = Chain(links) if is_chain else links[0]
    request = ChatRequest(messages=[Message("user", QUESTION)])

    async def ask() -> str:
        return (await collect(backend.chat(request))).text

    return ask


def by_litellm(url: str) -> Ask:
    import logging

    import litellm

    logging.disable(logging.CRITICAL)
    litellm.suppress_debug_info = True
    parameters = {"model": "openai/fake", "api_base": url, "api_key": "none"}
    models = [{"model_name": name, "litellm_params": parameters} for name in ("main", "spare")]
    router = litellm.Router(model_list=models, fallbacks=[{"main": ["spare"]}])

    async def ask() -> str:
        stream = await router.acompletion(model="main", messages=MESSAGES, stream=True)
        return "".join([chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices])

    return ask


def by_sockets(url: str, model: str) -> Ask:
    """With next to no cost of its own, for servers: connections that stay open, and an answer taken apart by hand."""
    split = urlsplit(url)
    idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
    body = json.dumps({"model": model, "messages": MESSAGES, "stream": True})
    head = f"POST {split.path}/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    request = f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode()

    async def ask() -> str:
        reader, writer = idle.pop() if idle else await asyncio.open_connection(split.hostname, split.port)
        writer.write(request)
        answer = await reader.readuntil(b"\r\n0\r\n\r\n")
        idle.append((reader, writer))
        events = [json.loads(line[6:]) for line in answer.split(b"\n") if line.startswith(b"data: {")]
        deltas = [event["choices"][0]["delta"] for event in events if event["choices"]]
        return "".join(delta.get("content") or "" for delta in deltas)

    return ask


async def alone(ask: Ask, seconds: float) -> dict[str, float]:
    """One request at a time."""
    for _ in range(20):
        assert await ask() == RIGHT
    times: list[float] = []
    begun, cpu = time.perf_counter(), time.process_time()
    while (started := time.perf_counter()) < begun + seconds:
        await ask()
        times.append(time.perf_counter() - started)
    cpu = time.process_time() - cpu
    times.sort()
    p50, p99 = times[len(times) // 2], times[int(len(times) * 0.99)]
    return {"cpu_ms": cpu / len(times) * 1000, "p50_ms": p50 * 1000, "p99_ms": p99 * 1000}


async def rate(ask: Ask, seconds: float) -> float:
    """Requests a second with 50 under way."""
    until, num_done = time.perf_counter() + seconds, 0

    async def worker() -> None:
        nonlocal num_done
        while time.perf_counter() < until:
            assert await ask() == RIGHT
            num_done += 1

    started = time.perf_counter()
    await asyncio.gather(*(worker() for _ in range(50)))
    return num_done / (time.perf_counter() - started)


async def both(ask: Ask, seconds: float) -> dict[str, float]:
    """One at a time, then 50 at once; `requests` are all that were asked."""
    num_asked = 0

    async def counted() -> str:
        nonlocal num_asked
        num_asked += 1
        return await ask()

    figures = await alone(counted, seconds) | {"rate": await rate(counted, seconds)}
    return figures | {"requests": num_asked}


async def crowd(ask: Ask, number: int) -> dict[str, float]:
    """That many streams at once."""
    started = time.perf_counter()
    answers = await asyncio.gather(*(ask() for _ in range(number)), return_exceptions=True)
    right = sum(answer == RIGHT for answer in answers)
    return {"right": right, "wrong": number - right, "seconds": time.perf_counter() - started}


async def main() -> None:
    client, url, seconds, streams = sys.argv[1], sys.argv[2], float(sys.argv[3]), int(sys.argv[4])
    makers = {"httpx": by_httpx, "litellm": by_litellm}
    if client.startswith("sockets:"):
        ask = by_sockets(url, client.removeprefix("sockets:"))
    else:
        ask = makers[client](url) if client in makers else by_backend(url, is_chain=client == "chain")
    print(json.dumps(await crowd(ask, streams) if streams else await both(ask, seconds)))


if __name__ == "__main__":
    asyncio.run(main())
