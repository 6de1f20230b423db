"""The fields that OpenAI's chats and completions share, with those that other servers have: what each of them asks.

A wrong value is refused by the field's name. Pure.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import cast

import msgspec

from pyagent.core.errors import RequestError
from pyagent.core.messages import BeamSearch, ChatRequest, Origin, SamplingParams, Unsupported
from pyagent.core.sampling_params import LogitsProcessorSpec
from pyagent.core.sampling_schedules import PenaltySchedule, TemperatureSchedule
from pyagent.infrastructure.server.openai.response_formats import FormatFields
from pyagent.infrastructure.server.validation import check_metadata, check_name, checked_sampling, model_asked

_SAMPLING = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "frequency_penalty",
    "presence_penalty",
    "repetition_penalty",
    "seed",
    "ignore_eos",
    "min_tokens",
    "skip_special_tokens",
    "include_stop_str_in_output",
    "return_token_ids",
    "return_tokens_as_token_ids",
    "prompt_logprobs",
    "top_activations",
    "logit_lens",
    "typical_p",
    "epsilon_cutoff",
    "eta_cutoff",
    "top_n_sigma",
    "top_h",
    "xtc_probability",
    "xtc_threshold",
    "mirostat",
    "mirostat_tau",
    "mirostat_eta",
    "dynatemp_range",
    "dynatemp_exponent",
    "temperature_schedule",
    "top_k_entropy",
    "min_p_entropy",
    "repeat_last_n",
    "penalty_decay",
    "penalty_schedule",
    "no_repeat_ngram_size",
    "dry_multiplier",
    "dry_base",
    "dry_allowed_length",
    "dry_penalty_last_n",
    "dry_sequence_breakers",
    "bad_words",
    "bad_words_penalty",
    "bad_words_decay_tokens",
    "allowed_token_ids",
    "logits_processors",
)
_NAMES = ("session", "user", "agent", "run", "request_class", "guided_decoding_backend")


class _StreamOptions(msgspec.Struct, forbid_unknown_fields=True):
    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class CompletionFields(FormatFields, forbid_unknown_fields=True, kw_only=True):
    """The fields of both kinds of completion."""

    model: str | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    user: str | None = None
    n: int | None = None
    best_of: int | None = None
    # OpenAI does not have these:
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    ignore_eos: bool | None = None
    stop_token_ids: list[int] | None = None
    min_tokens: int | None = None
    skip_special_tokens: bool | None = None
    include_stop_str_in_output: bool | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    return_entropy: bool | None = None
    truncate_prompt_tokens: int | None = None
    add_special_tokens: bool | None = None
    prompt_logprobs: int | None = None
    top_activations: int | None = None
    logit_lens: int | None = None
    typical_p: float | None = None
    epsilon_cutoff: float | None = None
    eta_cutoff: float | None = None
    top_n_sigma: float | None = None
    top_h: float | None = None
    xtc_probability: float | None = None
    xtc_threshold: float | None = None
    mirostat: int | None = None
    mirostat_tau: float | None = None
    mirostat_eta: float | None = None
    dynatemp_range: float | None = None
    dynatemp_exponent: float | None = None
    temperature_schedule: TemperatureSchedule | None = None
    top_k_entropy: float | None = None
    min_p_entropy: float | None = None
    repeat_last_n: int | None = None
    penalty_decay: float | None = None
    penalty_schedule: PenaltySchedule | None = None
    no_repeat_ngram_size: int | None = None
    dry_multiplier: float | None = None
    dry_base: float | None = None
    dry_allowed_length: int | None = None
    dry_penalty_last_n: int | None = None
    dry_sequence_breakers: tuple[str, ...] | None = None
    bad_words: tuple[str, ...] | None = None
    bad_words_penalty: float | None = None
    bad_words_decay_tokens: int | None = None
    allowed_token_ids: tuple[int, ...] | None = None
    logits_processors: tuple[LogitsProcessorSpec, ...] | None = None
    timeout_seconds: float | None = None
    private: bool | None = None
    session: str | None = None
    use_beam_search: bool | None = None
    beam_width: int | None = None
    length_penalty: float | None = None
    early_stopping: bool | None = None
    priority: int | None = None
    request_class: str | None = None
    unsupported: Unsupported | None = None
    agent: str | None = None
    run: str | None = None
    # ignored
    metadata: dict[str, str] | None = None
    store: object = None
    service_tier: object = None
    safety_identifier: object = None
    prompt_cache_key: object = None
    prompt_cache_options: object = None
    prompt_cache_retention: object = None
    spaces_between_special_tokens: object = None

    def sampling(self, max_tokens: int | None, top_logprobs: int | None, *, echo: bool = False) -> SamplingParams:
        """Return how to sample, checked."""
        given = {name: value for name in _SAMPLING if (value := cast("object", getattr(self, name))) is not None}
        params = msgspec.structs.replace(
            SamplingParams(
                max_tokens=max_tokens,
                top_logprobs=top_logprobs,
                return_entropy=bool(self.return_entropy),
                stop=(self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ()),
                stop_token_ids=tuple(self.stop_token_ids or ()),
                logit_bias=_token_ids(self.logit_bias or {}),
                echo=echo,
            ),
            **given,
        ).with_given(given)
        has_newer_name = self.max_tokens is None and max_tokens is not None
        return checked_sampling(params, {"max_tokens": "max_completion_tokens"} if has_newer_name else {})

    def chat_request(self, sampling: SamplingParams, **fields: object) -> ChatRequest:
        """What the backend is asked."""
        check_metadata(self.metadata)
        for name in _NAMES:
            check_name(name, cast("str | None", getattr(self, name)))
        return msgspec.structs.replace(
            ChatRequest(
                model=model_asked(self.model),
                sampling=sampling,
                response_format=self.wanted_format(),
                timeout_seconds=_checked_time(self.timeout_seconds),
                private=bool(self.private),
                session=self.session,
                n=_checked_number(self.n),
                best_of=None if self.use_beam_search else self.best_of,
                beam=self._beam(),
                origin=Origin(client=self.user or "", agent=self.agent or "", run=self.run or ""),
                priority=_checked_priority(self.priority),
                request_class=self.request_class or "",
                unsupported=self.unsupported,
                truncate_prompt_tokens=_checked_truncation(self.truncate_prompt_tokens),
                guided_decoding_backend=_grammar_backend(self.guided_decoding_backend),
            ),
            **fields,
        )

    def parts(self) -> tuple[Callable[[], object], ...]:
        """What is checked of the fields besides sampling and texts, each by itself, to find all that is wrong."""
        return (
            lambda: check_metadata(self.metadata),
            *(partial(check_name, name, cast("str | None", getattr(self, name))) for name in _NAMES),
            lambda: model_asked(self.model),
            self.wanted_format,
            lambda: _checked_time(self.timeout_seconds),
            lambda: _checked_number(self.n),
            self._beam,
            self.check_stream,
            lambda: _checked_priority(self.priority),
            lambda: _checked_truncation(self.truncate_prompt_tokens),
        )

    def check_stream(self) -> None:
        """Raise `RequestError` for what goes with whole answers only, or with streams only."""
        if self.stream_options is not None and not self.stream:
            raise RequestError("stream_options needs stream: true", param="stream_options")
        if self.prompt_logprobs is not None and self.stream:
            text = "prompt_logprobs come with whole answers only; leave stream out"
            raise RequestError(text, param="prompt_logprobs")

    def _beam(self) -> BeamSearch | None:
        """The search wanted; as in vLLM `best_of`, else `n`, is its width where no width is given."""
        given = {name: getattr(self, name) for name in ("beam_width", "length_penalty", "early_stopping")}
        if not self.use_beam_search:
            named = [name for name, value in given.items() if value is not None]
            if named:
                raise RequestError(f"{named[0]} needs use_beam_search: true", param=named[0])
            return None
        width = next((given for given in (self.beam_width, self.best_of, self.n) if given is not None), 1)
        penalty = 1.0 if self.length_penalty is None else self.length_penalty
        return BeamSearch(width=width, length_penalty=penalty, early_stopping=bool(self.early_stopping))


def _token_ids(bias: dict[str, float]) -> dict[int, float]:
    for key, value in bias.items():
        if not key.isascii() or not key.isdigit() or len(key) > 9:
            raise RequestError(f"logit_bias takes token ids from 0 on as names, got {key!r:.40}", param="logit_bias")
        if not -100 <= value <= 100:
            raise RequestError(f"logit_bias must be between -100 and 100, got {value}", param="logit_bias")
    return {int(key): value for key, value in bias.items()}


def _checked_priority(priority: int | None) -> int:
    if priority is not None and not -(2**31) <= priority < 2**31:
        raise RequestError(f"priority must fit 32 bits (lower goes first), got {priority}", param="priority")
    return priority or 0


def _checked_truncation(num_tokens: int | None) -> int | None:
    if num_tokens is not None and num_tokens != -1 and not 1 <= num_tokens < 2**31:
        text = f"truncate_prompt_tokens must be at least 1, or -1 for what the context has room for, got {num_tokens}"
        raise RequestError(text, param="truncate_prompt_tokens")
    return num_tokens


def _grammar_backend(name: str | None) -> str:
    """Return the grammar backend that a request names by the name that plugins bring it under; empty for any."""
    first, colon, option = (name or "").partition(":")
    return {"auto": "", "llguidance": "guidance"}.get(first, first) + colon + option


def _checked_number(n: int | None) -> int:
    if n is not None and n < 1:
        raise RequestError(f"n must be at least 1, got {n}", param="n")
    return n or 1


def _checked_time(seconds: float | None) -> float | None:
    if seconds is not None and not 0 < seconds < 1e9:
        raise RequestError(f"timeout_seconds must be above 0, got {seconds}", param="timeout_seconds")
    return seconds
