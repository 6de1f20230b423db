"""What the SDK is asked and what its results mean: histories, configs, stop reasons. Pure; opens no socket."""

from __future__ import annotations

import json
from typing import cast

import lmstudio

from pyagent.plugin import (
    BackendError,
    ChatDelta,
    ChatRequest,
    FinishReason,
    Message,
    ResponseFormat,
    SamplingParams,
    TextPart,
    Timings,
    Usage,
)

JsonObject = dict[str, object]

_STOP_REASONS: dict[str, FinishReason] = {
    "eosFound": "stop",
    "stopStringFound": "stop",
    "toolCalls": "tool_calls",
    "maxPredictedTokensReached": "length",
    "contextLengthReached": "length",
    "userStopped": "abort",
}


def refuse_what_is_missing(request: ChatRequest, backend: str) -> None:
    """Raise `BackendError` for what this backend cannot do, so that a chain goes on."""
    sampling = request.sampling
    missing = {
        "prompts without messages": not request.messages,
        "tools": bool(request.tools) or any(message.role == "tool" for message in request.messages),
        "images": any(_has_images(message) for message in request.messages),
        "frequency_penalty and presence_penalty": bool(sampling.frequency_penalty or sampling.presence_penalty),
        "seed (unless temperature is 0)": sampling.seed is not None and sampling.temperature > 0,
        "logit_bias": bool(sampling.logit_bias),
        "ignore_eos": sampling.ignore_eos,
        "top_logprobs": sampling.top_logprobs is not None,
    }
    for what, is_asked in missing.items():
        if is_asked:
            raise BackendError(f"{backend} cannot do {what}", backend=backend, retryable=False)


def _has_images(message: Message) -> bool:
    return isinstance(message.content, list) and not all(isinstance(part, TextPart) for part in message.content)


def history_of(request: ChatRequest) -> JsonObject:
    """The conversation in the SDK's wire format."""
    return {
        "messages": [
            {
                "role": "system" if message.role == "developer" else message.role,
                "content": [{"type": "text", "text": message.text}],
            }
            for message in request.messages
        ]
    }


def config_of(sampling: SamplingParams, wanted: ResponseFormat | None) -> JsonObject:
    """Every sampling parameter spelt out: the server's presets are not what was asked for."""
    config: JsonObject = {
        "temperature": sampling.temperature,
        "topPSampling": sampling.top_p,
        "topKSampling": sampling.top_k,
        "minPSampling": sampling.min_p,
        "repeatPenalty": sampling.repetition_penalty,
    }
    if sampling.max_tokens is not None:
        config["maxTokens"] = sampling.max_tokens
    if sampling.stop:
        config["stopStrings"] = list(sampling.stop)
    if wanted and wanted.type == "json_object":
        config["structured"] = {"type": "json"}
    return config


def schema_of(wanted: ResponseFormat | None) -> JsonObject | None:
    """The JSON schema the answer must follow, when one was asked for."""
    if wanted and wanted.type == "json_schema" and wanted.json_schema:
        return wanted.json_schema.schema
    if wanted and wanted.type == "choice":
        return {"type": "string", "enum": wanted.choice or []}
    return None


def last_delta(stats: lmstudio.LlmPredictionStats, model: str, backend: str) -> ChatDelta:
    """The end of an answer; raises `BackendError` when the model failed or was unloaded meanwhile."""
    reason = _STOP_REASONS.get(stats.stop_reason)
    if reason is None:
        raise BackendError(f"{backend} ended its answer because of {stats.stop_reason}", backend=backend)
    num_prompt = int(stats.prompt_tokens_count or 0)
    num_completion = int(stats.predicted_tokens_count or 0)
    usage = Usage(
        prompt_tokens=num_prompt,
        completion_tokens=num_completion,
        total_tokens=num_prompt + num_completion,
        timings=Timings(first_token_seconds=stats.time_to_first_token_sec or 0.0),
    )
    return ChatDelta(finish_reason=reason, usage=usage, model=model, backend=backend)


def read_choice(text: str, choices: list[str], backend: str) -> str:
    """The choice inside the JSON string that a constrained answer is."""
    try:
        value = cast("object", json.loads(text))
    except ValueError:
        value = text.strip()
    if value not in choices:
        raise BackendError(f"{backend} answered {text[:80]!r}, which is none of the choices", backend=backend)
    return str(value)
