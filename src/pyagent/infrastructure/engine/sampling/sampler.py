"""A request's sampling parameters as the state that the kernels sample with, checked on the way."""

from __future__ import annotations

import math
import random
from collections.abc import Collection, Sequence
from typing import Any, Protocol  # Any: the kernels check each value

from msgspec.structs import replace

from pyagent import _rust
from pyagent.core.errors import RequestError
from pyagent.core.messages import ChatRequest, SamplingParams
from pyagent.infrastructure.engine.sampling.beam_search import num_offered

_PLAIN = SamplingParams()
_AS_THEY_ARE = (
    *("temperature", "dynatemp_range", "dynatemp_exponent", "top_n_sigma", "epsilon_cutoff", "eta_cutoff", "top_k"),
    *("top_h", "typical_p", "top_p", "min_p", "xtc_probability", "xtc_threshold", "top_k_entropy", "min_p_entropy"),
    *("mirostat", "mirostat_tau", "mirostat_eta", "no_repeat_ngram_size", "dry_base", "dry_allowed_length"),
)
_EXCLUDING = ("logit_bias", "no_repeat_ngram_size", "bad_words", "allowed_token_ids", "min_tokens", "stop_token_ids")
_LEAST_BIAS = -100.0
_PENALTIES = ("repetition_penalty", "frequency_penalty", "presence_penalty", "penalty_decay")


def answer_params(request: ChatRequest, index: int, num_end_ids: int) -> SamplingParams:
    """Return the parameters that the answer `index` of a request is sampled with.

    Beam search reads the likeliest tokens instead of sampling; `best_of` ranks by log probabilities; each of several
    answers has a seed of its own.
    """
    params = request.sampling
    if request.beam is not None:
        num_top = num_offered(request.beam, num_end_ids)
        params = SamplingParams(temperature=0, top_logprobs=num_top, logit_bias=params.logit_bias)
    if params.seed is not None and index:
        params = replace(params, seed=(params.seed + index) & (2**64 - 1))
    if request.best_of is not None and params.top_logprobs is None:
        params = replace(params, top_logprobs=0)
    return params


class Vocabulary(Protocol):
    """What texts of sampling parameters are as tokens."""

    @property
    def vocab_size(self) -> int:
        """Token ids end here."""
        ...

    @property
    def suppressed_ids(self) -> Collection[int]:
        """Tokens that the model is not to write, unless a request says otherwise."""
        ...

    def words_as_tokens(self, words: Sequence[str]) -> list[list[int]]:
        """Return the token sequences that say one of some words, at the beginning of a word and inside one."""
        ...

    def tokens_with(self, texts: Sequence[str]) -> list[int]:
        """Return the tokens whose text holds one of some texts, in ascending order."""
        ...


def names_texts(params: SamplingParams) -> bool:
    """Whether texts or many tokens must be found in the vocabulary, which takes a while."""
    return bool(params.bad_words or params.dry_multiplier or params.allowed_token_ids)


def excluding_fields(params: SamplingParams, has_grammar: bool) -> list[str]:
    """Return the fields of a request by which tokens are excluded."""
    found = [name for name in _EXCLUDING if getattr(params, name) != getattr(_PLAIN, name)]
    return [*found, "response_format"] if has_grammar else found


def make_sampler(
    params: SamplingParams,
    vocabulary: Vocabulary,
    prompt_tokens: list[int] | None = None,
    *,
    token_lists: dict[str, Any] | None = None,
) -> _rust.SamplerState:
    """Return the state that an answer to `prompt_tokens` is sampled with; all answers of a request share `token_lists`.

    Raises `RequestError` for a value it refuses.
    """
    _check_tokens(params, vocabulary.vocab_size)
    seed = random.getrandbits(64) if params.seed is None else params.seed & (2**64 - 1)
    try:
        sampler = _rust.SamplerState(
            **_changed(params),
            **_penalties(params),
            **_schedules(params),
            **(find_tokens(params, vocabulary) if token_lists is None else token_lists),
            logit_bias=list(_biases(params, vocabulary).items()),
            seed=seed,
            num_logprobs=0 if params.top_logprobs is None else max(1, params.top_logprobs),
            has_entropy=params.return_entropy,
        )
    except ValueError as error:
        raise RequestError(str(error), param=str(error).partition(" ")[0]) from error
    if prompt_tokens and sampler.reads_prompt:
        sampler.observe_prompt(prompt_tokens)
    return sampler


def _biases(params: SamplingParams, vocabulary: Vocabulary) -> dict[int, float]:
    """What is added to logits: the least there is to those of suppressed tokens, where the request says nothing."""
    suppressed = (token for token in vocabulary.suppressed_ids if token < vocabulary.vocab_size)
    return {**dict.fromkeys(suppressed, _LEAST_BIAS), **params.logit_bias}


def _check_tokens(params: SamplingParams, vocab_size: int) -> None:
    for name in ("logit_bias", "stop_token_ids", "allowed_token_ids"):
        tokens: Collection[int] = getattr(params, name) or ()
        unknown = [token for token in tokens if not 0 <= token < vocab_size]
        if unknown:
            text = f"{name} takes token ids from 0 to {vocab_size - 1} of this model, got {unknown[0]}"
            raise RequestError(text, param=name)


def _changed(params: SamplingParams) -> dict[str, Any]:
    """The fields that go as they are, where they are not their defaults."""
    return {name: value for name in _AS_THEY_ARE if (value := getattr(params, name)) != getattr(_PLAIN, name)}


def _penalties(params: SamplingParams) -> dict[str, Any]:
    """The penalties, and the numbers of tokens they see: 0 is none of them in requests, and all in the kernels."""
    given: dict[str, Any] = {}
    if params.repeat_last_n != 0:
        given = {name: getattr(params, name) for name in _PENALTIES}
        given["repeat_last_n"] = max(0, params.repeat_last_n)
    if params.dry_multiplier and params.dry_penalty_last_n != 0:
        given |= {"dry_multiplier": params.dry_multiplier, "dry_penalty_last_n": max(0, params.dry_penalty_last_n)}
    return given


def _schedules(params: SamplingParams) -> dict[str, Any]:
    """What changes over the answer; the kernels work it out for each token."""
    given: dict[str, Any] = {}
    if (temperature := params.temperature_schedule) is not None:
        given = {"temperature_end": temperature.end, "temperature_tokens": temperature.tokens}
        given["temperature_cosine"] = temperature.shape == "cosine"
    if (penalties := params.penalty_schedule) is not None:
        given |= {"penalty_warmup": penalties.warmup_tokens, "penalty_tokens": penalties.decay_tokens}
        given |= {"penalty_end": penalties.end, "penalty_cosine": penalties.shape == "cosine"}
    if params.bad_words_decay_tokens:
        given["bad_words_tokens"] = params.bad_words_decay_tokens
    return given


def find_tokens(params: SamplingParams, vocabulary: Vocabulary) -> dict[str, Any]:
    """Return what is said by texts and lists of tokens, as sorted tokens. Takes long for a large vocabulary."""
    given: dict[str, Any] = {}
    if params.dry_multiplier:
        given["dry_breakers"] = vocabulary.tokens_with(params.dry_sequence_breakers)
    if params.bad_words:
        given["bad_words"] = vocabulary.words_as_tokens(params.bad_words)
        given["bad_words_penalty"] = math.inf if params.bad_words_penalty is None else params.bad_words_penalty
    if params.allowed_token_ids is not None:
        given["allowed_tokens"] = sorted(params.allowed_token_ids)
    return given
