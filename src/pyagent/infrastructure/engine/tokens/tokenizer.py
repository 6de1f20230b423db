"""A model's tokenizer: text and conversations to token ids, ids to text.

Message contents are never read as control tokens: a user, a document or a tool that writes `<|im_end|>` has written
those characters, not ended its turn.
"""

from __future__ import annotations

import contextlib
import copy
import json
import re
from array import array
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain, islice, pairwise
from pathlib import Path
from typing import cast

import msgspec
from tokenizers import AddedToken

from pyagent.core.errors import ModelError, RequestError
from pyagent.core.messages import Message, Tool
from pyagent.core.tokenizers import NO_OPTIONS, Tokenizer, TokenizerOptions
from pyagent.infrastructure.engine.tokens.detokenizer import Detokenizer, TokenBytes
from pyagent.infrastructure.engine.tokens.huggingface import HuggingFaceTokenizer
from pyagent.infrastructure.engine.tokens.markers import BREAK, Markers
from pyagent.infrastructure.engine.tokens.segment_cache import SegmentCache
from pyagent.infrastructure.engine.tokens.templates import ChatTemplate
from pyagent.infrastructure.engine.tokens.token_texts import TokenTexts

# Names of tokens that end an answer, in the families supported, beside those a file declares.
_END_TOKENS = (
    *("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|endoftext|>", "<|end_of_text|>", "<end_of_turn>", "</s>"),
    *("<|call|>", "<|return|>", "<turn|>", "<|tool_response>"),
)
# Parts of prompts whose tokens are kept: many prompts begin with the same system message, or as one before did.
_PART_CHARS = 1024
_KEPT_CHARS = 500_000
_MAX_KEPT_CHARS = 32_768
# No byte-level tokenizer of which it is said looks across the border of a word and the space before the next.
_BETWEEN_WORDS = re.compile(r"(?<=[A-Za-z])(?= [A-Za-z])")
_LETTER_SPACE = re.compile(r"[A-Za-z] ")
# With more control tokens (Gemma has 6,000) looking for them would take longer than it saves.
_MAX_CUTS = 256
_MAX_CUT_CHARS = 64
# Texts longer than so many characters a token are looked at before they are read, by so much more than would fit: the
# tokens at the end of a text that is cut may be others than those of the whole.
_CHARS_A_TOKEN, _MARGIN = 8, 1.25
# Letters put before a text that continues another one; one of them does not melt into what follows.
_ANCHORS = "a.0"


class ModelTokenizer:
    """Tokenizer, chat template and end tokens of one model."""

    def __init__(self, tokenizer: Tokenizer, *, template: ChatTemplate | None, name: str) -> None:
        self.tokenizer = tokenizer
        self.template = template
        self.begin_id = tokenizer.begin_id
        self.name = name
        self.vocab_size = tokenizer.num_tokens
        self._token_bytes = TokenBytes(tokenizer)
        self.added = _added(tokenizer)
        self.markers = Markers(self.added.values(), template)
        # Where the library cuts a text is known; of another tokenizer nothing is.
        is_known = isinstance(tokenizer, HuggingFaceTokenizer)
        self._cuts = _cuts(self.added.values()) if is_known else None
        self.suppressed_ids = tokenizer.suppressed_ids if is_known else frozenset[int]()
        self._cuts_words = (
            is_known
            and tokenizer.cuts_words
            and not any(token.rstrip or _LETTER_SPACE.search(token.content) for token in self.added.values())
        )
        self._kept = SegmentCache(self._part, most_chars=_KEPT_CHARS, longest=_MAX_KEPT_CHARS)
        ends = (self.token_id(text) for text in _END_TOKENS)
        self.text_end_id = min(tokenizer.end_ids, default=None)
        """What an encoder's texts end with."""
        self.end_ids = frozenset(tokenizer.end_ids) | {token for token in ends if token is not None}

    def token_id(self, text: str) -> int | None:
        """Return the token that is added to the vocabulary under this name, a control token say."""
        return self._name_to_id.get(text)

    @cached_property
    def _name_to_id(self) -> dict[str, int]:
        return {token.content: token_id for token_id, token in self.added.items()}

    @classmethod
    def load(cls, path: Path, *, vocab_size: int, options: TokenizerOptions = NO_OPTIONS) -> ModelTokenizer:
        """Read a model's tokenizer and chat template. Raises `ModelError` saying what is wrong with its files."""
        from pyagent.infrastructure.engine.tokens.loading import load_parts  # readers of all formats

        tokenizer, template = load_parts(path, options)
        if tokenizer.num_tokens > vocab_size:
            text = f"{path}: the tokenizer has {tokenizer.num_tokens} tokens, the model {vocab_size}"
            raise ModelError(text, model=str(path))
        loaded = cls(tokenizer, template=template, name=str(path))
        loaded.vocab_size = vocab_size
        return loaded

    @property
    def template_texts(self) -> Mapping[str, str]:
        """The texts that templates know by name: the tokens that begin and end a text."""
        if self.template is not None:
            return self.template.texts
        ids = {"bos_token": self.begin_id, "eos_token": min(self.end_ids, default=None)}
        return {name: self.added[token].content for name, token in ids.items() if token in self.added}

    def with_template(self, template: ChatTemplate) -> ModelTokenizer:
        """Return the same tokenizer with another chat template."""
        other = copy.copy(self)
        other.template, other.markers = template, Markers(self.added.values(), template)
        return other

    def encode_text(self, text: str, tenant: str = "", *, is_begun: bool = False) -> list[int]:
        """Return the tokens of a tenant's text; control tokens in it are read as such. Empty text has none.

        It is the start of a document, with the token that begins one, unless it `is_begun`.
        """
        if not text:
            return []
        ids = self._in_parts(text, tenant)
        if is_begun:
            return ids
        return ids if self.begin_id is None or ids[:1] == [self.begin_id] else [self.begin_id, *ids]

    def render_chat(
        self,
        messages: Sequence[Message],
        tools: Sequence[Tool] = (),
        template_kwargs: Mapping[str, object] | None = None,
    ) -> str:
        """A conversation as the template's text, up to where its answer begins; markers in messages are parted."""
        if self.template is None:
            raise RequestError(
                f"{self.name} has no chat template; use the completions API with a prompt, or set engine.chat_template",
                param="messages",
            )
        if not any(message.text.strip() or message.tool_calls for message in messages):
            raise RequestError("the prompt is empty; send at least one message with text", param="messages")
        try:
            plain = [self._plain(message) for message in messages]
            offered = self.markers.parted([msgspec.to_builtins(tool) for tool in tools])
            more = self.markers.parted(dict(template_kwargs)) if template_kwargs else None
        except RecursionError as error:
            text = "the arguments of a call, a tool or chat_template_kwargs are nested too deep; send them less deep"
            raise RequestError(text, param="messages") from error
        return self.template.render(plain, offered, more)

    def encode_rendered(self, rendered: str, tenant: str = "") -> list[int]:
        """The tokens of a text that `render_chat` made of a tenant's conversation."""
        first, *others = rendered.split(BREAK)
        ids = self._in_parts(first, tenant)
        for piece in others:
            ids.extend(self.encode_further(piece))
        return ids

    def _in_parts(self, text: str, tenant: str) -> list[int]:
        """As the tokenizer encodes it whole; parts that earlier texts of the tenant had too are not encoded again."""
        cuts = [match.start() for match in self._cuts.finditer(text)] if self._cuts else []
        ids: list[int] = []
        for start, end in pairwise(sorted({0, *cuts, len(text)})):
            for part in self._words(text[start:end]):
                ids.extend(self._kept.tokens_of(part, tenant))
        return ids

    def _words(self, text: str) -> Iterator[str]:
        """The text in parts of some length, where it can be cut between words: those of its beginning stay the same."""
        start = 0
        while self._cuts_words and (found := _BETWEEN_WORDS.search(text, start + _PART_CHARS)):
            yield text[start : found.start()]
            start = found.start()
        yield text[start:]

    def _part(self, text: str) -> array[int]:
        return array("I", self._ids(text))

    def _ids(self, text: str) -> list[int]:
        """As the tokenizer encodes it."""
        return list(self.tokenizer.encode(text))

    def is_longer_than(self, num_tokens: int, texts: Sequence[str]) -> bool:
        """Whether texts surely have more tokens together, by their beginning; False where it is not worth looking.

        Texts are not read whole: a tokenizer takes seconds and gigabytes for one word of some megabytes.
        """
        num_chars, most = sum(map(len, texts)), num_tokens * _CHARS_A_TOKEN
        if num_chars <= most:
            return False
        if num_chars > num_tokens * self._longest_token:
            return True
        begun = "".join(islice(chain.from_iterable(text[:most] for text in texts), most))
        return len(self._ids(begun)) > num_tokens * _MARGIN

    def beginning(self, num_tokens: int, text: str) -> str:
        """Return so much of a text that it has about so many tokens at least; the rest is not worth encoding."""
        return text[: num_tokens * _CHARS_A_TOKEN]

    @cached_property
    def _longest_token(self) -> int:
        """Bytes of the longest token, which are as many as its characters at least."""
        # One by one: a dict of all would leave 1.4 MB.
        return max((len(self._token_bytes.made(token)) for token in range(self.tokenizer.num_tokens)), default=1) or 1

    def words_as_tokens(self, words: Sequence[str]) -> list[list[int]]:
        """Return the token sequences that say one of some words, at the beginning of a word and inside one."""
        texts = [text for word in words for text in ((word,) if word[:1].isspace() else (word, f" {word}"))]
        return [list(tokens) for tokens in dict.fromkeys(tuple(self.encode_further(text)) for text in texts) if tokens]

    def tokens_with(self, texts: Sequence[str]) -> list[int]:
        """Return the tokens whose text holds one of some texts, in ascending order."""
        return self._token_texts.tokens_with(texts)

    @cached_property
    def _token_texts(self) -> TokenTexts:
        return TokenTexts(self._token_bytes.made(token) for token in range(self.vocab_size))

    def encode_continuation(self, rendered: str) -> list[int]:
        """The tokens of a part of such a text that follows other tokens: no space is put before it."""
        return [token for piece in rendered.split(BREAK) for token in self.encode_further(piece)]

    def encode_further(self, text: str) -> list[int]:
        """Text in the middle of a text. Where the tokenizer puts a space before texts, a letter takes it and goes."""
        if self._token_bytes.has_leading_space and not text.startswith(tuple(self.markers.texts)):
            for letter in _ANCHORS:
                ids = self._ids(letter + text)
                for num_tokens in (1, 2):
                    if b"".join(self.spoken_bytes(ids[:num_tokens])) == letter.encode():
                        return ids[num_tokens:]
        return self._ids(text)

    def vocabulary(self) -> list[bytes]:
        """The bytes of each token, of a control token those of its name; none of ids that stand for nothing."""
        return [
            self._token_bytes.special(token).encode() or self._token_bytes.made(token)
            for token in range(self.vocab_size)
        ]

    def control_ids(self) -> list[int]:
        """The ids of control tokens, which no text is read as."""
        return [token for token in range(self.vocab_size) if self._token_bytes.special(token)]

    def spoken_bytes(self, tokens: Iterable[int]) -> list[bytes]:
        """The bytes that each token of an answer adds to its text."""
        data = [self._token_bytes[token] for token in tokens]
        first = next((index for index, piece in enumerate(data) if piece), None)
        if first is not None and self._token_bytes.has_leading_space:
            data[first] = data[first].removeprefix(b" ")
        return data

    def decode(self, tokens: Iterable[int]) -> str:
        """The text of tokens, control tokens left out."""
        stream = self.detokenizer()
        return "".join([*map(stream.push, tokens), stream.flush()])

    def token_text(self, token: int) -> str:
        """One token as text, for showing."""
        return self._token_bytes[token].decode(errors="replace") or self._token_bytes.special(token)

    def shown(self, tokens: Iterable[int]) -> str:
        """The text of tokens with control tokens written out, for showing."""
        return b"".join(self.shown_pieces(tokens)).decode(errors="replace")

    def shown_pieces(self, tokens: Iterable[int]) -> list[bytes]:
        """The bytes of each token with control tokens written out, for showing."""
        token_bytes = self._token_bytes
        return [token_bytes[token] or token_bytes.special(token).encode() for token in tokens]

    def is_control(self, token: int) -> bool:
        """Whether a token is a control token, which is left out of an answer's text."""
        return bool(self._token_bytes.special(token))

    def detokenizer(
        self, *, shows_special: bool = False, shown: frozenset[int] = frozenset(), is_further: bool = False
    ) -> Detokenizer:
        """Return a new stream of one answer's text, without control tokens unless all or those of `shown` are written.

        With `is_further` it goes on with a text, so that a space it begins with is one.
        """
        return Detokenizer(self._token_bytes, shows_special=shows_special, shown=shown, is_further=is_further)

    def _plain(self, message: Message) -> dict[str, object]:
        """A message as templates expect it: content one text, a call's arguments the values they stand for."""
        fields = cast("dict[str, object]", msgspec.to_builtins(message))
        fields["content"] = message.text
        for call in cast("list[dict[str, dict[str, object]]]", fields.get("tool_calls") or []):
            with contextlib.suppress(ValueError):  # arguments that are no JSON stay the text they are
                call["function"]["arguments"] = json.loads(cast("str", call["function"].get("arguments", "{}")))
        self._tell_thought(message, fields)
        parted = self.markers.parted(fields)
        if message.role == "assistant":
            parted["content"] = self.markers.parted_answer(fields["content"])
        return parted

    def _tell_thought(self, message: Message, fields: dict[str, object]) -> None:
        """Put what led to a message into the field that the template reads."""
        thought = fields.pop("reasoning_content", None)
        if not thought or self.template is None:
            return
        if message.tool_calls and message.text and self.template.joins_thoughts:
            thought, fields["content"] = f"{thought}\n{message.text}", ""
        fields[self.template.thought_name] = thought


def _added(tokenizer: Tokenizer) -> dict[int, AddedToken]:
    """Return the tokens that are found in a text before all others: of a plugin's tokenizer, its control tokens."""
    if isinstance(tokenizer, HuggingFaceTokenizer):
        return tokenizer.added
    named = tokenizer.special_tokens.items()
    return {token: AddedToken(name, special=True, normalized=False) for name, token in named}


def _cuts(added: Collection[AddedToken]) -> re.Pattern[str] | None:
    """The control tokens before which a text can be cut, and its parts encoded one by one.

    The tokenizer itself cuts a text there before anything else, and what is left of the token does not change the rest.
    Left out are tokens that take the space before them, look at the letter before them, may be the end of another, or
    begin with what another before them looks at.
    """
    plain = [t.content for t in added if t.special and not (t.normalized or t.lstrip or t.single_word)]
    apart = [text for text in plain if len(text) <= _MAX_CUT_CHARS and re.match(r"[^\w\s]", text)]
    if len(apart) > _MAX_CUTS:
        return None
    ends = _ends(added, frozenset(text[0] for text in apart))
    sound = [text for text in apart if not any(end.startswith(text) or text.startswith(end) for end in ends)]
    return re.compile("|".join(map(re.escape, sorted(sound, key=len, reverse=True)))) if sound else None


def _ends(added: Collection[AddedToken], letters: Collection[str]) -> set[str]:
    """What tokens that are found further left can reach over: their ends that begin with one of some letters."""
    texts = (token.content for token in added)
    starts = ((text, place) for text in texts for place in range(1, len(text)) if text[place] in letters)
    return {text[place : place + _MAX_CUT_CHARS] for text, place in starts}
