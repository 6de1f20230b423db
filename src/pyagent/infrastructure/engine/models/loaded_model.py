"""A model in memory: its runner, tokenizer, grammars and engine, and how a request is checked and made ready for it."""

from __future__ import annotations

import itertools
import random
import time
from array import array
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from msgspec.structs import replace as replace_fields

from pyagent import _rust
from pyagent.core.errors import ContextOverflowError, RequestError
from pyagent.core.messages import (
    CacheReport,
    ChatRequest,
    Hint,
    ImagePart,
    Message,
    PromptTokensDetails,
    SamplingParams,
    Timings,
    Usage,
)
from pyagent.infrastructure.engine.engine import Engine
from pyagent.infrastructure.engine.grammar import Grammar, GrammarCompiler
from pyagent.infrastructure.engine.memory.ledger import Reservation
from pyagent.infrastructure.engine.memory.process import heap_bytes
from pyagent.infrastructure.engine.models.assistant_prefix import AssistantPrefix
from pyagent.infrastructure.engine.models.memory_estimate import ModelMemory
from pyagent.infrastructure.engine.options import EngineOptions
from pyagent.infrastructure.engine.request import Output, PastTurn, Request, Status, TokenLog
from pyagent.infrastructure.engine.runners.batch import BLOCK_TOKENS, PrefixKey
from pyagent.infrastructure.engine.runners.cpu import CpuRunner
from pyagent.infrastructure.engine.sampling.beam_search import Search, check_beam, num_offered
from pyagent.infrastructure.engine.sampling.parallel_sampling import Samples, num_samples
from pyagent.infrastructure.engine.sessions.cache_miss import explain_miss
from pyagent.infrastructure.engine.sessions.prompt_cache import ModelPrompts
from pyagent.infrastructure.engine.sessions.prompt_normalization import NormalizedPrompt, normalize
from pyagent.infrastructure.engine.sessions.sessions import Prompt, Sessions
from pyagent.infrastructure.engine.step_executor import is_async
from pyagent.infrastructure.engine.tokens import ModelTokenizer

_RELEASE_SECONDS = 1.0


class LoadedModel:
    """A model in memory: its runner, its tokenizer, its grammars, its engine."""

    def __init__(self, runner: CpuRunner, path: Path, options: EngineOptions, memory: ModelMemory) -> None:
        """The runner's model, with what else `path` holds.

        The estimates in `memory` become what is really held; `CapacityError` where that does not fit.
        """
        self.runner = runner
        self.tokenizer = self._load_tokenizer(path, memory.tokenizer)
        own_context = self.runner.context_length
        self.context_length = min(own_context, options.max_model_len or own_context, self.runner.kv_tokens)
        step = (options.limits.max_num_batched_tokens, options.limits.most_running, self.context_length)
        memory.workspace.resize(self.runner.model.step_bytes(*step))
        num_cores = _rust.available_cores()
        self.engine = Engine(
            self.runner,
            options.limits,
            options.queues(),
            is_async=is_async(options.async_scheduling, options.cpu.threads or num_cores, num_cores=num_cores),
        )
        self.grammars = GrammarCompiler(self.tokenizer, memory.grammars)
        self.sessions = Sessions(
            self.tokenizer, self.context_length, scope=options.session_scope, memory=memory.sessions
        )
        self.prompts = ModelPrompts(
            self.tokenizer,
            self.sessions,
            self.runner,
            memory=memory.prompts,
            normalize=normalize if options.normalizes_prompts else NormalizedPrompt.as_it_came,
        )
        self._normalize = normalize if options.normalizes_prompts else NormalizedPrompt.as_it_came
        self._takes_hints = options.takes_hints
        self._ids = itertools.count(1)

    def _load_tokenizer(self, path: Path, memory: Reservation) -> ModelTokenizer:
        """The tokenizer; `memory` holds what the heap grew by, or the estimate where others freed more meanwhile."""
        before = heap_bytes()
        tokenizer = ModelTokenizer.load(path, vocab_size=self.runner.vocab_size)
        after = heap_bytes()
        if before is not None and after is not None and after > before:
            memory.resize(after - before)
        return tokenizer

    def prepare(
        self, request: ChatRequest, on_output: Callable[[Output], None], log: TokenLog | None = None
    ) -> Request:
        """Check and tokenise a request, which goes on after what `log` says was drawn.

        Raises `RequestError`; nothing has reached the engine's loop then.
        """
        request.sampling.validate()
        if request.beam is not None:
            check_beam(request, request.beam)
        count = 1 if request.beam is not None else num_samples(request)
        prompt = self._tokenise(request)
        assistant_prefix = AssistantPrefix.of(request.assistant_prefix, self.tokenizer)
        prefix = self._prefix(request, count)
        if log is not None:  # the conversation it continued may be lost, or have gone on
            prompt = _of_log(prompt, log.prompt, assistant_prefix)
        tokens = [*prompt.tokens, *assistant_prefix.tokens]
        room = self.context_length - len(tokens)
        if room <= len(prefix):
            raise ContextOverflowError(
                f"the prompt has {len(tokens) + len(prefix)} tokens, but {self._context_reason()}",
                num_tokens=len(tokens) + len(prefix),
                limit=self.context_length,
            )
        request_class = self.engine.scheduler.queues.check(request.request_class)
        deadline = None if request.timeout_seconds is None else time.perf_counter() + request.timeout_seconds

        key = PrefixKey(tenant=request.origin.tenant, priority=_kept_longer(request.priority))

        def make(drawn: Sequence[int], index: int = 0) -> Request:
            return Request(
                id=next(self._ids),
                tokens=[*tokens, *drawn],
                num_prompt_tokens=len(tokens),
                params=request.sampling,
                max_tokens=min(request.sampling.max_tokens or room, room),
                sampler=self._sampler(request, tokens, index),
                tokenizer=self.tokenizer,
                detokenizer=assistant_prefix.detokenizer(
                    self.tokenizer, shows_special=not request.sampling.skip_special_tokens
                ),
                grammar=assistant_prefix.accepted(self._grammar(request)),
                on_output=on_output,
                origin=request.origin,
                priority=request.priority,
                request_class=request_class,
                deadline=deadline,
                key=key,
                prompt=prompt,
                index=index,
                status=Status.FOLLOWING if index else Status.WAITING,
            )

        members = [make((), index) for index in range(count)]
        if request.beam is not None:
            Search(members[0], request.beam, request.n, make)
        if prefix:
            log = (
                TokenLog(b"", (*prefix, *log.tokens), log.asked_seconds, log.first_token_seconds)
                if log
                else TokenLog(b"", prefix)
            )
        told = _resumed(members[0], log) if log is not None and count == 1 and request.beam is None else None
        if told is not None and prefix:
            on_output = _after_prefix(on_output, len(request.answer_prefix) - len(told.text))
        tell = members[0].on_output = self._logging(prompt, on_output, assistant_prefix, told)
        if count > 1:
            Samples(members, request.n, tell)
        return members[0]

    def _prefix(self, request: ChatRequest, count: int) -> tuple[int, ...]:
        """The tokens of the answer's beginning that is given. Raises `RequestError` where there cannot be one."""
        if not request.answer_prefix:
            return ()
        if count > 1 or request.beam is not None:
            raise RequestError("answer_prefix begins one answer, and several are asked for", param="answer_prefix")
        return AssistantPrefix.of(request.answer_prefix, self.tokenizer).tokens

    def _sampler(self, request: ChatRequest, tokens: list[int], index: int) -> _rust.SamplerState:
        """The sampler of one answer. The likelihoods of draws are needed where the best are told."""
        params = request.sampling
        if request.beam is not None:
            num_top = num_offered(request.beam, len(self.tokenizer.end_ids))
            params = SamplingParams(temperature=0, top_logprobs=num_top, logit_bias=params.logit_bias)
        if params.seed is not None and index:
            params = replace_fields(params, seed=(params.seed + index) & (2**64 - 1))
        if request.best_of is not None and params.top_logprobs is None:
            params = replace_fields(params, top_logprobs=0)
        sampler = make_sampler(params, self.runner.vocab_size)
        if params.repetition_penalty != 1.0:
            sampler.observe_prompt(tokens)
        return sampler

    def drop_kv(self) -> None:
        """Forget what is cached and give its memory back; what runs goes on. Blocks for a moment."""
        until = time.monotonic() + _RELEASE_SECONDS
        while self.runner.stats().active and time.monotonic() < until:
            time.sleep(0.005)  # an answer's last news comes before its pages are released
        self.runner.pool.clear_index()
        self.runner.give_back()
        self.prompts.forget_pins()

    def hint(self, hint: Hint) -> None:
        """Take what the fleet says of a prompt's future."""
        if self._takes_hints:
            self.prompts.take(hint)

    def explain(self, request: ChatRequest) -> CacheReport:
        """What a request would find computed now; computes nothing. Raises `RequestError`."""
        prompt, assistant_prefix = self._tokenise(request), AssistantPrefix.of(request.assistant_prefix, self.tokenizer)
        return self.prompts.explain(replace(prompt, tokens=[*prompt.tokens, *assistant_prefix.tokens]))

    def remember(self, request: ChatRequest, past: PastTurn) -> None:
        """Take over a turn of the request's conversation that another engine computed."""
        normalized = self._normalize(request.messages[: past.num_messages - 1])
        try:
            prompt = self.sessions.prompt(normalized, request.tools, request.session or "", request.origin.tenant)
        except RequestError:
            return  # the request itself says so
        assistant_prefix = AssistantPrefix.of(past.assistant_prefix, self.tokenizer)
        prompt = _of_log(prompt, past.prompt, assistant_prefix)
        prefix = AssistantPrefix.of(past.answer_prefix, self.tokenizer)
        self.sessions.record(prompt, past.answer, (*assistant_prefix.tokens, *prefix.tokens, *past.tokens))

    def _logging(
        self,
        prompt: Prompt,
        on_output: Callable[[Output], None],
        assistant_prefix: AssistantPrefix,
        told: Output | None,
    ) -> Callable[[Output], None]:
        """`on_output`, and before an answer's last news the conversation's log has it, after what was `told`."""
        said = defaultdict[int, list[Output]](lambda: [assistant_prefix.told])
        if told is not None:
            said[0].append(told)

        def tell(output: Output) -> None:
            said[output.index].append(output)
            try:
                if output.finish_reason in {"stop", "length"}:
                    news = said.pop(output.index)
                    drawn = [token for output in news for token in output.tokens]
                    self.sessions.record(prompt, "".join(output.text for output in news), drawn)
            finally:
                on_output(output)

        return tell

    def close(self) -> None:
        """Abort what runs, stop the engine's thread and free the memory. Safe to call twice."""
        self.engine.close()
        self.runner.close()

    def _context_reason(self) -> str:
        if self.context_length == self.runner.kv_tokens < self.runner.context_length:
            return f"the engine's KV memory holds {self.context_length}; raise engine.memory or shorten the prompt"
        return f"the model's context is {self.context_length}; shorten the prompt or use a model with a larger context"

    def _check_length(self, request: ChatRequest) -> None:
        """Raise `ContextOverflowError` for what is far too long, before anything is made of it."""
        texts = [request.prompt or "", *(message.text for message in request.messages)]
        if len(texts) > self.context_length + 1 or self.tokenizer.is_longer_than(self.context_length, texts):
            text = f"the prompt has more than {self.context_length} tokens, but {self._context_reason()}"
            raise ContextOverflowError(text, num_tokens=self.context_length + 1, limit=self.context_length)

    def _tokenise(self, request: ChatRequest) -> Prompt:
        self._check_length(request)
        if request.messages:
            if any(isinstance(part, ImagePart) for message in request.messages for part in _parts(message)):
                raise RequestError("this model reads text only; send no images", param="messages")
            normalized = self._normalize(request.messages)
            return self.sessions.prompt(normalized, request.tools, request.session or "", request.origin.tenant)
        if request.assistant_prefix:
            raise RequestError("an answer is begun for a conversation; write it into the prompt", param="prompt")
        unknown = [token for token in request.prompt_token_ids if not 0 <= token < self.runner.vocab_size]
        if unknown:
            text = f"prompt names token {unknown[0]}; the vocabulary has {self.runner.vocab_size}"
            raise RequestError(text, param="prompt")
        tokens = list(request.prompt_token_ids) or self.tokenizer.encode_text(
            request.prompt or "", request.origin.tenant
        )
        if not tokens:
            raise RequestError("the prompt is empty; send at least one message or some text", param="messages")
        return Prompt(tokens, tenant=request.origin.tenant)

    def _grammar(self, request: ChatRequest) -> Grammar | None:
        wanted = request.response_format
        if wanted is None or wanted.type == "text":
            return None
        return self.grammars.compile(wanted, request.origin.tenant)


def _kept_longer(priority: int) -> int:
    """A request's priority, of which the lower goes first, as an eviction policy has it: the higher stays longer."""
    return max(-(2**63), min(-priority, 2**63 - 1))


def _of_log(prompt: Prompt, logged: bytes, assistant_prefix: AssistantPrefix) -> Prompt:
    """The prompt by the tokens it had elsewhere, which end with the answer's beginning."""
    tokens = array("I", logged).tolist()
    return replace(prompt, tokens=tokens[: len(tokens) - len(assistant_prefix.tokens)], num_log_tokens=0, turn=None)


def _resumed(request: Request, log: TokenLog) -> Output:
    try:
        return request.resume(log)
    except ValueError as error:
        raise RequestError(f"answer_prefix does not match response_format: {error}", param="answer_prefix") from error


def _after_prefix(on_output: Callable[[Output], None], num_chars: int) -> Callable[[Output], None]:
    """`on_output` without the first characters: those of the prefix that a stop text might have begun in."""
    left = num_chars

    def tell(output: Output) -> None:
        nonlocal left
        num_skipped = min(left, len(output.text))
        left -= num_skipped
        on_output(replace_fields(output, text=output.text[num_skipped:]) if num_skipped else output)

    return tell


def _parts(message: Message) -> Sequence[object]:
    return message.content if isinstance(message.content, list) else ()


def usage_of(request: Request) -> Usage:
    """What a finished request used, all its answers together."""
    if request.search is not None:
        num_output_tokens = sum(len(answer.tokens) for answer in request.search.answers)
    else:
        num_output_tokens = sum(answer.num_output_tokens for answer in request.answers)
    return Usage(
        prompt_tokens=request.num_prompt_tokens,
        completion_tokens=num_output_tokens,
        total_tokens=request.num_prompt_tokens + num_output_tokens,
        prompt_tokens_details=PromptTokensDetails(cached_tokens=request.num_cached or 0),
        timings=timings_of(request),
        cache=_cache_report(request),
    )


def timings_of(request: Request) -> Timings:
    """Where a finished request's time went; its shares of steps are those of all its answers."""
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
        note=prompt.note,
        normalized=list(prompt.normalized.names),
        miss=explain_miss(prompt, num_cached, BLOCK_TOKENS, request.tokenizer),
    )


def make_sampler(params: SamplingParams, vocab_size: int) -> _rust.SamplerState:
    """The Rust state of a request's sampling. Raises `RequestError` for a value it refuses."""
    for name, tokens in (("logit_bias", params.logit_bias), ("stop_token_ids", params.stop_token_ids)):
        unknown = [token for token in tokens if not 0 <= token < vocab_size]
        if unknown:
            raise RequestError(f"{name} names token {unknown[0]}; the vocabulary has {vocab_size}", param=name)
    seed = random.getrandbits(64) if params.seed is None else params.seed & (2**64 - 1)
    try:
        return _rust.SamplerState(
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
