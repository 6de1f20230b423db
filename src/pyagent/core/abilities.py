"""What a request asks of a backend beyond plain text, by the names of its fields.

A backend names those it honours in its `capabilities.abilities`. What it lacks is emulated (`core.emulation`) or
refused by name. Knows no backend.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import get_args

import msgspec

from pyagent.core.messages import ChatDelta, ChatRequest, SamplingParams, TextPart, Usage
from pyagent.core.response_format import FormatType

Abilities = frozenset[str]


def _needs_form(kind: str) -> Callable[[ChatRequest], bool]:
    return lambda request: request.response_format is not None and kind in request.response_format.types


def _has_images(request: ChatRequest) -> bool:
    parts = (message.content for message in request.messages if isinstance(message.content, list))
    return any(not isinstance(part, TextPart) for content in parts for part in content)


def _has_tools(request: ChatRequest) -> bool:
    return bool(request.tools) or any(message.role == "tool" or message.tool_calls for message in request.messages)


FORMS = tuple(kind for kind in get_args(FormatType) if kind != "text")
"""Kinds of response formats, each an ability of its name."""

_NEEDS: Mapping[str, Callable[[ChatRequest], bool]] = {
    "prompt": lambda request: not request.messages,
    "prompt_token_ids": lambda request: bool(request.prompt_token_ids),
    "images": _has_images,
    "tools": _has_tools,
    "tool_choice": lambda request: bool(request.tools) and request.tool_choice not in (None, "auto"),
    "parallel_tool_calls": lambda request: (
        bool(request.tools) and request.tool_choice != "none" and not request.parallel_tool_calls
    ),
    "strict": lambda request: request.tool_choice != "none" and any(tool.function.strict for tool in request.tools),
    **{kind: _needs_form(kind) for kind in FORMS},
    # not to reason is a wish, told to those that know it
    "reasoning_effort": lambda request: request.reasoning_effort not in (None, "none"),
    "chat_template_kwargs": lambda request: bool(request.chat_template_kwargs),
    "chat_template": lambda request: bool(request.chat_template),
    "guided_decoding_backend": lambda request: bool(request.guided_decoding_backend),
    "truncate_prompt_tokens": lambda request: request.truncate_prompt_tokens is not None,
    "add_special_tokens": lambda request: not request.add_special_tokens,
    "n": lambda request: request.n > 1,
    "best_of": lambda request: request.best_of is not None,
    "beam": lambda request: request.beam is not None,
    # a greedy answer is the same for every seed
    "seed": lambda request: request.sampling.seed is not None and request.sampling.temperature > 0,
}

_SAMPLING = tuple(name for name in SamplingParams.__struct_fields__ if name not in {*_NEEDS, "fields_set"})
_sampling_values = attrgetter(*_SAMPLING)
_PLAIN = SamplingParams()
_PLAIN_VALUES = _sampling_values(_PLAIN)

FURTHER_SAMPLING: Abilities = frozenset(
    {
        *("typical_p", "epsilon_cutoff", "eta_cutoff", "top_n_sigma", "top_h", "xtc_probability", "xtc_threshold"),
        *("mirostat", "mirostat_tau", "mirostat_eta", "dynatemp_range", "dynatemp_exponent"),
        *("temperature_schedule", "penalty_schedule", "top_k_entropy", "min_p_entropy"),
        *("repeat_last_n", "penalty_decay", "no_repeat_ngram_size"),
        *("dry_multiplier", "dry_base", "dry_allowed_length", "dry_penalty_last_n", "dry_sequence_breakers"),
        *("bad_words", "bad_words_penalty", "bad_words_decay_tokens", "allowed_token_ids"),
    }
)
"""What llama.cpp, vLLM and the embedded engine know of sampling beyond OpenAI's fields, top-k and min-p."""

TOKEN_FIELDS: Abilities = frozenset(
    {
        *("include_stop_str_in_output", "return_token_ids", "return_tokens_as_token_ids"),
        *("truncate_prompt_tokens", "add_special_tokens"),
    }
)
"""What vLLM and the embedded engine know of a prompt's and an answer's tokens."""

SOFT: Abilities = frozenset(
    {
        *("temperature", "top_p", "top_k", "min_p", "seed", "thinking_token_budget"),
        *("repetition_penalty", "frequency_penalty", "presence_penalty", "return_entropy"),
    }
) | (
    FURTHER_SAMPLING
    - {"no_repeat_ngram_size", "bad_words", "bad_words_penalty", "bad_words_decay_tokens", "allowed_token_ids"}
    - {"temperature_schedule"}  # what is too hot without its end is no answer
)
"""Hints about how to sample. A backend that lacks one is asked without it: the answer is right all the same."""

ABILITIES: Abilities = frozenset([*_NEEDS, *_SAMPLING])
"""Everything a request can ask for."""


def needs(request: ChatRequest) -> Abilities:
    """Return what a backend must be able to do to serve the request as it stands."""
    said = zip(_SAMPLING, _sampling_values(request.sampling), _PLAIN_VALUES, strict=True)
    changed = [name for name, value, plain in said if value != plain]
    return frozenset([*changed, *(name for name, asks in _NEEDS.items() if asks(request))])


def without(request: ChatRequest, hints: Abilities) -> ChatRequest:
    """Return the request with these sampling parameters at their defaults."""
    if not hints:
        return request
    plain = {name: getattr(_PLAIN, name) for name in hints}
    plain["fields_set"] = tuple(name for name in request.sampling.fields_set if name not in hints)
    return msgspec.structs.replace(request, sampling=msgspec.structs.replace(request.sampling, **plain))


def noting(delta: ChatDelta, ignored: Abilities) -> ChatDelta:
    """Return an answer's last delta with the hints that were left out named in its usage."""
    if not ignored:
        return delta
    usage = delta.usage or Usage()
    names = tuple(sorted({*usage.ignored, *ignored}))
    return msgspec.structs.replace(delta, usage=msgspec.structs.replace(usage, ignored=names))
