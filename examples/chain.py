"""A chain in a program: a server that may be off, then the embedded engine. The answer says who gave it, and why.

python examples/chain.py http://localhost:1234/v1
"""

import asyncio
import sys

from pyagent.assembly import make_chain, make_host
from pyagent.core.backends import Answer, collect
from pyagent.core.config import load_settings
from pyagent.core.messages import ChatRequest, Message, SamplingParams


async def main(*entries: str) -> Answer:
    settings = load_settings().settings
    chain = make_chain(settings, make_host(settings), entries)
    try:
        question = ChatRequest(
            messages=[Message("user", "Name a colour.")],
            sampling=SamplingParams(temperature=0.0, max_tokens=16),
            timeout_seconds=60.0,
        )
        return await collect(chain.chat(question))
    finally:
        await chain.close()


if __name__ == "__main__":
    server = sys.argv[1] if len(sys.argv) > 1 else "http://localhost:1234/v1"
    answer = asyncio.run(main(f"openai:{server}", "native"))
    for attempt in answer.deltas[0].attempts:
        print(f"({attempt.backend}: {attempt.reason})")
    print(f"{answer.last.backend}: {answer.text}")
