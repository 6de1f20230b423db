"""From a chat request's messages, text or token ids to the tokens of its prompt.

Knows tokenizers and token logs; neither the engine's loop nor sampling. What is wrong with a prompt is raised here,
before anything costly is made of it.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pyagent.core.errors import ContextOverflowError, RequestError
from pyagent.core.messages import ChatRequest, ImagePart, Message
from pyagent.core.runners.batch import PrefixKey
from pyagent.infrastructure.engine.models.assistant_prefix import AssistantPrefix
from pyagent.infrastructure.engine.models.chat_format import AnswerFormat, ChatFormat
from pyagent.infrastructure.engine.sessions.sessions import Prompt, Sessions

if TYPE_CHECKING:
    from pyagent.infrastructure.engine.request import TokenLog
    from pyagent.infrastructure.engine.sessions.prompt_normalization import NormalizedPrompt
    from pyagent.infrastructure.engine.tokens import ModelTokenizer

_TRUNCATED_CONTEXTS = 8
"""Contexts that a prompt may have of which the end is read: all of it is tokenised, since the end alone might be
tokenised otherwise."""


@dataclass(frozen=True, slots=True)
class ContextLimit:
    """The most tokens of a sequence, and why there are not more, for the caller whose prompt is too long."""

    num_tokens: int
    reason: str

    def overflow(self, request: ChatRequest, num_tokens: int, *, is_more: bool = False) -> ContextOverflowError:
        """Return the error of a request's prompt with so many tokens, or with more than that."""
        text = f"the prompt has {'more than ' * is_more}{num_tokens} tokens, but {self.reason}"
        param = "messages" if request.messages else "prompt"
        return ContextOverflowError(text, num_tokens=num_tokens + is_more, limit=self.num_tokens, param=param)


@dataclass(frozen=True, slots=True)
class PromptTokens:
    """A request's prompt and the beginning of its answer, which is computed with it."""

    prompt: Prompt
    assistant_prefix: AssistantPrefix
    format: AnswerFormat
    echo: str = ""
    """The text of a prompt that is no conversation, where answers begin with it."""
    start: tuple[int, ...] = ()
    """What an encoder-decoder's answer begins after, behind the prompt, which the encoder reads."""

    @property
    def tokens(self) -> list[int]:
        """All that is computed before the first output token."""
        return [*self.prompt.tokens, *self.start, *self.assistant_prefix.tokens]

    @property
    def encoded(self) -> list[int]:
        """What an encoder reads."""
        return self.prompt.tokens if self.start else []

    @property
    def decoded(self) -> list[int]:
        """What the layers that answer read: all of it, but what an encoder reads."""
        return self.tokens[len(self.encoded) :]

    def key(self, adapter_id: int = 0, priority: int = 0) -> PrefixKey:
        """Return what KV of it is found again by."""
        tenant = self.prompt.tenant
        if not self.start:
            return PrefixKey(adapter_id, tenant=tenant, priority=priority)
        return PrefixKey.of_encoded(self.encoded, adapter_id=adapter_id, tenant=tenant, priority=priority)


class InputPreprocessor:
    """Tokenise the prompts of one model's requests. Any thread may call."""

    def __init__(  # noqa: PLR0913 - each is a part of its own
        self,
        tokenizer: ModelTokenizer,
        sessions: Sessions,
        context: ContextLimit,
        normalize: Callable[[Sequence[Message]], NormalizedPrompt],
        chat_format: ChatFormat,
        *,
        decoder_start: int | None = None,
    ) -> None:
        """`normalize` is what becomes of a conversation before it is rendered.

        An encoder-decoder's answers begin after `decoder_start`.
        """
        self._start = () if decoder_start is None else (decoder_start,)
        self.tokenizer = tokenizer
        self.chat_format = chat_format
        self.context = context
        self._sessions = sessions
        self._normalize = normalize

    def tokenize(self, request: ChatRequest, log: TokenLog | None = None) -> PromptTokens:
        """Return the tokens of a request's prompt: those in `log`, where another engine computed it before.

        Raises `RequestError`.
        """
        answer_format = self.chat_format.of(request)
        prompt = self._prompt(request, answer_format)
        if request.messages and (request.assistant_prefix or request.answer_prefix):
            prompt = self._past_thoughts(prompt)
        assistant_prefix = AssistantPrefix.of(request.assistant_prefix, self.tokenizer)
        if log is not None:  # the conversation it continued may be lost, or have gone on
            prompt = logged_prompt(prompt, log.prompt, (*self._start, *assistant_prefix.tokens))
        echo = self._text(request, prompt.tokens) if request.sampling.echo else ""
        return PromptTokens(prompt, assistant_prefix, answer_format, echo, self._start)

    def _text(self, request: ChatRequest, tokens: list[int]) -> str:
        """Return a prompt's text: as it was sent, or that of its tokens where no more, or not all of it, is read."""
        if request.prompt is None or request.truncate_prompt_tokens is not None:
            return self.tokenizer.shown(tokens)
        return request.prompt

    def conversation(self, asked: AnswerFormat) -> Prompt:
        """Return the prompt of a request's conversation. Raises `RequestError`."""
        request, normalized = asked.request, self._normalize(asked.messages)
        session, tenant = request.session or "", request.origin.tenant
        return self._sessions.prompt(normalized, asked.tools, session, tenant, asked.template_kwargs)

    def _prompt(self, request: ChatRequest, answer_format: AnswerFormat) -> Prompt:
        self._check_length(request)
        prompt = self._ended(self._whole_prompt(request, answer_format), request)
        if request.truncate_prompt_tokens is None:
            return prompt
        most = self._most_tokens(request, request.truncate_prompt_tokens)
        return prompt if len(prompt.tokens) <= most else Prompt(prompt.tokens[-most:], tenant=request.origin.tenant)

    def _ended(self, prompt: Prompt, request: ChatRequest) -> Prompt:
        """Return a prompt that ends with the token that the texts which an encoder reads end with; ids are as sent."""
        end = self.tokenizer.text_end_id
        if not self._start or end is None or request.prompt_token_ids or prompt.tokens[-1:] == [end]:
            return prompt
        return replace(prompt, tokens=[*prompt.tokens, end])

    def _most_tokens(self, request: ChatRequest, most: int) -> int:
        """Return how many tokens of a prompt are read; those that leave room for the answer where -1 is asked for."""
        limit = self.context.num_tokens
        if not (most == -1 or 1 <= most <= limit):
            text = f"truncate_prompt_tokens must be between 1 and this model's context of {limit}, or -1, got {most}"
            raise RequestError(text, param="truncate_prompt_tokens")
        return most if most > 0 else max(1, limit - max(1, request.sampling.max_tokens or 1))

    def _whole_prompt(self, request: ChatRequest, answer_format: AnswerFormat) -> Prompt:
        if request.messages:
            if any(isinstance(part, ImagePart) for message in request.messages for part in _parts(message)):
                raise RequestError("this model reads text only; send no images", param="messages")
            return self.conversation(answer_format)
        if request.assistant_prefix:
            raise RequestError("an answer is begun for a conversation; write it into the prompt", param="prompt")
        tokens = self._plain_tokens(request)
        if not tokens:
            raise RequestError("the prompt is empty; send at least one message or some text", param="prompt")
        return Prompt(tokens, tenant=request.origin.tenant)

    def _past_thoughts(self, prompt: Prompt) -> Prompt:
        """Return a prompt after which content stands."""
        closing = self.chat_format.before_content(prompt.tokens)
        if not closing:
            return prompt
        text = None if prompt.text is None else prompt.text.plus(closing)
        kept, last = prompt.tokens[:-1], self.tokenizer.shown(prompt.tokens[-1:])
        if last != "\n":  # two of them are one token, as where a template writes thoughts without a word
            kept, last = prompt.tokens, ""
        return replace(prompt, tokens=[*kept, *self.tokenizer.encode_continuation(last + closing)], text=text)

    def _plain_tokens(self, request: ChatRequest) -> list[int]:
        """Return the tokens of a prompt that is no conversation: ids as sent, or a text's."""
        vocab_size = self.tokenizer.vocab_size
        unknown = next((token for token in request.prompt_token_ids if not 0 <= token < vocab_size), None)
        if unknown is not None:
            text = f"prompt takes token ids from 0 to {vocab_size - 1} of this model, got {unknown}"
            raise RequestError(text, param="prompt")
        if request.prompt_token_ids:
            return list(request.prompt_token_ids)
        text, tenant = request.prompt or "", request.origin.tenant
        return self.tokenizer.encode_text(text, tenant, is_begun=not request.add_special_tokens)

    def _check_length(self, request: ChatRequest) -> None:
        """Raise `ContextOverflowError` for what is far too long, before anything is made of it."""
        limit = self.context.num_tokens * (1 if request.truncate_prompt_tokens is None else _TRUNCATED_CONTEXTS)
        texts = [request.prompt or "", *(message.text for message in request.messages)]
        num_ids = len(request.prompt_token_ids)
        if num_ids > limit or len(texts) > limit + 1 or self.tokenizer.is_longer_than(limit, texts):
            raise self.context.overflow(request, limit, is_more=True)


def logged_prompt(prompt: Prompt, logged: bytes, begun: Sequence[int]) -> Prompt:
    """Return the prompt by the tokens it had elsewhere, 32 bits each, which end with the answer's beginning."""
    tokens = array("I", logged).tolist()
    return replace(prompt, tokens=tokens[: len(tokens) - len(begun)], num_log_tokens=0, turn=None)


def _parts(message: Message) -> Sequence[object]:
    return message.content if isinstance(message.content, list) else ()
