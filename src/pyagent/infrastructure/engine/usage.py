"""What a finished request used: token counts, where its time went, and what the prefix cache saved it.

Reads requests that have ended; changes nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyagent.core.messages import CacheReport, PromptTokensDetails, Timings, Usage
from pyagent.core.runners.batch import BLOCK_TOKENS
from pyagent.infrastructure.engine.sessions.cache_miss import explain_miss

if TYPE_CHECKING:
    from pyagent.infrastructure.engine.request import Request

_SCORED = "the log probabilities of the prompt were asked for, so all of it was computed"


def usage_of(request: Request) -> Usage:
    """Return what a finished request used, all its answers together."""
    if request.search is not None:
        num_output_tokens = sum(len(answer.tokens) for answer in request.search.answers)
    else:
        num_output_tokens = sum(answer.num_output_tokens for answer in request.answers)
    drafts = [answer.drafts for answer in request.answers if answer.drafts is not None]
    num_accepted = sum(one.num_accepted for one in drafts)
    return Usage(
        prompt_tokens=request.num_prompt_tokens,
        completion_tokens=num_output_tokens,
        total_tokens=request.num_prompt_tokens + num_output_tokens,
        prompt_tokens_details=PromptTokensDetails(cached_tokens=request.num_cached or 0),
        reasoning_tokens=sum(answer.text.num_reasoning_tokens for answer in request.answers),
        accepted_prediction_tokens=num_accepted,
        rejected_prediction_tokens=sum(one.num_drafted for one in drafts) - num_accepted,
        timings=timings_of(request),
        cache=_cache_report(request),
        grammar_backend="" if request.grammar is None else request.grammar.backend_name,
    )


def timings_of(request: Request) -> Timings:
    """Return where a finished request's time went; its shares of steps are those of all its answers."""
    scheduled = request.scheduled or request.finished or request.arrived
    first, last = request.first_token or scheduled, request.last_token or scheduled
    return Timings(
        queue_seconds=scheduled - request.arrived,
        prefill_seconds=first - scheduled,
        first_token_seconds=first - request.arrived,
        inter_token_seconds=(last - first) / max(1, request.num_output_tokens - 1),
        total_seconds=(request.finished or request.arrived) - request.arrived,
        num_preemptions=request.num_preemptions,
        queued_at=request.arrived,
        forward_seconds=sum(answer.forward_seconds for answer in request.answers),
        scheduler_seconds=sum(answer.scheduler_seconds for answer in request.answers),
    )


def _cache_report(request: Request) -> CacheReport:
    prompt, num_cached = request.prompt, request.num_cached or 0
    return CacheReport(
        prompt_tokens=request.num_prompt_tokens,
        cached_tokens=num_cached,
        log_tokens=prompt.num_log_tokens,
        note=prompt.note or (_SCORED if request.scores is not None else ""),
        normalized=list(prompt.normalized.names),
        miss=explain_miss(prompt, num_cached, BLOCK_TOKENS, request.tokenizer) if request.scores is None else None,
    )
