"""The embedded engine in a program: load a model, ask it, and read an answer as it is written."""

import asyncio
import sys

from pyagent import Engine, SamplingParams


async def main(model: str = "smollm2:135m") -> str:
    async with Engine(model, threads=2) as engine:
        await engine.load()
        answer = await engine.chat("Name a colour.", SamplingParams(temperature=0.0, max_tokens=16))
        print(answer.text, f"({answer.usage.completion_tokens} tokens)")
        async for delta in engine.stream("Name three rivers.", SamplingParams(temperature=0.0, max_tokens=40)):
            print(delta.content, end="", flush=True)
        print()
        return answer.text


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
