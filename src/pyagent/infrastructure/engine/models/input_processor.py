"""From a `ChatRequest` to the requests that the engine's loop runs: checked, tokenised, with sampler and grammar.

The only place where a request is refused for what is in it. Knows one model's tokenizer, conversations and grammars;
touches neither its runner nor the loop. Any thread may call.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from pyagent.core.errors import RequestError
from pyagent.core.messages import ChatRequest
from pyagent.core.runners.batch import PrefixKey
from pyagent.infrastructure.engine.models.answer_log import record_answers, without_prefix
from pyagent.infrastructure.engine.models.assistant_prefix import AssistantPrefix
from pyagent.infrastructure.engine.models.preprocessor import InputPreprocessor, PromptTokens
from pyagent.infrastructure.engine.request import Output, Request, Status, TokenLog
from pyagent.infrastructure.engine.sampling.beam_search import Search, check_beam
from pyagent.infrastructure.engine.sampling.parallel_sampling import Samples, num_samples
from pyagent.infrastructure.engine.sampling.sampler import answer_params, make_sampler

if TYPE_CHECKING:
    from pyagent.infrastructure.engine.grammar import Grammar, GrammarCompiler
    from pyagent.infrastructure.engine.sessions.sessions import Sessions


@dataclass(frozen=True, slots=True)
class ProcessedInput:
    """What all answers to a chat request have in common.

    `tokens` are the prompt's, `max_new_tokens` those that may follow it. `log` has the tokens of the only answer that
    are given already: an answer prefix, and what another engine delivered.
    """

    request: ChatRequest
    prompt: PromptTokens
    tokens: list[int]
    max_new_tokens: int
    log: TokenLog | None
    request_class: str
    deadline: float | None
    key: PrefixKey


class InputProcessor:
    """Make engine requests of one model's chat requests."""

    def __init__(
        self,
        preprocessor: InputPreprocessor,
        sessions: Sessions,
        grammars: GrammarCompiler,
        check_class: Callable[[str], str],
    ) -> None:
        """`check_class` returns the queue of a request class, or raises `RequestError`."""
        self._preprocessor = preprocessor
        self._tokenizer = preprocessor.tokenizer
        self._sessions = sessions
        self._grammars = grammars
        self._check_class = check_class
        self._ids = itertools.count(1)

    def process(
        self, request: ChatRequest, on_output: Callable[[Output], None], log: TokenLog | None = None
    ) -> Request:
        """Return the request for the engine; it stands for all its answers, and goes on after what `log` has.

        Raises `RequestError`; nothing has reached the engine's loop then.
        """
        num_answers = _check(request)
        common = self._process(request, log)
        make = partial(self._answer, common, on_output)
        answers = [make((), index) for index in range(num_answers)]
        lead = answers[0]
        if request.beam is not None:
            Search(lead, request.beam, request.n, make)
        resumed = None if common.log is None else _resume(lead, common.log)
        if resumed is not None and request.answer_prefix:
            on_output = without_prefix(on_output, len(request.answer_prefix) - len(resumed.text))
        prefix = common.prompt.assistant_prefix.told
        lead.on_output = record_answers(self._sessions, common.prompt.prompt, on_output, prefix, resumed)
        if num_answers > 1:
            Samples(answers, request.n, lead.on_output)
        return lead

    def _process(self, request: ChatRequest, log: TokenLog | None) -> ProcessedInput:
        prompt = self._preprocessor.tokenize(request, log)
        answer_prefix = AssistantPrefix.of(request.answer_prefix, self._tokenizer).tokens
        tokens = prompt.tokens
        context = self._preprocessor.context
        if context.num_tokens - len(tokens) <= len(answer_prefix):
            raise context.overflow(len(tokens) + len(answer_prefix))
        seconds = request.timeout_seconds
        return ProcessedInput(
            request,
            prompt,
            tokens,
            max_new_tokens=context.num_tokens - len(tokens),
            log=None if _has_several(request) else _with_prefix(answer_prefix, log),
            request_class=self._check_class(request.request_class),
            deadline=None if seconds is None else time.perf_counter() + seconds,
            key=PrefixKey(tenant=request.origin.tenant, priority=_eviction_priority(request.priority)),
        )

    def _answer(
        self,
        common: ProcessedInput,
        on_output: Callable[[Output], None],
        output_tokens: Sequence[int],
        index: int = 0,
    ) -> Request:
        """Return the request of one answer, after these tokens of it."""
        request, prefix, tokenizer = common.request, common.prompt.assistant_prefix, self._tokenizer
        params = request.sampling
        sampled = answer_params(request, index, len(tokenizer.end_ids))
        return Request(
            id=next(self._ids),
            tokens=[*common.tokens, *output_tokens],
            num_prompt_tokens=len(common.tokens),
            params=params,
            max_tokens=min(params.max_tokens or common.max_new_tokens, common.max_new_tokens),
            sampler=make_sampler(sampled, tokenizer.vocab_size, common.tokens),
            tokenizer=tokenizer,
            detokenizer=prefix.detokenizer(tokenizer, shows_special=not params.skip_special_tokens),
            grammar=prefix.accepted(self._grammar(request)),
            on_output=on_output,
            origin=request.origin,
            priority=request.priority,
            request_class=common.request_class,
            deadline=common.deadline,
            key=common.key,
            prompt=common.prompt.prompt,
            index=index,
            status=Status.FOLLOWING if index else Status.WAITING,
        )

    def _grammar(self, request: ChatRequest) -> Grammar | None:
        wanted = request.response_format
        if wanted is None or wanted.type == "text":
            return None
        return self._grammars.compile(wanted, request.origin.tenant)


def _check(request: ChatRequest) -> int:
    """Return how many answers are sampled at once. Raises `RequestError` naming the field out of its range."""
    request.sampling.validate()
    if request.beam is not None:
        check_beam(request, request.beam)
    num_answers = 1 if request.beam is not None else num_samples(request)
    if request.answer_prefix and _has_several(request):
        raise RequestError("answer_prefix begins one answer, and several are asked for", param="answer_prefix")
    return num_answers


def _has_several(request: ChatRequest) -> bool:
    return request.beam is not None or (request.best_of or request.n) > 1


def _with_prefix(answer_prefix: tuple[int, ...], log: TokenLog | None) -> TokenLog | None:
    """Return the log of an answer that begins with a prefix, and goes on with what `log` has."""
    if not answer_prefix:
        return log
    if log is None:
        return TokenLog(b"", answer_prefix)
    return TokenLog(b"", (*answer_prefix, *log.tokens), log.asked_seconds, log.first_token_seconds)


def _resume(request: Request, log: TokenLog) -> Output:
    try:
        return request.resume(log)
    except ValueError as error:
        raise RequestError(f"answer_prefix does not match response_format: {error}", param="answer_prefix") from error


def _eviction_priority(priority: int) -> int:
    """Return a request's priority, of which the lower goes first, as eviction has it: the higher stays longer."""
    return max(-(2**63), min(-priority, 2**63 - 1))
