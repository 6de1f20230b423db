"""A model in memory: its runner, tokenizer, conversations, grammars and engine, and what is asked of them together."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from pyagent import _rust
from pyagent.core.messages import CacheReport, ChatRequest, Hint
from pyagent.core.runners.kv_connector import MovableKv
from pyagent.core.runners.runner import ModelRunner
from pyagent.core.tokenizers import TokenizerOptions
from pyagent.infrastructure.engine.drafts.drafter import Drafter
from pyagent.infrastructure.engine.engine import Engine
from pyagent.infrastructure.engine.grammar import GrammarCompiler
from pyagent.infrastructure.engine.kv_moves.fingerprint import WeightFiles
from pyagent.infrastructure.engine.logits.processors import LogitsProcessors
from pyagent.infrastructure.engine.logits.vocabulary import ModelVocabulary
from pyagent.infrastructure.engine.memory.ledger import Reservation
from pyagent.infrastructure.engine.memory.process import heap_bytes
from pyagent.infrastructure.engine.models.adapter_names import AdapterPaths
from pyagent.infrastructure.engine.models.adapter_pool import AdapterPool
from pyagent.infrastructure.engine.models.answer_grammars import AnswerGrammars
from pyagent.infrastructure.engine.models.chat_format import ChatFormat
from pyagent.infrastructure.engine.models.draft_loading import DraftFault
from pyagent.infrastructure.engine.models.drafter_loading import Loaded
from pyagent.infrastructure.engine.models.input_processor import InputProcessor
from pyagent.infrastructure.engine.models.memory_estimate import DraftMemory, ModelMemory
from pyagent.infrastructure.engine.models.preprocessor import ContextLimit, InputPreprocessor
from pyagent.infrastructure.engine.models.request_templates import tokenizer_for
from pyagent.infrastructure.engine.options import EngineOptions
from pyagent.infrastructure.engine.request import PastTurn
from pyagent.infrastructure.engine.sessions.prompt_cache import ModelPrompts
from pyagent.infrastructure.engine.sessions.prompt_normalization import NormalizedPrompt, normalize
from pyagent.infrastructure.engine.sessions.sessions import Sessions
from pyagent.infrastructure.engine.step_executor import is_async
from pyagent.infrastructure.engine.tokens import ModelTokenizer

_RELEASE_SECONDS = 1.0


class LoadedModel:
    """A model in memory: its runner, its tokenizer, its grammars, its engine."""

    def __init__(  # noqa: PLR0913, PLR0917 - each is a part of its own
        self,
        runner: ModelRunner,
        path: Path,
        options: EngineOptions,
        memory: ModelMemory,
        runner_name: str,
        files: WeightFiles,
        adapters: AdapterPaths,
        draft: Loaded | None = None,
        draft_fault: DraftFault | None = None,
    ) -> None:
        """The runner's model, with what else `path` holds. `files` are its weights as they were found before.

        A `draft` model is closed with it, or at once where it cannot draft; why there is none is in `draft_fault`.

        The estimates in `memory` become what is really held; `CapacityError` where that does not fit.
        """
        self.runner = runner
        self.runner_name = runner_name
        self.path = path
        self.files = files
        self.draft = draft
        self.draft_fault = draft_fault or DraftFault(memory.model)
        self.is_closed = False
        self.load_seconds: dict[str, float] = {}
        """What loading took, by phase."""
        self._ending = threading.Lock()
        self._at_close: list[Callable[[], None]] = []
        self.tokenizer = self._load_tokenizer(path, memory.tokenizer, options.tokenizer)
        own_context = self.runner.context_length
        self.context_length = min(own_context, options.max_model_len or own_context, self.runner.kv_tokens)
        step = options.largest_step._replace(num_positions=self.context_length)
        memory.workspace.resize(self.runner.step_bytes(step))
        vocabulary = ModelVocabulary(self.tokenizer)
        self.logits = LogitsProcessors(options.logits, vocabulary, is_possible=self.runner.processes_logits)
        self.engine = Engine(
            self.runner,
            replace(options.limits, kv_settings=memory.kv_settings),
            options.queues(),
            logits=self.logits.step,
            drafts=None if options.drafts is None else options.drafts.of(self.runner),
            draft_memory=memory.drafts,
            draft_model=self._draft_model(options, memory.draft),
            is_async=is_async(options.async_scheduling, self.runner.num_threads, num_cores=_rust.available_cores()),
        )
        self.grammars = GrammarCompiler(vocabulary, memory.grammars, options.grammar_backends)
        # An encoder reads a prompt anew: nothing of it is a prefix of the next one.
        scope = "off" if self.runner.info.decoder_start is not None else options.session_scope
        self.sessions = Sessions(self.tokenizer, self.context_length, scope=scope, memory=memory.sessions)
        normalized = normalize if options.normalizes_prompts else NormalizedPrompt.unchanged
        self.prompts = ModelPrompts(
            self.tokenizer, self.sessions, self.runner, memory=memory.prompts, normalize=normalized
        )
        self.adapters = AdapterPool(
            memory.model, self.runner, adapters, memory.reserve, options.largest_step.num_tokens
        )
        self._options = options
        self.input_processor = self._processor(self.tokenizer, self.sessions)
        self._takes_hints = options.takes_hints

    def processor_for(self, request: ChatRequest) -> InputProcessor:
        """Return what makes engine requests of a chat request. Raises `RequestError` for its template."""
        if not request.chat_template:
            return self.input_processor
        is_trusted = self._options.trusts_request_templates
        tokenizer = tokenizer_for(request.chat_template, self.tokenizer, is_trusted=is_trusted)
        return self._processor(tokenizer, Sessions(tokenizer, self.context_length, scope="off"))

    def _processor(self, tokenizer: ModelTokenizer, sessions: Sessions) -> InputProcessor:
        options = self._options
        normalized = normalize if options.normalizes_prompts else NormalizedPrompt.unchanged
        chat_format = ChatFormat.of_model(tokenizer, options.dialect, options.dialects, options.thinking)
        return InputProcessor(
            InputPreprocessor(
                tokenizer,
                sessions,
                self._context,
                normalized,
                chat_format,
                decoder_start=self.runner.info.decoder_start,
            ),
            sessions,
            AnswerGrammars(self.grammars, chat_format),
            self.logits,
            self.engine.scheduler.queues.check,
            scores_prompts=self.runner.scores_prompts,
            info=self.runner.info,
            stream_interval=options.stream_interval,
        )

    def _load_tokenizer(self, path: Path, memory: Reservation, options: TokenizerOptions) -> ModelTokenizer:
        """The tokenizer; `memory` holds what the heap grew by, or the estimate where others freed more meanwhile."""
        before = heap_bytes()
        tokenizer = ModelTokenizer.load(path, vocab_size=self.runner.vocab_size, options=options)
        after = heap_bytes()
        if before is not None and after is not None and after > before:
            memory.resize(after - before)
        return tokenizer

    def _draft_model(self, options: EngineOptions, memory: DraftMemory | None) -> Drafter | None:
        if self.draft is not None:
            with self.draft_fault.noted():
                return self.draft.model_for(self.runner, self.tokenizer, options)
            self.draft.close()
            self.draft = None
        if memory is not None:
            memory.release()
        return None

    @property
    def takes_effort(self) -> bool:
        """Whether it can be told how much to think: by a variable of its chat template, or a bound on its tokens."""
        return self.input_processor.preprocessor.chat_format.takes_effort

    def drop_kv(self) -> None:
        """Forget what is cached and give its memory back; what runs goes on. Blocks for a moment."""
        until = time.monotonic() + _RELEASE_SECONDS
        while self.runner.stats().active and time.monotonic() < until:
            time.sleep(0.005)  # an answer's last output comes before its pages are released
        self.runner.pool.clear_index()
        self.runner.give_back()
        if self.draft is not None:
            self.draft.drop_kv()
        self.prompts.forget_pins()

    def hint(self, hint: Hint) -> None:
        """Take what the fleet says of a prompt's future."""
        if self._takes_hints:
            self.prompts.take(hint, self.adapters.ids())

    def explain(self, request: ChatRequest, adapter_id: int = 0) -> CacheReport:
        """What a request would find computed now; computes nothing. Raises `RequestError`."""
        asked = self.processor_for(request).preprocessor.tokenize(request)
        return self.prompts.explain(replace(asked.prompt, tokens=asked.tokens), asked.key(adapter_id))

    def remember(self, request: ChatRequest, past: PastTurn) -> None:
        """Take over a turn of the request's conversation that another engine computed."""
        self.processor_for(request).remember(request, past)

    @property
    def movable(self) -> MovableKv | None:
        """The runner, where it lets KV be read and written from outside."""
        runner = self.runner
        return runner if isinstance(runner, MovableKv) and not self.why_kv_stays else None

    @property
    def why_kv_stays(self) -> str:
        """Why its KV does not move between engines; empty where nothing stands in the way."""
        if self.has_states:
            return "its recurrent layers have a state, which is computed where it is needed"
        if self.runner.info.decoder_start is not None:
            return "it is an encoder-decoder, whose keys and values are those of one prompt alone"
        return ""

    @property
    def has_states(self) -> bool:
        """Whether some layers keep a state in place of keys and values."""
        runner = self.runner
        return isinstance(runner, MovableKv) and any(kind == "state" for kind, _, _ in runner.kv_shape.groups)

    def on_close(self, end: Callable[[], None]) -> bool:
        """Have something ended before the runner is; False, and it is not, when the model is closed already."""
        with self._ending:
            if not self.is_closed:
                self._at_close.append(end)
            return not self.is_closed

    def close(self) -> None:
        """Abort what runs, stop the engine's thread and free the memory. Safe to call twice."""
        with self._ending:
            self.is_closed = True
            ends, self._at_close = self._at_close, []
        for end in ends:
            end()
        self.engine.close()
        self.runner.close()
        if self.draft is not None:
            self.draft.close()
        self.adapters.release()

    @property
    def _context(self) -> ContextLimit:
        reason = (
            f"the model's context is {self.context_length}; shorten the prompt or use a model with a larger context"
        )
        if self.context_length == self.runner.kv_tokens < self.runner.context_length:
            held = f"the engine's KV memory holds {self.context_length}"
            settings = " or ".join(self.engine.scheduler.limits.kv_settings)
            reason = f"{held}; raise {settings}, or shorten the prompt"
        return ContextLimit(self.context_length, reason)
