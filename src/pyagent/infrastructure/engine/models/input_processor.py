"""From a `ChatRequest` to the requests that the engine's loop runs: checked, tokenised, with sampler and grammar.

The only place where a request is refused for what is in it. Knows one model's tokenizer, conversations and grammars;
touches neither its runner nor the loop. Any thread may call.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from pyagent.core.errors import RequestError, UnsupportedError
from pyagent.core.messages import ChatRequest, SamplingParams, check_echo
from pyagent.core.runners.batch import PrefixKey, Probe
from pyagent.infrastructure.engine.activations import ActivationLog, make_probe
from pyagent.infrastructure.engine.answer_text import AnswerText
from pyagent.infrastructure.engine.models.answer_grammars import AnswerGrammars, Beside, at_once
from pyagent.infrastructure.engine.models.answer_log import record_answer, record_answers, without_prefix
from pyagent.infrastructure.engine.models.assistant_prefix import AssistantPrefix
from pyagent.infrastructure.engine.models.preprocessor import InputPreprocessor, PromptTokens
from pyagent.infrastructure.engine.prompt_logprobs import make_scores, with_prompt
from pyagent.infrastructure.engine.request import Output, PastTurn, Request, Status, TokenLog
from pyagent.infrastructure.engine.sampling.beam_search import Search, check_beam
from pyagent.infrastructure.engine.sampling.parallel_sampling import Samples, num_samples
from pyagent.infrastructure.engine.sampling.sampler import answer_params, find_tokens, make_sampler

if TYPE_CHECKING:
    from pyagent.core.runners.runner import RunnerInfo
    from pyagent.infrastructure.engine.grammar import Grammar
    from pyagent.infrastructure.engine.logits.processors import LogitsProcessors
    from pyagent.infrastructure.engine.logits.row_processors import RowProcessor
    from pyagent.infrastructure.engine.sessions.sessions import Sessions
    from pyagent.infrastructure.engine.tokens import Detokenizer


@dataclass(frozen=True, slots=True)
class ProcessedInput:
    """What all answers to a chat request have in common.

    `tokens` are the prompt's, `max_new_tokens` those that may follow it. `given` is what another engine delivered,
    `log` all tokens of the only answer that there are already, an answer prefix included. `token_lists` are those that
    sampling fields name, `processors` those of the first answer. The answer may be like the tokens `predicted`.
    """

    request: ChatRequest
    prompt: PromptTokens
    tokens: list[int]
    max_new_tokens: int
    given: TokenLog | None
    log: TokenLog | None
    request_class: str
    deadline: float | None
    key: PrefixKey
    token_lists: dict[str, Any]
    processors: tuple[RowProcessor, ...]
    predicted: tuple[int, ...] = ()
    probe: Probe | None = None


class InputProcessor:
    """Make engine requests of one model's chat requests."""

    def __init__(  # noqa: PLR0913 - each is a part of its own
        self,
        preprocessor: InputPreprocessor,
        sessions: Sessions,
        grammars: AnswerGrammars,
        logits: LogitsProcessors,
        check_class: Callable[[str], str],
        *,
        scores_prompts: bool,
        info: RunnerInfo,
        stream_interval: int = 1,
    ) -> None:
        """`check_class` returns the queue of a request class, or raises `RequestError`."""
        self._scores_prompts = scores_prompts
        self._info = info
        self._stream_interval = stream_interval
        self.preprocessor = preprocessor
        self._tokenizer = preprocessor.tokenizer
        self._sessions = sessions
        self._grammars = grammars
        self._logits = logits
        self._check_class = check_class
        self._ids = itertools.count(1)

    async def process(  # noqa: PLR0913 - each is a part of its own
        self,
        request: ChatRequest,
        on_output: Callable[[Output], None],
        log: TokenLog | None = None,
        *,
        deadline: float | None = None,
        adapter_id: int = 0,
        beside: Beside = at_once,
    ) -> Request:
        """Return the request for the engine; it stands for all its answers, and goes on after what `log` has.

        What takes long is done `beside` the event loop. Raises `RequestError`; nothing has reached the engine's loop
        then.
        """
        num_answers = _check(request)
        common = await beside(self._process, request, log, deadline, adapter_id)
        grammar = await self._grammars.compile(common.prompt, beside)
        return await beside(self._request, common, grammar, num_answers, on_output)

    def _request(
        self, common: ProcessedInput, grammar: Grammar | None, num_answers: int, on_output: Callable[[Output], None]
    ) -> Request:
        request, log = common.request, common.given
        make = partial(self._answer, common, grammar, on_output)
        answers = [make((), index) for index in range(num_answers)]
        lead = answers[0]
        if request.beam is not None:
            Search(lead, request.beam, request.n, make)
        resumed = None if common.log is None else _resume(lead, common.log)
        if log is None or _has_several(request):  # else the engine that began the answer has delivered it
            on_output = self._with_prompt(common.prompt, lead, on_output)
        if resumed is not None and request.answer_prefix:
            num_untold = max(0, len(request.answer_prefix) - len(resumed.text))
            on_output = without_prefix(on_output, min(num_untold, lead.text.num_held))
        stream = self._stream(common.prompt, request.sampling)
        lead.on_output = record_answers(self._sessions, common.prompt, stream, on_output, resumed)
        if num_answers > 1:
            Samples(answers, request.n, lead.on_output)
        return lead

    def remember(self, request: ChatRequest, past: PastTurn) -> None:
        """Take over a turn of the request's conversation that another engine computed.

        Its answer is read again from its tokens. One that was cut within what a parser reads is left: the next prompt
        renders it anew.
        """
        try:
            before = replace(
                request,
                messages=request.messages[: past.num_messages - 1],
                assistant_prefix=past.assistant_prefix,
                answer_prefix=past.answer_prefix,
                sampling=replace(request.sampling, stop=()),
            )
            asked = self.preprocessor.tokenize(before, TokenLog(past.prompt))
        except RequestError:
            return  # the request itself says so
        begun = AssistantPrefix.of(past.answer_prefix, self._tokenizer)
        text = self._text(asked, before.sampling, is_held=asked.format.needs_grammar)
        parsed = text.replayed((*begun.tokens, *past.tokens))
        answer = Output(
            parsed.content,
            tokens=(*begun.tokens, *past.tokens),
            tool_calls=parsed.tool_calls,
            written=text.written if text.is_parsed else None,
        )
        if not text.is_parsed:
            answer = replace(answer, text=past.answer.removeprefix(past.assistant_prefix))
        if past.assistant_prefix + answer.text == past.answer:
            record_answer(self._sessions, asked, self._stream(asked, before.sampling), [answer])

    def _with_prompt(
        self, prompt: PromptTokens, lead: Request, on_output: Callable[[Output], None]
    ) -> Callable[[Output], None]:
        """Return `on_output` that begins with the prompt, where that is asked for; the lead computes its scores."""
        request = prompt.format.request
        lead.scores = make_scores(request.sampling, lead.tokens[: lead.num_prompt_tokens], request.n)
        if lead.scores is not None and not self._scores_prompts:
            is_asked = request.sampling.prompt_logprobs is not None
            fields = ["prompt_logprobs"] if is_asked else ["echo", "top_logprobs"]
            asked = "prompt_logprobs asks" if is_asked else "echo with logprobs asks"
            text = f"{asked} for what this model's runner does not give: it gives no log probabilities of prompts"
            raise UnsupportedError(text, backend="native", fields=fields)
        is_told = prompt.echo or lead.scores is not None
        return with_prompt(on_output, prompt.echo, lead.scores) if is_told else on_output

    def _process(
        self, request: ChatRequest, log: TokenLog | None, deadline: float | None, adapter_id: int
    ) -> ProcessedInput:
        prompt = self.preprocessor.tokenize(request, log)
        if request.beam is not None and (prompt.format.must_call or prompt.format.has_strict):
            text = "beam search cannot be combined with forced or strict calls; leave one of them out"
            raise RequestError(text, param="tool_choice")
        answer_prefix = AssistantPrefix.of(request.answer_prefix, self._tokenizer).tokens
        tokens = prompt.tokens
        context = self.preprocessor.context
        if context.num_tokens - len(tokens) <= len(answer_prefix):
            raise context.overflow(request, len(tokens) + len(answer_prefix))
        return ProcessedInput(
            request,
            prompt,
            tokens,
            max_new_tokens=context.num_tokens - len(tokens),
            given=log,
            log=None if _has_several(request) else _with_prefix(answer_prefix, log),
            request_class=self._check_class(request.request_class),
            deadline=deadline,
            key=prompt.key(adapter_id, _eviction_priority(request.priority)),
            token_lists=find_tokens(request.sampling, self._tokenizer),
            processors=self._processors(request),
            predicted=self._predicted(request.prediction, context.num_tokens),
            probe=make_probe(request.sampling, self._info, _most_told(request, context.num_tokens - len(tokens))),
        )

    def _predicted(self, text: str, most: int) -> tuple[int, ...]:
        """Return the tokens of a predicted answer, as many as an answer can have."""
        return AssistantPrefix.of(self._tokenizer.beginning(most, text), self._tokenizer).tokens[:most]

    def _processors(self, request: ChatRequest) -> tuple[RowProcessor, ...]:
        sampled = answer_params(request, 0, num_end_ids=0)
        is_greedy = sampled.temperature == 0 and sampled.top_logprobs is None
        return self._logits.make(request.sampling.logits_processors, is_greedy=is_greedy)

    def _answer(
        self,
        common: ProcessedInput,
        compiled: Grammar | None,
        on_output: Callable[[Output], None],
        output_tokens: Sequence[int],
        index: int = 0,
    ) -> Request:
        """Return the request of one answer, after these tokens of it."""
        request, prefix, tokenizer = common.request, common.prompt.assistant_prefix, self._tokenizer
        params = request.sampling
        sampled = answer_params(request, index, len(tokenizer.end_ids))
        grammar = None if compiled is None else compiled.fork()
        chat_format, answer_format = self.preprocessor.chat_format, common.prompt.format
        is_first = index == 0 and not output_tokens
        processors = common.processors if is_first else tuple(one.for_another() for one in common.processors)
        may_think = grammar is not None and answer_format.thinks and not prefix.tokens
        is_begun = bool(prefix.tokens or request.answer_prefix)
        called = answer_format.dialect if answer_format.needs_grammar else None
        return Request(
            id=next(self._ids),
            tokens=[*common.tokens, *output_tokens],
            num_prompt_tokens=len(common.tokens),
            params=params,
            max_tokens=_max_tokens(params, common.max_new_tokens),
            sampler=make_sampler(sampled, tokenizer, common.prompt.decoded, token_lists=common.token_lists),
            tokenizer=tokenizer,
            text=self._text(common.prompt, params, is_held=called is not None and grammar is not None),
            grammar=grammar,
            reasoning_ids=chat_format.reasoning_ids if may_think else frozenset(),
            opener_ids=chat_format.opener_ids(called) if grammar is not None and called else frozenset(),
            spans_reasoning=called is not None and called.spans_reasoning,
            thinking=None if is_begun else chat_format.thinking_budget(answer_format, sampled),
            on_output=on_output,
            origin=request.origin,
            priority=request.priority,
            is_movable=request.is_movable,
            request_class=common.request_class,
            deadline=common.deadline,
            key=common.key,
            prompt=common.prompt.prompt,
            index=index,
            processors=processors,
            predicted=common.predicted,
            activations=None if common.probe is None else ActivationLog(common.probe, tokenizer),
            status=Status.FOLLOWING if index else Status.WAITING,
            stream_interval=self._stream_interval,
            num_echoed=len(common.prompt.echo),
        )

    def _text(self, prompt: PromptTokens, params: SamplingParams, *, is_held: bool) -> AnswerText:
        """Return the text of an answer that goes on after the prompt."""
        chat_format, answer_format = self.preprocessor.chat_format, prompt.format
        is_begun = bool(prompt.assistant_prefix.tokens or answer_format.request.answer_prefix)
        is_reasoning = not is_begun and chat_format.is_open(prompt.prompt.tokens)
        parser = answer_format.parser(is_reasoning=is_reasoning, is_held=is_held)
        return AnswerText(
            prompt.assistant_prefix.after(self._stream(prompt, params)),
            params.stop,
            parser,
            includes_stop=params.include_stop_str_in_output,
            num_chars=len(prompt.echo),
        )

    def _stream(self, prompt: PromptTokens, params: SamplingParams) -> Detokenizer:
        """Return a stream of an answer's text, with the control tokens that its parser or its client must see."""
        chat_format, dialect = self.preprocessor.chat_format, prompt.format.dialect
        shown = frozenset[int]() if dialect is None else chat_format.shown_ids(dialect)
        shown |= chat_format.tags_of(prompt.format.request)
        is_further = not (prompt.format.messages or prompt.start)
        return self._tokenizer.detokenizer(
            shows_special=not params.skip_special_tokens, shown=shown, is_further=is_further
        )


def _check(request: ChatRequest) -> int:
    """Return how many answers are sampled at once. Raises `RequestError` naming the field out of its range."""
    request.sampling.validate()
    check_echo(request)
    if request.beam is not None:
        check_beam(request, request.beam)
    num_answers = 1 if request.beam is not None else num_samples(request)
    if request.answer_prefix and _has_several(request):
        raise RequestError("answer_prefix begins one answer, and several are asked for", param="answer_prefix")
    return num_answers


def _most_told(request: ChatRequest, most: int) -> int:
    """Return how many output tokens all answers together may have."""
    return _max_tokens(request.sampling, most) * (request.best_of or request.n)


def _max_tokens(params: SamplingParams, most: int) -> int:
    """Return how many tokens are sampled: one also where none is wanted, by the step that ends the prompt."""
    return most if params.max_tokens is None else min(max(1, params.max_tokens), most)


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
