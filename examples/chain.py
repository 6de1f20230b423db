"""A fallback chain in a program: a server that may be off, then the embedded engine; the answer says who gave it.

python examples/chain.py http://localhost:1234/v1
"""

import asyncio
import sys

from pyagent import Answer, Chain, ChatRequest, Message, SamplingParams


async def main(*links: str) -> Answer:
    async with Chain(links) as chain:
        question = ChatRequest(
            messages=[Message("user", "Name a colour.")],
            sampling=SamplingParams(temperature=0.0, max_tokens=16),
            timeout_seconds=60.0,
        )
        return await chain.chat(question)


if __name__ == "__main__":
    server = sys.argv[1] if len(sys.argv) > 1 else "http://localhost:1234/v1"
    answer = asyncio.run(main(f"openai:{server}", "native"))
    for attempt in answer.deltas[0].attempts:
        print(f"({attempt.backend}: {attempt.reason})")
    print(f"{answer.last.backend}: {answer.text}")
