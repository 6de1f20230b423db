"""Asks the math agent's sandbox as its tests do."""

from __future__ import annotations

import asyncio

from pyagent.logic.agents.math.phrases import read_question
from pyagent.logic.agents.math.sandbox import Sandbox


def exact_answer(sandbox: Sandbox, question: str) -> str:
    """Return the exact answer to a question as people write it."""
    return asyncio.run(sandbox.compute(read_question(question))).exact
