"""Tool use: the model calls functions for what it cannot know or compute, and answers from their results.

Reasoning and acting in turn, as in ReAct (Yao et al. 2022, arXiv:2210.03629), with the calls as the backend has them.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyagent.core.errors import AgentError
from pyagent.core.fleet.context import Context
from pyagent.logic.strategies.chain_of_thought import GREEDY, Thought, read_thought

SYSTEM = (
    "You solve problems. Call a function wherever one can compute or find out what you need; do not guess what it can "
    "tell. Answer from the results. End with one line: Answer: ..."
)
_MAX_SHOWN = 200


async def use_tools(context: Context, question: str, tools: Sequence[str]) -> Thought:
    """Return the answer, after the calls and the thoughts that led to it."""
    completion = await context.complete(question, system=SYSTEM, sampling=GREEDY, tools=tools)
    text = completion.text.strip()
    if not text:
        raise AgentError("the model's answer is empty", agent=context.agent)
    calls = [f"{each.tool}({each.arguments}): {each.text}" for each in completion.tool_results]
    calls = [call if len(call) <= _MAX_SHOWN else f"{call[:_MAX_SHOWN]}..." for call in calls]
    thought = read_thought(text)
    if not thought.answer:
        return Thought(calls, text, completion.is_cut)
    return Thought([*calls, *thought.steps], thought.answer, completion.is_cut)
