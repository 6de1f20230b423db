"""A model's tokenizer: text and conversations to token ids, ids to text.

Message contents are never read as control tokens: a user, a document or a tool that writes `<|im_end|>` has written
those characters, not ended its turn.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from array import array
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain, islice, pairwise
from pathlib import Path
from typing import cast

import msgspec
from tokenizers import AddedToken, Tokenizer

from pyagent import _rust
from pyagent.core.errors import ModelError, RequestError
from pyagent.core.messages import Message, Tool
from pyagent.infrastructure.engine.tokens.detokenizer import Detokenizer, TokenBytes
from pyagent.infrastructure.engine.tokens.gguf_vocabulary import LLAMA3_NAMES, build_tokenizer
from pyagent.infrastructure.engine.tokens.markers import BREAK, Markers
from pyagent.infrastructure.engine.tokens.segment_cache import SegmentCache
from pyagent.infrastructure.engine.tokens.templates import ChatTemplate
from pyagent.infrastructure.engine.tokens.token_texts import TokenTexts

# Names of tokens that end an answer, in the families supported, beside those a file declares.
_END_TOKENS = (
    *("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|endoftext|>", "<|end_of_text|>", "<end_of_turn>", "</s>"),
    *("<|call|>", "<|return|>"),
)
# Parts of prompts whose tokens are kept: many prompts begin with the same system message, or as one before did.
_PART_CHARS = 1024
_KEPT_CHARS = 500_000
_MAX_KEPT_CHARS = 32_768
# No byte-level tokenizer that a GGUF file can name looks across the border of a word and the space before the next.
_BETWEEN_WORDS = re.compile(r"(?<=[A-Za-z])(?= [A-Za-z])")
_LETTER_SPACE = re.compile(r"[A-Za-z] ")
# With more control tokens (Gemma has 6,000) looking for them would take longer than it saves.
_MAX_CUTS = 256
_MAX_CUT_CHARS = 64
# Texts longer than so many characters a token are looked at before they are read, by so much more than would fit: the
# tokens at the end of a text that is cut may be others than those of the whole.
_CHARS_A_TOKEN, _MARGIN = 8, 1.25
_LONG_CHARS = 10_000
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # threads of its own for one text would only cost
# Letters put before a text that continues another one; one of them does not melt into what follows.
_ANCHORS = "a.0"


class ModelTokenizer:
    """Tokenizer, chat template and end tokens of one model."""

    def __init__(  # noqa: PLR0913 - each is a part of its own
        self,
        tokenizer: Tokenizer,
        *,
        template: ChatTemplate | None,
        declared_end_ids: Iterable[int],
        begin_id: int | None,
        name: str,
        cuts_words: bool = False,
    ) -> None:
        """`cuts_words` says that the tokenizer encodes what stands before a word and from its space on apart."""
        self.tokenizer = tokenizer
        self.template = template
        self.begin_id = begin_id
        self.name = name
        self.vocab_size = tokenizer.get_vocab_size()
        self._token_bytes = TokenBytes(tokenizer, name)
        added = tokenizer.get_added_tokens_decoder()
        self.markers = Markers(added.values(), template)
        self._cuts = _cuts(added.values())
        self._cuts_words = cuts_words and not any(
            token.rstrip or _LETTER_SPACE.search(token.content) for token in added.values()
        )
        self._kept = SegmentCache(self._part, most_chars=_KEPT_CHARS, longest=_MAX_KEPT_CHARS)
        ends = (tokenizer.token_to_id(text) for text in _END_TOKENS)
        self.end_ids = frozenset(declared_end_ids) | {token for token in ends if token is not None and token in added}

    @classmethod
    def load(cls, path: Path, *, vocab_size: int) -> ModelTokenizer:
        """Read the tokenizer of a GGUF file or a safetensors folder. Raises `ModelError` saying what is wrong."""
        loaded, num_tokens = cls._from_folder(path) if path.is_dir() else cls._from_gguf(path)
        if num_tokens > vocab_size:
            raise ModelError(f"{path}: the tokenizer has {num_tokens} tokens, the model {vocab_size}", model=str(path))
        loaded.vocab_size = vocab_size
        return loaded

    @classmethod
    def _from_gguf(cls, path: Path) -> tuple[ModelTokenizer, int]:
        try:
            metadata = _rust.read_model_header(path, packed=True)["metadata"]
        except _rust.ModelFileError as error:
            raise ModelError(str(error), model=str(path)) from error
        tokenizer = build_tokenizer(metadata, str(path))
        keys = ("eos", "eot", "eom")
        declared = (metadata.get(f"tokenizer.ggml.{key}_token_id") for key in keys)
        begin_id = metadata.get("tokenizer.ggml.bos_token_id")
        # llama.cpp's defaults for files that do not say.
        is_usual = metadata["tokenizer.ggml.model"] == "llama" or metadata.get("tokenizer.ggml.pre") in LLAMA3_NAMES
        adds_begin = metadata.get("tokenizer.ggml.add_bos_token", is_usual)
        end_id = metadata.get("tokenizer.ggml.eos_token_id")
        source = metadata.get("tokenizer.chat_template")
        texts = {"bos_token": _text(tokenizer, begin_id), "eos_token": _text(tokenizer, end_id)}
        loaded = cls(
            tokenizer,
            template=ChatTemplate(source, texts, str(path)) if isinstance(source, str) else None,
            declared_end_ids=[token for token in declared if isinstance(token, int)],
            begin_id=begin_id if adds_begin and isinstance(begin_id, int) else None,
            name=str(path),
            cuts_words=metadata["tokenizer.ggml.model"] == "gpt2",
        )
        return loaded, len(cast("_rust.Texts", metadata["tokenizer.ggml.tokens"]))

    @classmethod
    def _from_folder(cls, path: Path) -> tuple[ModelTokenizer, int]:
        file = path / "tokenizer.json"
        if not file.is_file():
            raise ModelError(f"{path}: no tokenizer.json; save the model with its (fast) tokenizer", model=str(path))
        try:
            tokenizer = Tokenizer.from_file(str(file))
        except Exception as error:
            raise ModelError(f"{file}: not a tokenizer: {error}", model=str(path)) from error
        settings = {**_json(path / "config.json"), **_json(path / "generation_config.json")}
        about = _json(path / "tokenizer_config.json")
        end_ids = settings.get("eos_token_id")
        texts = {key: _token_name(about.get(key)) for key in ("bos_token", "eos_token")}
        source = _folder_template(path, about)
        begin_id = settings.get("bos_token_id") if about.get("add_bos_token") else None
        loaded = cls(
            tokenizer,
            template=ChatTemplate(source, texts, str(path)) if source else None,
            declared_end_ids=[end_ids] if isinstance(end_ids, int) else cast("list[int]", end_ids or []),
            begin_id=begin_id if isinstance(begin_id, int) else None,
            name=str(path),
        )
        return loaded, 1 + max(tokenizer.get_vocab().values(), default=-1)  # ids may have holes

    def encode_text(self, text: str, tenant: str = "", *, is_begun: bool = False) -> list[int]:
        """A tenant's text; control tokens in it are read as such. Empty text has none.

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
                f"{self.name} has no chat template; use the completions API with a prompt", param="messages"
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
        """As the tokenizer encodes it. A long word takes seconds: only a batch lets other threads go on meanwhile."""
        if len(text) < _LONG_CHARS:
            return self.tokenizer.encode(text, add_special_tokens=False).ids
        return self.tokenizer.encode_batch([text], add_special_tokens=False)[0].ids

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

    @cached_property
    def _longest_token(self) -> int:
        """Characters of the longest token, or bytes, which are as many at least."""
        names = (
            self.tokenizer.id_to_token(token) for token in range(self.vocab_size)
        )  # a dict of all would leave 1.4 MB
        return max((len(name or "") for name in names), default=1)

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
        data = (self._token_bytes[token] or self._token_bytes.special(token).encode() for token in tokens)
        return b"".join(data).decode(errors="replace")

    def is_control(self, token: int) -> bool:
        """Whether a token is a control token, which is left out of an answer's text."""
        return bool(self._token_bytes.special(token))

    def detokenizer(
        self, *, shows_special: bool = False, shown: frozenset[int] = frozenset(), is_further: bool = False
    ) -> Detokenizer:
        """A new stream of text for one answer, control tokens left out unless all or those of `shown` are written.

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


def _text(tokenizer: Tokenizer, token: object) -> str:
    return (tokenizer.id_to_token(token) or "") if isinstance(token, int) else ""


def _json(path: Path) -> dict[str, object]:
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ModelError(f"{path}: not valid JSON: {error}", model=str(path)) from error
    return cast("dict[str, object]", value) if isinstance(value, dict) else {}


def _token_name(value: object) -> str:
    """A token in tokenizer_config.json: text, or a mapping with its text."""
    if isinstance(value, Mapping):
        value = cast("Mapping[str, object]", value).get("content")
    return value if isinstance(value, str) else ""


def _folder_template(path: Path, about: Mapping[str, object]) -> str | None:
    file = path / "chat_template.jinja"
    if file.is_file():
        return file.read_text(encoding="utf-8")
    value = about.get("chat_template")
    if isinstance(value, list):
        named = {item.get("name"): item.get("template") for item in cast("list[dict[str, str]]", value)}
        value = named.get("default")
    return value if isinstance(value, str) else None
