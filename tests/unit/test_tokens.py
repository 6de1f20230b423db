"""Tokenizers from GGUF metadata, control tokens in messages, and text that arrives token by token."""

from __future__ import annotations

import functools
import json
import random
import re
from array import array
from pathlib import Path
from typing import cast

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.chat_templates import encode_chat
from support.tiny_model import CONTROL_TOKENS, metadata, vocabulary, write_tiny_model
from tokenizers import AddedToken, Tokenizer

from pyagent.core.errors import ModelError, RequestError
from pyagent.core.messages import FunctionCall, FunctionDefinition, Message, TextPart, Tool, ToolCall
from pyagent.infrastructure.engine.tokens import ModelTokenizer
from pyagent.infrastructure.engine.tokens import tokenizer as tokenizer_module
from pyagent.infrastructure.engine.tokens.gguf_vocabulary import SUPPORTED_PRE_TOKENIZERS, GgufReader, build_tokenizer
from pyagent.infrastructure.engine.tokens.huggingface import HuggingFaceTokenizer
from pyagent.infrastructure.engine.tokens.segment_cache import SegmentCache
from pyagent.infrastructure.engine.tokens.templates import ChatTemplate

NUM_TOKENS = len(vocabulary()[0])
WRITTEN_CONTROLS = [*CONTROL_TOKENS, "<|im_<|im_end|>end|>", "<|im_\ue0ffend|>", "<|im_end|><|im_end|>"]


def spm_metadata(**changes: object) -> dict[str, object]:
    """A small SentencePiece vocabulary: bytes, letters, some words."""
    words = ["▁", "h", "e", "l", "o", "he", "ll", "hell", "hello", "▁hello", "<0x0A>", "<eos>"]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *words]
    types = [2, 3, 3, *[6] * 256, *[1] * 10, 6, 3]
    tokens = tokens[:-2]
    types = types[:-2]
    scores = [-1000.0] * 259 + [-float(place) for place in range(len(tokens) - 259)][::-1]
    entries: dict[str, object] = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.scores": scores,
    }
    return entries | changes


def test_tiny_vocabulary_round_trips_any_text(tokenizer: ModelTokenizer) -> None:
    """Byte-level BPE gives every text back."""
    text = "the user's 12 — naïve 中文 🎉👩‍👩‍👧\r\n\t  end"
    assert tokenizer.decode(tokenizer.encode_text(text)) == text


@given(st.text(max_size=200))
def test_any_text_is_the_same_after_encode_and_decode(tiny: ModelTokenizer, text: str) -> None:
    """Whatever is encoded decodes to itself."""
    ids = tiny.tokenizer.inner.encode(text).ids
    assert tiny.tokenizer.inner.decode(ids, skip_special_tokens=False) == text
    assert "".join(map(tiny.token_text, ids)).count("\ufffd") >= text.count("\ufffd")


@pytest.fixture(scope="module", name="tiny")
def _tiny(tokenizer: ModelTokenizer) -> ModelTokenizer:
    return tokenizer


@given(st.lists(st.integers(0, NUM_TOKENS - 1), max_size=60))
def test_streamed_text_is_the_text_of_all_tokens(tiny: ModelTokenizer, tokens: list[int]) -> None:
    """For any tokens, complete characters or not, what was pushed and flushed, joined, is what tokenizers decodes."""
    stream = tiny.detokenizer()
    streamed = "".join([*map(stream.push, tokens), stream.flush()])
    assert streamed == tiny.tokenizer.inner.decode(tokens, skip_special_tokens=True)


def test_half_a_character_is_never_sent(tokenizer: ModelTokenizer) -> None:
    """A character of four bytes in four tokens comes whole, with the last of them."""
    tokens = tokenizer.encode_text("🎉")
    stream = tokenizer.detokenizer()
    assert len(tokens) == 4
    assert [stream.push(token) for token in tokens] == ["", "", "", "🎉"]
    assert stream.flush() == ""


@pytest.fixture(scope="module")
def sentencepiece() -> ModelTokenizer:
    built = build_tokenizer(spm_metadata(), "m")
    return ModelTokenizer(HuggingFaceTokenizer(built, "m", begin_id=1, end_ids=[2]), template=None, name="m")


def test_sentencepiece_streams_as_it_decodes(sentencepiece: ModelTokenizer) -> None:
    """Spaces, bytes and words of a SentencePiece vocabulary stream to the text tokenizers decodes."""
    draw = random.Random(5)
    built = sentencepiece.tokenizer.inner
    for _ in range(300):
        tokens = [draw.choice([*range(3 + 32, 3 + 127), *range(259, 269)]) for _ in range(draw.randrange(12))]
        assert sentencepiece.decode(tokens) == built.decode(tokens), tokens


def test_bad_bytes_do_not_swallow_good_characters(sentencepiece: ModelTokenizer) -> None:
    """Bytes that are no character become U+FFFD one by one; a character of bytes beside them stays."""
    tokens = [3 + byte for byte in b"\xff" + "🎉".encode() + b"\xf0\x9f" + b"a"]
    assert sentencepiece.decode(tokens) == "\ufffd🎉\ufffda"
    stream = sentencepiece.detokenizer()
    assert [stream.push(token) for token in tokens] == ["\ufffd", "", "", "", "🎉", "", "", "\ufffda"]


def test_space_after_a_byte_at_the_start_is_kept(sentencepiece: ModelTokenizer) -> None:
    """Only a text's very first space belongs to the tokenizer; one after a line break is the model's."""
    tokens = sentencepiece.tokenizer.inner
    assert sentencepiece.decode([3 + 10, tokens.token_to_id("▁hello")]) == "\n hello"
    assert sentencepiece.decode([tokens.token_to_id("▁hello"), tokens.token_to_id("▁hello")]) == "hello hello"


def test_sentencepiece_merges_by_score_and_falls_back_to_bytes() -> None:
    """The best token wins, a space begins a text, characters without a token become their bytes."""
    built = build_tokenizer(spm_metadata(), "m")
    assert built.encode("hello").tokens == ["▁hello"]
    assert built.encode("hello hé").tokens == ["▁hello", "▁", "h", "<0xC3>", "<0xA9>"]
    assert built.decode(built.encode("hello hé").ids) == "hello hé"


def gemma4_metadata(**changes: object) -> dict[str, object]:
    """The small SentencePiece vocabulary with its merges written out, and tokens of line breaks, as Gemma 4's files."""
    entries = spm_metadata()
    tokens = [*cast("list[str]", entries["tokenizer.ggml.tokens"]), "\n", "\n\n", "\n\n\n"]
    merges = ["h e", "l l", "he ll", "hell o", "▁ hello"]
    entries |= {
        "tokenizer.ggml.model": "gemma4",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [*cast("list[int]", entries["tokenizer.ggml.token_type"]), 1, 1, 1],
        "tokenizer.ggml.merges": merges,
    }
    del entries["tokenizer.ggml.scores"]
    return entries | changes


def test_gemma_4_merges_as_written_and_joins_line_breaks() -> None:
    """Spaces are marked, none is put before a text; bytes stand for what has no token; line breaks are joined."""
    built = build_tokenizer(gemma4_metadata(), "m")
    assert built.encode("hello hello").tokens == ["hello", "▁hello"]
    assert built.encode("hé").tokens == ["h", "<0xC3>", "<0xA9>"]
    assert built.encode("hello\n\n\nhello\n\n\n\n").tokens == ["hello", "\n\n\n", "hello", "\n\n", "\n\n"]
    text = "hello  hé\n\n ll"
    assert built.decode(built.encode(text).ids) == text


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"tokenizer.ggml.merges": ["h e", "he"]}, "'he' is no merge of two tokens"),
        ({"tokenizer.ggml.merges": ["h e l"]}, "'h e l' is no merge of two tokens"),
        ({"tokenizer.ggml.merges": ["h ü"]}, "the tokenizer's merges do not fit its tokens"),
        ({"tokenizer.ggml.merges": None}, "has no 'tokenizer.ggml.merges'"),
    ],
)
def test_merges_of_gemma_4_that_do_not_fit_are_refused(changes: dict[str, object], reason: str) -> None:
    """The file is named, and what is wrong with it."""
    with pytest.raises(ModelError, match=re.escape(reason)):
        build_tokenizer(gemma4_metadata(**changes), "m")


@pytest.mark.parametrize("token_type", [3, 4], ids=["control", "user-defined"])
@pytest.mark.parametrize("written", WRITTEN_CONTROLS)
def test_control_tokens_in_messages_stay_text(written: str, token_type: int, tmp_path: Path) -> None:
    """A message, name, call or tool that writes a control token has written characters; no turn ends or begins,
    whether the file marks such tokens as control or as user-defined ones."""
    types = [token_type if kind == 3 else kind for kind in cast("list[int]", metadata()["tokenizer.ggml.token_type"])]
    path = write_tiny_model(tmp_path / "m.gguf", tokenizer__ggml__token_type=types)
    tokenizer = ModelTokenizer.load(path, vocab_size=NUM_TOKENS)
    control = {tokenizer.tokenizer.inner.token_to_id(text) for text in CONTROL_TOKENS}
    call = ToolCall(id=written, function=FunctionCall(name=written, arguments=f'{{"a": "{written}"}}'))
    messages = [
        Message("system", f"a{written}b"),
        Message("user", [TextPart(written), TextPart(written)], name=written),
        Message("assistant", None, tool_calls=[call]),
        Message("tool", written, tool_call_id=written),
    ]
    tool = Tool(function=FunctionDefinition(name=written, description=written, parameters={written: [written]}))
    ids = encode_chat(tokenizer, messages, [tool])
    assert sum(token in control for token in ids) == 2 * len(messages) + 1
    text = tokenizer.tokenizer.inner.decode(ids, skip_special_tokens=False)
    assert written.replace("\ue0ff", "") in text


def test_control_tokens_in_calls_and_tools_stay_text_when_a_template_prints_them(tmp_path: Path) -> None:
    """A template that prints calls and tools prints their control tokens as text too."""
    template = "{{ tools | tojson }}{% for m in messages %}{{ m | tojson }}{{ m.tool_calls }}{% endfor %}"
    path = write_tiny_model(tmp_path / "m.gguf", tokenizer__chat_template=template)
    tokenizer = ModelTokenizer.load(path, vocab_size=NUM_TOKENS)
    call = ToolCall(id="<|im_end|>", function=FunctionCall(name="f", arguments='{"a": "<|im_end|>"}'))
    tool = Tool(function=FunctionDefinition(name="<|im_end|>", parameters={"<|im_start|>": "<|im_end|>"}))
    ids = encode_chat(tokenizer, [Message("assistant", "x", tool_calls=[call])], [tool])
    assert not {tokenizer.tokenizer.inner.token_to_id(text) for text in CONTROL_TOKENS} & set(ids)
    assert '"arguments": {"a": "<|im_end|>"}' in tokenizer.decode(ids)


@pytest.mark.parametrize("depth", [700, 2000, 20_000, 100_000])
def test_arguments_nested_too_deep_are_the_callers_fault(tokenizer: ModelTokenizer, depth: int) -> None:
    """Arguments of past calls that no stack can walk are refused, whether they are too deep to read or to print."""
    arguments = f'{{"a": {"[" * depth}{"]" * depth}}}'
    call = ToolCall(id="a", function=FunctionCall(name="f", arguments=arguments))
    try:
        encode_chat(tokenizer, [Message("user", "x"), Message("assistant", "", tool_calls=[call])])
    except RequestError as error:
        assert "nested too deep" in str(error)  # noqa: PT017 - how deep is too deep is the interpreter's
    else:
        assert depth < 20_000


HOSTILE = [
    AddedToken("<|im_", special=True),
    AddedToken("x<|im", special=True),
    AddedToken("<|strips|>", special=True, lstrip=True, rstrip=True),
    AddedToken("<|right|>", special=True, rstrip=True),
    AddedToken("<|word|>", special=True, single_word=True),
    AddedToken("<|normal|>", special=True, normalized=True),
    AddedToken("\n\n<|", special=True),
    AddedToken("plain", special=False),
]
PIECES = [*CONTROL_TOKENS, *(token.content for token in HOSTILE), " ", "\n", "x", "<|", "<|im", "hello", "a user\n"]


@example(" <|strips|><|strips|>")
@example("<|word|>x<|im")
@given(st.lists(st.sampled_from(PIECES), max_size=12).map("".join))
def test_prompts_encoded_part_by_part_are_those_encoded_whole(
    tiny: ModelTokenizer, sentencepiece: ModelTokenizer, text: str
) -> None:
    """Parts that are kept change no token, whatever tokens a vocabulary adds; the second time neither."""
    for built in (tiny.tokenizer.inner, sentencepiece.tokenizer.inner):
        for added in ([], HOSTILE):
            changed = Tokenizer.from_str(built.to_str())
            changed.add_tokens(added)
            tokenizer = ModelTokenizer(HuggingFaceTokenizer(changed, "m"), template=None, name="m")
            whole = changed.encode(text, add_special_tokens=False).ids
            assert [tokenizer.encode_rendered(text) for _ in range(2)] == [whole, whole]


WORDS = [
    "the",
    " the",
    "user",
    "'s",
    " ",
    "  ",
    "\n",
    " \n ",
    "12",
    " 7",
    "é",
    "e\u0301",
    " \u0301",
    "中文",
    ".",
    " -",
    "x's",
    "\t",
]


@functools.cache
def built_once(pre: str) -> Tokenizer:
    return build_tokenizer({**metadata(), "tokenizer.ggml.pre": pre}, "m")


@pytest.mark.parametrize("pre", SUPPORTED_PRE_TOKENIZERS)
@given(data=st.data())
def test_prompts_cut_between_words_are_those_encoded_whole(pre: str, data: st.DataObject) -> None:
    """Parts of long texts are cut where no tokenizer of the kind looks across; also beside words it has whole."""
    text = "".join(data.draw(st.lists(st.one_of(st.sampled_from([*WORDS, *CONTROL_TOKENS]), st.text(max_size=6)))))
    built = built_once(pre)
    whole = built.encode(text, add_special_tokens=False).ids
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tokenizer_module, "_PART_CHARS", data.draw(st.integers(1, 9)))
        tokenizer = ModelTokenizer(HuggingFaceTokenizer(built, "m", cuts_words=True), template=None, name="m")
        assert [tokenizer.encode_text(text) for _ in range(2)] == [whole if text else []] * 2


def test_a_vocabulary_whose_words_have_spaces_in_them_is_not_cut_there(tmp_path: Path) -> None:
    """EXAONE's with experts has tokens of several words: its texts are read whole."""
    for pre, cuts_words in (("smollm", True), ("exaone-moe", False)):
        path = write_tiny_model(tmp_path / f"{pre}.gguf", tokenizer__ggml__pre=pre)
        assert GgufReader().load(path).cuts_words == cuts_words
    cut = build_tokenizer({**metadata(), "tokenizer.ggml.pre": "exaone-moe"}, "m").pre_tokenizer
    assert [word for word, _ in cut.pre_tokenize_str("in the user 1")] == ["in\u0120the\u0120user", "\u0120", "1"]


@pytest.mark.parametrize(("pre", "same"), [("dbrx", "llama-bpe"), ("refact", "smollm")])
def test_granite_cuts_words_as_the_families_its_vocabularies_come_from(pre: str, same: str) -> None:
    """Granite 4's vocabulary has Llama 3's words, of three digits at most, Granite 3's StarCoder's, of one."""
    text = "It's 12345 of them,\n\n  here: x_1 \u4e2d\u6587!"
    cut = [build_tokenizer({**metadata(), "tokenizer.ggml.pre": name}, "m").pre_tokenizer for name in (pre, same)]
    words, expected = ([word for word, _ in one.pre_tokenize_str(text)] for one in cut)
    assert words == expected
    assert ("123" in words) == (pre == "dbrx")


@pytest.mark.parametrize(
    ("pre", "expected"),
    [
        ("tekken", "It|'s| ca|Mel|Case|,| x|1|2|3|y|!\n/|中文a"),
        ("seed-coder", "It|'s| caMelCase|,| x|1|2|3|y|!|\n|/中文a"),
        ("deepseek-v3", "It|'s| caMelCase|,| x|123|y|!\n|/|中文|a"),
        ("deepseek-r1-qwen", "It|'s| caMelCase|,| x|1|2|3|y|!\n|/中文a"),
        ("exaone4", "It|'s| caMelCase|,| x|123|y|!|\n|/|中文a"),
        ("youtu", "It's| ca|Mel|Case|,| x|1|2|3|y|!\n/|中文|a"),
        ("bailingmoe2", "It|'s| caMelCase|,| x|1|2|3|y|!\n|/中文a"),
        ("exaone-moe", "It|'s| caMelCase|,| x|1|2|3|y|!\n|/中文a"),
        ("glm4", "It|'s| caMelCase|,| x|123|y|!\n|/中文a"),
        ("cohere2moe", "It's| ca|Mel|Case|,| x|123|y|!\n/|中文a"),
        ("jais-2", "It|'s| caMelCase|,| x|123|y|!\n|/中文a"),
        ("falcon", "It|'|s| caMelCase|,| x|123|y|!|\n|/|中文a"),
    ],
)
def test_words_of_vocabularies_are_those_of_llama_cpp(pre: str, expected: str) -> None:
    """As llama.cpp's server cuts them, which `make converter` asks on other texts."""
    text = "It's caMelCase, x123y!\n/\u4e2d\u6587a"
    cut = build_tokenizer({**metadata(), "tokenizer.ggml.pre": pre}, "m").pre_tokenizer
    assert "|".join(text[first:end] for _, (first, end) in cut.pre_tokenize_str(text)) == expected


def test_words_with_spaces_in_them_are_not_cut() -> None:
    """A vocabulary with a token that spans the border of two words is encoded in parts no shorter than its own."""
    built = build_tokenizer(metadata(), "m")
    built.add_tokens([AddedToken("the user", special=False, normalized=False)])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tokenizer_module, "_PART_CHARS", 1)
        tokenizer = ModelTokenizer(HuggingFaceTokenizer(built, "m", cuts_words=True), template=None, name="m")
        assert tokenizer.encode_text("so the user is") == built.encode("so the user is").ids


def test_parts_kept_are_bounded_and_the_latest() -> None:
    """What was asked for longest ago is forgotten first; parts that are too long are encoded each time."""
    asked: list[str] = []

    def encode(text: str) -> array[int]:
        asked.append(text)
        return array("I", map(ord, text))

    kept = SegmentCache(encode, most_chars=3 * (4 + 128), longest=10)
    for text in ("aaaa", "bbbb", "cccc", "aaaa", "dddd", "aaaa", "bbbb", "x" * 11, "x" * 11):
        assert kept.tokens_of(text) == array("I", map(ord, text))
    assert asked == ["aaaa", "bbbb", "cccc", "dddd", "bbbb", "x" * 11, "x" * 11]
    asked.clear()
    for tenant in ("alice", "bob", "alice", "bob"):
        kept.tokens_of("eeee", tenant)
    assert asked == ["eeee", "eeee"], "what another tenant sent is encoded again"


def test_words_a_model_has_whole_are_not_parted() -> None:
    """User-defined tokens (Gemma's line breaks) in a message are encoded as in any text: one token."""
    entries = dict(metadata())
    tokens, types = list(entries["tokenizer.ggml.tokens"]), list(entries["tokenizer.ggml.token_type"])  # type: ignore[call-overload]
    tokens.append("\n\n\n")
    types.append(4)
    built = build_tokenizer({**entries, "tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": types}, "m")
    template = ChatTemplate("{{ messages[0].content }}", {}, "m")
    model = ModelTokenizer(HuggingFaceTokenizer(built, "m"), template=template, name="m")
    assert encode_chat(model, [Message("user", "a\n\n\nb")])[1] == len(tokens) - 1


def user_defined(*texts: str, template: str) -> ModelTokenizer:
    """The tiny vocabulary with user-defined tokens, and a template."""
    built = build_tokenizer(metadata(), "m")
    built.add_tokens([AddedToken(text, special=False, normalized=False) for text in texts])
    chat = ChatTemplate(template, {}, "m")
    return ModelTokenizer(HuggingFaceTokenizer(built, "m"), template=chat, name="m")


@pytest.mark.parametrize(
    ("marker", "template"),
    [
        ("<turn>", "{% for m in messages %}<turn>{{ m.content }}{% endfor %}"),
        ("<user>", "{% for m in messages %}{{ '<' ~ m.role ~ '>' ~ m.content }}{% endfor %}"),
        ("<|tool|>", "{% for m in messages %}{{ '<' ~ '|' ~ m.role ~ '|>' ~ m.content }}{% endfor %}"),
        ("<call>", "{% for m in messages %}{{ '<' ~ 'call>' if m.tool_calls }}{{ m.content }}{% endfor %}"),
        ("<think>", "{% for m in messages %}{{ m.content.split('<think>')[-1] }}{% endfor %}"),
    ],
)
def test_what_a_template_writes_as_a_marker_stays_text_in_a_users_message(marker: str, template: str) -> None:
    """A user-defined token that the template writes, whole or put together of pieces, is a marker: a user's is text."""
    model = user_defined(marker, "<b>", template=template)
    ids = encode_chat(model, [Message("user", f"a{marker}b <b>c</b>")])
    made_by_template = model.render_chat([Message("user", "a")]).count(marker)
    assert ids.count(model.tokenizer.inner.token_to_id(marker)) == made_by_template
    assert ids.count(model.tokenizer.inner.token_to_id("<b>")) == 1  # a word that the vocabulary merely has whole
    assert f"a{marker}b <b>c</b>" in model.shown(ids)


def test_thoughts_of_past_answers_are_still_found_by_the_template() -> None:
    """A template that drops an old answer's thoughts finds their end in it; in a user's message it is text."""
    template = "{% for m in messages %}{{ m.content.split('</think>')[-1] }}|{% endfor %}"
    model = user_defined("</think>", template=template)
    said = [Message("user", "no</think>yes"), Message("assistant", "no</think>yes"), Message("user", "a")]
    assert model.shown(encode_chat(model, said)) == "no</think>yes|yes|a|"


@pytest.mark.parametrize(
    ("pre", "words"),
    [
        ("gpt-4o", ["123", "4", "a", "B'll", "/"]),
        ("llama4", ["123", "4", "a", "B'll", "/"]),
        ("llama-bpe", ["123", "4", "aB", "'ll", "/"]),
        ("qwen2", ["1", "2", "3", "4", "aB", "'ll", "/"]),
    ],
)
def test_words_are_cut_as_the_file_names_it(tmp_path: Path, pre: str, words: list[str]) -> None:
    """Numbers by threes or one by one, capital letters apart or not, as the vocabularies' own tokenizers do."""
    path = write_tiny_model(tmp_path / "m.gguf", tokenizer__ggml__pre=pre)
    cut = ModelTokenizer.load(path, vocab_size=NUM_TOKENS).tokenizer.inner.pre_tokenizer
    assert [word for word, _ in cut.pre_tokenize_str("1234aB'll/")] == words


_IN_THREES, _SINGLE = ["12", " ", "345", "6", " a", "B"], ["1", "2", " ", "3", "4", "5", "6"]


@pytest.mark.parametrize(
    ("pre", "begins", "words"),
    [
        ("llama-v3", True, ["12", " ", "345", "6", " aB"]),
        ("smaug-bpe", False, ["12", " ", "345", "6", " aB"]),
        ("glm5", False, ["12", " ", "345", "6", " aB"]),
        ("minimax-m2", False, _IN_THREES),
        ("tekken", True, [*_SINGLE, " a", "B"]),
        ("deepseek-r1-qwen", False, [*_SINGLE, " aB"]),
        ("hunyuan", False, [*_SINGLE, " aB"]),
        ("starcoder", False, [*_SINGLE, " aB"]),
        ("phi-2", False, ["12", " 3456", " aB"]),
        ("roberta-bpe", False, ["12", " 3456", " aB"]),
        ("hunyuan-dense", False, ["12", " ", "345", "6", " aB"]),
    ],
)
def test_names_that_llama_cpp_has_for_one_way_cut_as_it_does(
    pre: str, begins: bool, words: list[str], tmp_path: Path
) -> None:
    """Numbers whole, in threes or digit by digit; capitals apart or not; which begin a text, or take whole words."""
    path = write_tiny_model(tmp_path / "m.gguf", tokenizer__ggml__pre=pre, tokenizer__ggml__add_bos_token=None)
    tokenizer = ModelTokenizer.load(path, vocab_size=NUM_TOKENS)
    cut = tokenizer.tokenizer.inner.pre_tokenizer
    found = [word.replace("\u0120", " ") for word, _ in cut.pre_tokenize_str("12 3456 aB")]
    assert (found, tokenizer.encode_text("a")[0] == 1) == (words, begins)
    bpe = json.loads(tokenizer.tokenizer.inner.to_str())["model"]
    assert bpe["ignore_merges"] == (begins or pre == "glm5")


def test_prompt_reads_control_tokens_and_begins_with_the_begin_token(tmp_path: Path) -> None:
    """A plain prompt is the caller's own: control tokens count, and the begin token is there once."""
    path = write_tiny_model(tmp_path / "m.gguf", tokenizer__ggml__add_bos_token=True)
    tokenizer = ModelTokenizer.load(path, vocab_size=NUM_TOKENS)
    assert tokenizer.encode_text("a")[0] == 1
    assert tokenizer.encode_text("<|im_start|>a") == tokenizer.encode_text("a")
    assert tokenizer.encode_text("") == []


@pytest.mark.parametrize(
    "messages", [[Message("user", "")], [Message("user", "  \n"), Message("system", None)], [Message("user", [])]]
)
def test_empty_conversation_is_refused(tokenizer: ModelTokenizer, messages: list[Message]) -> None:
    """A conversation without any text is refused before the template sees it."""
    with pytest.raises(RequestError, match="the prompt is empty"):
        encode_chat(tokenizer, messages)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"tokenizer__ggml__tokens": None}, "no 'tokenizer.ggml.tokens'"),
        (
            {"tokenizer__ggml__model": "bert"},
            "tokenizer 'bert' is not supported; supported are gpt2, llama, gemma4 and t5",
        ),
        (
            {"tokenizer__ggml__pre": "klingon"},
            "pre-tokenizer 'klingon' is not supported; supported are a.x-4.0, afmoe, bailingmoe",
        ),
        ({"tokenizer__ggml__token_type": [1, 2]}, "325 tokens but 2 token types"),
        ({"tokenizer__ggml__merges": ["ab"]}, 'merge 0, "ab", is not two tokens with a space between'),
        ({"tokenizer__ggml__merges": ["zzz yyy"]}, "the tokenizer's merges do not fit its tokens"),
        ({"tokenizer__ggml__model": "llama"}, "325 tokens but 0 scores"),
        ({"tokenizer__chat_template": "{% if %}"}, "the chat template is not valid"),
    ],
)
def test_tokenizer_that_cannot_be_built_says_file_and_fault(
    tmp_path: Path, changes: dict[str, object], expected: str
) -> None:
    """What a file's tokenizer lacks is said with the file's name."""
    path = write_tiny_model(tmp_path / "odd.gguf", **changes)
    with pytest.raises(ModelError, match=r"odd\.gguf") as caught:
        ModelTokenizer.load(path, vocab_size=NUM_TOKENS)
    assert expected in str(caught.value)


def test_tokenizer_larger_than_the_model_is_refused(tiny_model_path: Path) -> None:
    """A tokenizer that could name tokens the model has no row for is refused at load."""
    with pytest.raises(ModelError, match="the tokenizer has 325 tokens, the model 324"):
        ModelTokenizer.load(tiny_model_path, vocab_size=324)


def test_model_without_template_asks_for_a_prompt(tmp_path: Path) -> None:
    """Without a chat template, conversations are refused with what to use instead."""
    types = [1, 1, 1, *metadata()["tokenizer.ggml.token_type"][3:]]  # type: ignore[index]
    path = write_tiny_model(tmp_path / "m.gguf", tokenizer__chat_template=None, tokenizer__ggml__token_type=types)
    tokenizer = ModelTokenizer.load(path, vocab_size=NUM_TOKENS)
    with pytest.raises(RequestError, match="no chat template; use the completions API"):
        encode_chat(tokenizer, [Message("user", "hi")])


def test_safetensors_folder_gives_tokenizer_template_and_ends(tokenizer: ModelTokenizer, tmp_path: Path) -> None:
    """A folder's tokenizer.json, configs and template file are read; what is missing or broken is named."""
    with pytest.raises(ModelError, match=r"no tokenizer\.json"):
        ModelTokenizer.load(tmp_path, vocab_size=NUM_TOKENS)
    (tmp_path / "tokenizer.json").write_text(tokenizer.tokenizer.inner.to_str(), encoding="utf-8")
    (tmp_path / "config.json").write_text('{"bos_token_id": 1, "eos_token_id": [2, 0]}')
    template = '{"chat_template": "{{ bos_token }}{{ messages[0].content }}", "bos_token": {"content": "<|im_start|>"}}'
    (tmp_path / "tokenizer_config.json").write_text(template)
    loaded = ModelTokenizer.load(tmp_path, vocab_size=NUM_TOKENS)
    assert encode_chat(loaded, [Message("user", "the")]) == [1, *tokenizer.encode_text("the")]
    assert loaded.end_ids == {0, 2}
    (tmp_path / "chat_template.jinja").write_text("{{ messages[0].role }}")
    loaded = ModelTokenizer.load(tmp_path, vocab_size=NUM_TOKENS)
    assert loaded.decode(encode_chat(loaded, [Message("user", "the")])) == "user"
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ModelError, match=r"config\.json: not valid JSON"):
        ModelTokenizer.load(tmp_path, vocab_size=NUM_TOKENS)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ModelError, match=r"tokenizer\.json: not a tokenizer"):
        ModelTokenizer.load(tmp_path, vocab_size=NUM_TOKENS)
