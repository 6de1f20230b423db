"""What is done about a doubtful answer of a run: it is said, the model is asked again, or the chain's next link is.

Once for an answer, and within the run's budget: where the second answer cannot be had, the first one stands. An answer
sampled with a seed is one of several and only marked; how far they agree says more (`Context.doubts`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyagent.core.errors import BackendError, CapacityError, DeadlineError, RequestError
from pyagent.core.fleet.confidence import Confidence, DoubtAct
from pyagent.core.fleet.events import AnswerDoubted
from pyagent.core.fleet.model_call import ModelCall
from pyagent.core.messages import Message

if TYPE_CHECKING:
    from pyagent.core.fleet.context import Context

_HINT = "You seem unsure of that. Check it, and answer again: what you know, plainly, or that you do not know it."


async def reconsidered(call: ModelCall) -> ModelCall:
    """Return the call whose answer is to be used: the one given, or a second one."""
    context = call.context
    policy = context.run.limits.confidence
    if not (doubt := policy.doubt(call.confidence)):
        return call
    act: DoubtAct = "mark" if call.sampling.seed is not None else policy.act
    _tell(context, call, doubt, act)
    if act == "mark":
        return call
    with context.scopes.within(f"{call.call}.again"):  # calls after it keep their numbers
        second = _second(call, act)
    try:
        await second.finish()
    except (CapacityError, DeadlineError, BackendError, RequestError) as error:
        context.progress(f"the doubtful answer stands: {error}")
        return call
    still = policy.doubt(second.confidence)
    if still:
        _tell(context, second, still, "mark")
    is_better = act == "escalate" or not still
    return second if is_better and "".join(second.pieces).strip() and not second.tool_calls else call


def marked(call: ModelCall) -> None:
    """Say that an answer that was shown already is doubtful, if it is."""
    if doubt := call.context.run.limits.confidence.doubt(call.confidence):
        _tell(call.context, call, doubt, "mark")


def doubted(context: Context, seen: Confidence) -> DoubtAct | None:
    """Say that an agent's answers are doubtful, if they are; return what is to be done, None where nothing is."""
    policy = context.run.limits.confidence
    if not (doubt := policy.doubt(seen)):
        return None
    event = AnswerDoubted(
        run=context.run.id, step=context.step, agent=context.agent, reason=doubt, act=policy.act, confidence=seen
    )
    context.run.emit(event)
    return policy.act


def _second(call: ModelCall, act: DoubtAct) -> ModelCall:
    again = [Message("assistant", "".join(call.pieces)), Message("user", _HINT)]
    return ModelCall(
        call.context,
        [*call.messages, *again] if act == "retry" else list(call.messages),
        call.response_format,
        call.sampling,
        whole=True,
        tools=call.tools,
        tool_choice="none" if call.tools else None,
        after_link=call.backend if act == "escalate" else "",
    )


def _tell(context: Context, call: ModelCall, doubt: str, act: DoubtAct) -> None:
    event = AnswerDoubted(
        run=context.run.id,
        step=context.step,
        agent=context.agent,
        backend=call.backend,
        reason=doubt,
        act=act,
        call=call.call,
        confidence=call.confidence or Confidence(),
    )
    context.run.emit(event)
