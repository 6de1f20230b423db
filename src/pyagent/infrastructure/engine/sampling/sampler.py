"""A request's sampling parameters as the state that the kernels sample with, checked on the way."""

from __future__ import annotations

import random

from msgspec.structs import replace

from pyagent import _rust
from pyagent.core.errors import RequestError
from pyagent.core.messages import ChatRequest, SamplingParams
from pyagent.infrastructure.engine.sampling.beam_search import num_offered


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


def make_sampler(params: SamplingParams, vocab_size: int, prompt_tokens: list[int] | None = None) -> _rust.SamplerState:
    """Return the state that an answer to `prompt_tokens` is sampled with.

    Raises `RequestError` for a value it refuses.
    """
    for name, tokens in (("logit_bias", params.logit_bias), ("stop_token_ids", params.stop_token_ids)):
        unknown = [token for token in tokens if not 0 <= token < vocab_size]
        if unknown:
            text = f"{name} takes token ids from 0 to {vocab_size - 1} of this model, got {unknown[0]}"
            raise RequestError(text, param=name)
    seed = random.getrandbits(64) if params.seed is None else params.seed & (2**64 - 1)
    try:
        sampler = _rust.SamplerState(
            temperature=params.temperature,
            top_k=params.top_k,
            top_p=params.top_p,
            min_p=params.min_p,
            repetition_penalty=params.repetition_penalty,
            frequency_penalty=params.frequency_penalty,
            presence_penalty=params.presence_penalty,
            logit_bias=list(params.logit_bias.items()),
            seed=seed,
            num_logprobs=0 if params.top_logprobs is None else max(1, params.top_logprobs),
        )
    except ValueError as error:
        raise RequestError(str(error), param="sampling") from error
    if prompt_tokens and params.repetition_penalty != 1.0:
        sampler.observe_prompt(prompt_tokens)
    return sampler
