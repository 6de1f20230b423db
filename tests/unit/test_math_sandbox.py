"""The bounds of what the math agent computes: seconds, memory, and callers that leave."""

from __future__ import annotations

import asyncio

import pytest

from pyagent.core.errors import AgentError
from pyagent.logic.agents.math.phrases import read_question
from pyagent.logic.agents.math.sandbox import Sandbox


def test_long_question_is_killed_and_its_worker_replaced() -> None:
    """A question past its time is ended with its process, and a new one serves the next."""

    async def main() -> None:
        box = Sandbox(seconds=1.0, max_workers=1)
        with pytest.raises(AgentError, match="gave up after 1 s"):
            await box.compute(read_question("expand (x+y+z+a+b)^300"))
        assert (await box.compute(read_question("sqrt(16)"))).exact == "4"
        await box.close()

    asyncio.run(main())


def test_memory_is_bounded() -> None:
    """A question that needs more memory than allowed fails alone."""

    async def main() -> None:
        box = Sandbox(seconds=60.0, memory_bytes=300 << 20, max_workers=1)
        with pytest.raises(AgentError, match="needs more memory"):
            await box.compute(read_question("expand (x+y+z+a+b)^300"))
        assert (await box.compute(read_question("sqrt(16)"))).exact == "4"
        await box.close()

    asyncio.run(main())


def test_cancelled_question_frees_its_worker() -> None:
    """A caller that leaves does not leave its question computing."""

    async def main() -> None:
        box = Sandbox(seconds=60.0, max_workers=1)
        await box.compute(read_question("sqrt(4)"))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(box.compute(read_question("expand (x+y+z+a+b)^300")), 0.3)
        assert (await box.compute(read_question("sqrt(16)"))).exact == "4"
        await box.close()

    asyncio.run(main())
