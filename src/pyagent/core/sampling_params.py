"""How tokens are sampled: the fields of a request, each checked once. Names are those of OpenAI, vLLM and llama.cpp.

Knows no tokenizer and no logits; `pyagent._rust.SamplerState` does the sampling.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from functools import partial

import msgspec

from pyagent.core.activations import MOST_LENS_TOKENS, MOST_NEURONS
from pyagent.core.errors import RequestError
from pyagent.core.field_errors import check_all
from pyagent.core.sampling_schedules import MOST_TOKENS, PenaltySchedule, TemperatureSchedule


class LogitsProcessorSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A logits processor that a plugin brings, by its name, and what it is told; its own schema says what that is."""

    name: str
    args: dict[str, object] = {}


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True):
    """How the next token is sampled, and when the answer ends. Checked once, by `validate`.

    The order is part of the contract: `logit_bias`; `repetition_penalty`, `frequency_penalty`, `presence_penalty`;
    `no_repeat_ngram_size`; DRY; `bad_words`; `allowed_token_ids`; the grammar's mask; `logits_processors`;
    `temperature`; `top_n_sigma`, `epsilon_cutoff`, `eta_cutoff`, `top_k` and `top_k_entropy`, `top_h`, `typical_p`,
    `top_p`, `min_p`, XTC; sample. Each filter sees the probabilities of what those before it keep, as if they were all.
    `temperature=0` is greedy: it takes the likeliest token, the lowest id of equals, whatever the filters. With `seed`,
    a sample depends only on the seed, the position and the logits (and on the tokens before, with penalties and
    Mirostat).

    Ending an answer:

    - `stop` texts and `stop_token_ids` end it and are no part of it, as end-of-sequence tokens are, which `ignore_eos`
      ignores. None of these tokens is sampled before there are `min_tokens` tokens. With `include_stop_str_in_output`
      the text ends with what ended it.
    - Control tokens are written into the text unless `skip_special_tokens`; `return_token_ids` asks for the ids of the
      prompt's and the answer's tokens.
    - After `thinking_token_budget` tokens of reasoning what ends it is written (vLLM's): -1 is no bound, None what the
      settings say.

    Log probabilities:

    - `top_logprobs` of the likeliest tokens are told beside each sampled token, and its own. With
      `return_tokens_as_token_ids` tokens stand there as `token_id:` and their id, as many share a text (vLLM's).
    - With `flat_logprobs` both come as packed numbers by token id, which `Answer.flat_logprobs()` reads: for programs
      that ask for many (vLLM's; `Engine` alone has it, the HTTP APIs do not).
    - With `return_entropy` the entropy stands beside each, in nats, of all tokens that could have been sampled there:
      from the same logits as the log probabilities, which are those after penalties and masks and before temperature
      and filters (ours).
    - `prompt_logprobs` asks for the log probability of each token of the prompt, with so many of the likeliest beside
      it. With `echo` the answer begins with the prompt's text, and its `logprobs` with those of the prompt's tokens;
      only then `max_tokens` may be 0.

    Activations (ours):

    - `top_activations` of the neurons that wrote most, of all layers, are told of each sampled token.
    - `logit_lens` of the likeliest tokens that each layer would have said are told of each sampled token.

    Penalties:

    - `repeat_last_n` tokens are seen by the first three penalties: -1 is all, 0 none. What a token counts for falls by
      the factor `penalty_decay` with each token after it; `penalty_schedule` makes all of them stronger or weaker with
      the length of the answer (ours).
    - DRY subtracts `dry_multiplier * dry_base ** (length - dry_allowed_length)` from each token that would go on with
      a repetition of `length` tokens, among the last `dry_penalty_last_n` (-1 is all) and not across a token that holds
      one of `dry_sequence_breakers`.
    - `bad_words` are texts that the answer may not have, as tokens at the beginning of a word or inside one;
      `bad_words_penalty` is subtracted from the token that would complete one, and None forbids it. The penalty falls
      to nothing over the first `bad_words_decay_tokens`, and a prohibition ends after them; 0 is never (ours).

    Plugins:

    - `logits_processors` are those that plugins bring. A token that was excluded before them stays excluded.

    Filters:

    - `temperature_schedule`: the temperature goes to another one over the first tokens of the answer (ours).
    - `dynatemp_range`: the temperature follows the entropy, from `temperature` less this to `temperature` and this, by
      the power `dynatemp_exponent` of the entropy's part of the greatest there can be (llama.cpp).
    - `top_n_sigma`: logits at most so many standard deviations below the greatest (arXiv 2411.07641).
    - `epsilon_cutoff`, `eta_cutoff`: probabilities of at least this, or `min(eta, sqrt(eta) * exp(-entropy))`
      (arXiv 2210.15191).
    - `top_h`: the likeliest tokens whose own entropy is at most this part of the whole (arXiv 2509.02510).
    - `typical_p`: the tokens nearest to the expected surprise that reach this probability (arXiv 2202.00666).
    - `top_k_entropy`: this times `exp(entropy)` of the likeliest tokens, rounded, at least one: with 1 as many as the
      model hesitates between (ours). `top_k` holds too.
    - `min_p`: tokens at least this times as likely as the likeliest (arXiv 2407.01082). With `min_p_entropy` it is
      `min_p * exp(-min_p_entropy * entropy)`: less is cut where the model is unsure (ours). Both read the entropy, in
      nats, of the whole row at its temperature.
    - XTC: with `xtc_probability`, of all tokens of at least `xtc_threshold` only the least likely is left.
    - `mirostat` 1 or 2 takes the place of all filters and holds the mean surprise at `mirostat_tau` bits with the
      learning rate `mirostat_eta` (arXiv 2007.14966).

    `fields_set` names fields that a client gave as their default: a server whose own defaults differ is told them.
    """

    max_tokens: int | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: dict[int, float] = {}
    seed: int | None = None
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    top_logprobs: int | None = None
    flat_logprobs: bool = False
    return_entropy: bool = False
    stop_token_ids: tuple[int, ...] = ()
    min_tokens: int = 0
    skip_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    return_token_ids: bool = False
    return_tokens_as_token_ids: bool = False
    typical_p: float = 1.0
    epsilon_cutoff: float = 0.0
    eta_cutoff: float = 0.0
    top_n_sigma: float = 0.0
    top_h: float = 1.0
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    mirostat: int = 0
    mirostat_tau: float = 5.0
    mirostat_eta: float = 0.1
    dynatemp_range: float = 0.0
    dynatemp_exponent: float = 1.0
    temperature_schedule: TemperatureSchedule | None = None
    top_k_entropy: float = 0.0
    min_p_entropy: float = 0.0
    repeat_last_n: int = -1
    penalty_decay: float = 1.0
    penalty_schedule: PenaltySchedule | None = None
    no_repeat_ngram_size: int = 0
    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_penalty_last_n: int = -1
    dry_sequence_breakers: tuple[str, ...] = ("\n", ":", '"', "*")
    bad_words: tuple[str, ...] = ()
    bad_words_penalty: float | None = None
    bad_words_decay_tokens: int = 0
    allowed_token_ids: tuple[int, ...] | None = None
    prompt_logprobs: int | None = None
    top_activations: int | None = None
    logit_lens: int | None = None
    echo: bool = False
    logits_processors: tuple[LogitsProcessorSpec, ...] = ()
    thinking_token_budget: int | None = None
    fields_set: tuple[str, ...] = ()

    def with_given(self, names: Iterable[str]) -> SamplingParams:
        """Return the parameters with those of `names` in `fields_set` that are given as their default."""
        plain = SamplingParams()
        same = [name for name in names if getattr(self, name) == getattr(plain, name)]
        return msgspec.structs.replace(self, fields_set=tuple(sorted(same)))

    def validate(self) -> None:
        """Raise `RequestError` naming the fields that are out of their ranges."""
        check_all([*(partial(self._check_range, *bounds) for bounds in _RANGES), *self._checks()])

    def _check_range(self, name: str, low: float, high: float) -> None:
        value: float | None = getattr(self, name)
        if value is not None and not (math.isfinite(value) and low <= value <= high):
            raise RequestError(f"{name} must be between {_shown(low)} and {_shown(high)}, got {value}", param=name)

    def _checks(self) -> Iterator[Callable[[], None]]:
        """What is checked besides the ranges of numbers."""
        yield self._check_numbers
        yield from (partial(_check_texts, name, getattr(self, name), most) for name, most in _TEXTS)
        yield self._check_tokens
        yield partial(_check_processors, self.logits_processors)
        if self.temperature_schedule is not None:
            yield from self.temperature_schedule.checks(self.temperature)
        if self.penalty_schedule is not None:
            yield from self.penalty_schedule.checks()

    def _check_numbers(self) -> None:
        if self.max_tokens == 0 and not self.echo:
            raise RequestError("max_tokens must be between 1 and 2147483647, got 0", param="max_tokens")
        if self.flat_logprobs and (self.top_logprobs is None or self.echo):
            lacks = "needs top_logprobs" if self.top_logprobs is None else "cannot be combined with echo"
            raise RequestError(f"flat_logprobs {lacks}", param="flat_logprobs")
        if self.return_entropy and self.top_logprobs is None:
            raise RequestError("return_entropy needs log probabilities: ask for logprobs too", param="return_entropy")
        for name in _ABOVE_ZERO:
            if getattr(self, name) == 0:
                raise RequestError(f"{name} must be greater than 0, got 0", param=name)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            text = f"min_tokens must be at most max_tokens, got {self.min_tokens} and {self.max_tokens}"
            raise RequestError(text, param="min_tokens")

    def _check_tokens(self) -> None:
        if self.allowed_token_ids is not None and not self.allowed_token_ids:
            raise RequestError("allowed_token_ids is empty, so no token could be sampled", param="allowed_token_ids")
        if len(self.stop_token_ids) > _MAX_STOP_TOKENS:
            text = f"stop_token_ids takes up to {_MAX_STOP_TOKENS} token ids, got {len(self.stop_token_ids)}"
            raise RequestError(text, param="stop_token_ids")
        if self.stop_token_ids and (least := min(self.stop_token_ids)) < 0:
            raise RequestError(f"stop_token_ids takes token ids from 0 on, got {least}", param="stop_token_ids")


def _check_texts(name: str, texts: tuple[str, ...], most: int) -> None:
    if len(texts) > most or any(not text for text in texts):
        got = "an empty one" if len(texts) <= most else len(texts)
        raise RequestError(f"{name} takes up to {most} texts, none of them empty, got {got}", param=name)
    longest = max(map(len, texts), default=0)
    if name != "stop" and longest > _MAX_TEXT_CHARS:
        text = f"{name} takes texts of up to {_MAX_TEXT_CHARS} characters, got one of {longest}"
        raise RequestError(text, param=name)


def _check_processors(specs: tuple[LogitsProcessorSpec, ...]) -> None:
    names = [spec.name for spec in specs]
    if len(names) > _MAX_PROCESSORS:
        text = f"logits_processors takes up to {_MAX_PROCESSORS} processors, got {len(names)}"
        raise RequestError(text, param="logits_processors")
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise RequestError(f"logits_processors names {twice!r:.80} twice", param="logits_processors")


def _shown(bound: float) -> str:
    """Return a bound in digits: 2147483647 rather than 2.14748e+09."""
    return str(int(bound)) if float(bound).is_integer() else f"{bound:g}"


_MAX_STOP_TOKENS = 256
_MAX_PROCESSORS = 8
_RANGES: tuple[tuple[str, float, float], ...] = (
    ("thinking_token_budget", -1, MOST_TOKENS),
    ("max_tokens", 0, MOST_TOKENS),
    ("min_tokens", 0, MOST_TOKENS),
    ("temperature", 0, 2),
    ("top_p", 0, 1),
    ("top_k", 0, MOST_TOKENS),
    ("min_p", 0, 1),
    ("repetition_penalty", 0.01, 100),
    ("frequency_penalty", -2, 2),
    ("presence_penalty", -2, 2),
    ("top_logprobs", 0, 20),
    ("prompt_logprobs", 0, 20),
    ("top_activations", 1, MOST_NEURONS),
    ("logit_lens", 1, MOST_LENS_TOKENS),
    ("seed", -(2**63), 2**64 - 1),
    ("typical_p", 0, 1),
    ("epsilon_cutoff", 0, 1),
    ("eta_cutoff", 0, 1),
    ("top_n_sigma", 0, 100),
    ("top_h", 0, 1),
    ("xtc_probability", 0, 1),
    ("xtc_threshold", 0, 1),
    ("mirostat", 0, 2),
    ("mirostat_tau", 0, 100),
    ("mirostat_eta", 0, 1),
    ("dynatemp_range", 0, 2),
    ("dynatemp_exponent", 0, 100),
    ("top_k_entropy", 0, 1000),
    ("min_p_entropy", 0, 100),
    ("repeat_last_n", -1, MOST_TOKENS),
    ("penalty_decay", 0, 1),
    ("no_repeat_ngram_size", 0, 64),
    ("dry_multiplier", 0, 100),
    ("dry_base", 1, 100),
    ("dry_allowed_length", 0, MOST_TOKENS),
    ("dry_penalty_last_n", -1, MOST_TOKENS),
    ("bad_words_penalty", 0, 1000),
    ("bad_words_decay_tokens", 0, MOST_TOKENS),
)
_ABOVE_ZERO = ("top_p", "typical_p", "top_h", "xtc_threshold", "penalty_decay")
_TEXTS = (("stop", 16), ("bad_words", 256), ("dry_sequence_breakers", 32))
_MAX_TEXT_CHARS = 256
