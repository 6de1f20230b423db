"""tiktoken's rank files, Mistral's tekken.json and SentencePiece's tokenizer.model against the libraries they are of.

The vocabularies are the real ones that the package mistral-common carries, and ones trained here.
"""

from __future__ import annotations

import base64
import json
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle.test_tokenizer import corpus

from pyagent.core.messages import Message
from pyagent.core.tokenizers import TokenizerOptions
from pyagent.infrastructure.engine.tokens import ModelTokenizer
from pyagent.infrastructure.engine.tokens.tiktoken_ranks import KNOWN

pytestmark = pytest.mark.oracle
VOCAB_SIZE = 1 << 20
_TEXT = st.text(st.characters(codec="utf-8"), max_size=80)


def data_file(name: str) -> Path:
    pytest.importorskip("mistral_common")
    return Path(str(files("mistral_common").joinpath("data", name)))


def load(folder: Path, **options: Any) -> ModelTokenizer:
    return ModelTokenizer.load(folder, vocab_size=VOCAB_SIZE, options=TokenizerOptions(**options))


def without_controls(tokenizer: ModelTokenizer, text: str) -> str:
    """The reference reads no control tokens in texts."""
    return text if not any(name in text for name in tokenizer.markers.texts) else ""


@pytest.fixture(scope="module", params=["tekken_240911.json", "tekken_240718.json"])
def tekken(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[ModelTokenizer, Any]:
    from mistral_common.tokens.tokenizers.tekken import Tekkenizer

    file = data_file(request.param)
    folder = tmp_path_factory.mktemp("tekken")
    (folder / "tekken.json").symlink_to(file)
    return load(folder), Tekkenizer.from_file(str(file))


@pytest.mark.filterwarnings("ignore:Using the tokenizer's special token policy:FutureWarning")
def test_tekken_is_mistrals(tekken: tuple[ModelTokenizer, Any]) -> None:
    """Every text has the tokens that mistral-common gives it, and every token its bytes."""
    ours, theirs = tekken
    for text in (without_controls(ours, text) for text in corpus()):
        assert ours.encode_text(text, is_begun=True) == theirs.encode(text, bos=False, eos=False), text
    assert ours.encode_text("a") == theirs.encode("a", bos=True, eos=False)
    for token in range(theirs.num_special_tokens, theirs.n_words):
        assert ours.tokenizer.token_bytes(token) == theirs.id_to_byte_piece(token)
    assert ours.control_ids() == list(range(theirs.num_special_tokens))
    named = [theirs.id_to_piece(token) for token in range(20)]
    assert [ours.shown([token]) for token in range(20)] == named


@settings(max_examples=200, deadline=None)
@given(text=_TEXT)
def test_tekken_is_mistrals_for_any_text(tekken: tuple[ModelTokenizer, Any], text: str) -> None:
    """Whatever the text, the tokens are mistral-common's."""
    ours, theirs = tekken
    text = without_controls(ours, text)
    assert ours.encode_text(text, is_begun=True) == theirs.encode(text, bos=False, eos=False)


@pytest.fixture(scope="module", params=["tokenizer.model.v1", "mistral_instruct_tokenizer_240323.model.v3"])
def spm(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[ModelTokenizer, Any]:
    from sentencepiece import SentencePieceProcessor

    folder = tmp_path_factory.mktemp("spm")
    (folder / "tokenizer.model").symlink_to(data_file(request.param))
    return load(folder), SentencePieceProcessor(model_file=str(folder / "tokenizer.model"))


def test_sentencepiece_models_are_its_own(spm: tuple[ModelTokenizer, Any]) -> None:
    """Every text has the tokens that sentencepiece gives it, and decodes to what it decodes to."""
    ours, theirs = spm
    for text in (without_controls(ours, text) for text in corpus()):
        ids = theirs.encode(text)
        assert ours.encode_text(text, is_begun=True) == ids, text
        assert ours.decode(ids) == theirs.decode(ids).replace(" \u2047 ", "\ufffd"), text
    assert ours.encode_text("a")[:1] == [theirs.bos_id()]
    assert ours.end_ids == {theirs.eos_id()}


@settings(max_examples=200, deadline=None)
@given(text=_TEXT)
def test_sentencepiece_models_are_its_own_for_any_text(spm: tuple[ModelTokenizer, Any], text: str) -> None:
    """Whatever the text, the tokens are sentencepiece's."""
    ours, theirs = spm
    text = without_controls(ours, text)
    assert ours.encode_text(text, is_begun=True) == theirs.encode(text)


@pytest.fixture(scope="module")
def unigram(tmp_path_factory: pytest.TempPathFactory) -> tuple[ModelTokenizer, Any]:
    """A unigram model trained here on pages of ours, whose rarer letters go by bytes."""
    sentencepiece = pytest.importorskip("sentencepiece")
    folder = tmp_path_factory.mktemp("unigram")
    pages = sorted((Path(__file__).parents[2] / "docs" / "how-to").glob("*.md"))
    (folder / "text").write_text("\n".join(page.read_text() for page in pages))
    sentencepiece.SentencePieceTrainer.train(
        input=str(folder / "text"),
        model_prefix=str(folder / "tokenizer"),
        vocab_size=900,
        hard_vocab_limit=False,
        model_type="unigram",
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        character_coverage=0.995,
        required_chars="<0x123456789ABCDEF>",
        minloglevel=2,
    )
    return load(folder), sentencepiece.SentencePieceProcessor(model_file=str(folder / "tokenizer.model"))


def assert_as_likely(theirs: Any, tokens: list[int], expected: list[int], text: str) -> None:
    """Of two ways to cut a text that are equally likely, sentencepiece's sums in single precision take one."""
    if tokens != expected:
        scores = [sum(theirs.get_score(token) for token in one) for one in (tokens, expected)]
        assert scores[0] == pytest.approx(scores[1], rel=1e-5), text
        assert theirs.decode(tokens) == theirs.decode(expected)


def test_unigram_models_are_sentencepieces(unigram: tuple[ModelTokenizer, Any]) -> None:
    """Every text has the tokens that sentencepiece gives it, names of bytes included, and decodes to what it does."""
    ours, theirs = unigram
    texts = [*corpus(), "<0x41> and <0xE9>", "a  b\n\tc ", "\U0001f600<0x00>"]
    for text in (without_controls(ours, text) for text in texts):
        ids = theirs.encode(text)
        assert_as_likely(theirs, ours.encode_text(text, is_begun=True), ids, text)
        assert ours.decode(ids) == theirs.decode(ids).replace(" \u2047 ", "\ufffd"), text


@settings(max_examples=200, deadline=None)
@given(text=_TEXT)
def test_unigram_models_are_sentencepieces_for_any_text(unigram: tuple[ModelTokenizer, Any], text: str) -> None:
    """Whatever the text, the tokens are sentencepiece's."""
    ours, theirs = unigram
    text = without_controls(ours, text)
    assert_as_likely(theirs, ours.encode_text(text, is_begun=True), theirs.encode(text), text)


@pytest.fixture(scope="module")
def ranks() -> dict[bytes, int]:
    """The ranks of a real vocabulary."""
    told = json.loads(data_file("tekken_240911.json").read_bytes())
    return {base64.b64decode(entry["token_bytes"]): entry["rank"] for entry in told["vocab"][:100_000]}


@pytest.fixture(scope="module", params=["gpt2", "cl100k_base", "o200k_base", "qwen", "kimi"])
def tiktoken_pair(
    request: pytest.FixtureRequest, ranks: dict[bytes, int], tmp_path_factory: pytest.TempPathFactory
) -> tuple[ModelTokenizer, Any]:
    tiktoken = pytest.importorskip("tiktoken")
    folder, name = tmp_path_factory.mktemp("ranks"), request.param
    lines = (base64.b64encode(token) + b" %d\n" % rank for token, rank in ranks.items())
    (folder / f"{name}.tiktoken").write_bytes(b"".join(lines))
    added = {"100000": {"content": "<|end|>", "special": True}}
    (folder / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": added}))
    made = tiktoken.Encoding(
        name, pat_str=KNOWN[name].pattern, mergeable_ranks=ranks, special_tokens={"<|end|>": 100_000}
    )
    return load(folder), made


def test_rank_files_are_tiktokens(tiktoken_pair: tuple[ModelTokenizer, Any]) -> None:
    """Every text, control tokens in it included, has the tokens that tiktoken gives it."""
    ours, theirs = tiktoken_pair
    for text in [*corpus(), "a<|end|>b", "<|end|><|end|>", "<|end|"]:
        assert ours.encode_text(text, is_begun=True) == theirs.encode(text, allowed_special="all"), text
        assert ours.decode(theirs.encode(text, disallowed_special=())) == text


def test_control_tokens_of_gpt_oss_are_tiktokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of `o200k_harmony` have the ids that tiktoken's own code gives them; one id has two names there."""
    public = pytest.importorskip("tiktoken_ext.openai_public")
    monkeypatch.setattr(public, "load_tiktoken_bpe", lambda *_args, **_options: {})
    theirs = public.o200k_harmony()
    assert KNOWN["o200k_harmony"].pattern == KNOWN["o200k_base"].pattern
    assert KNOWN["o200k_harmony"].ids.items() <= theirs["special_tokens"].items()
    assert set(KNOWN["o200k_harmony"].ids.values()) == set(theirs["special_tokens"].values())


@settings(max_examples=200, deadline=None)
@given(text=_TEXT)
def test_rank_files_are_tiktokens_for_any_text(tiktoken_pair: tuple[ModelTokenizer, Any], text: str) -> None:
    """Whatever the text, the tokens are tiktoken's."""
    ours, theirs = tiktoken_pair
    assert ours.encode_text(text, is_begun=True) == theirs.encode(text, allowed_special="all")


_CHATS = (
    [Message("user", "Hello there")],
    [Message("user", "Hello"), Message("assistant", "Hi you"), Message("user", "And now?")],
    [Message("system", "Be brief."), Message("user", "Hello"), Message("assistant", "Hi."), Message("user", "Bye")],
)


@pytest.mark.parametrize(
    ("template", "file"),
    [
        ("mistral-v1", "tokenizer.model.v1"),
        ("mistral-v3", "mistral_instruct_tokenizer_240323.model.v3"),
        ("mistral-v7", "mistral_instruct_tokenizer_241114.model.v7"),
        ("mistral-v3", "tekken_240911.json"),
    ],
)
@pytest.mark.parametrize("chat", _CHATS, ids=["one", "three", "system"])
def test_mistrals_built_in_templates_are_its_encoders(
    template: str, file: str, chat: list[Message], tmp_path: Path
) -> None:
    """A conversation has the tokens that mistral-common's own encoder gives it."""
    from mistral_common.protocol.instruct.request import ChatCompletionRequest
    from mistral_common.tokens.tokenizers.mistral import MistralTokenizer

    source = data_file(file)
    theirs = MistralTokenizer.from_file(str(source))
    asked = [{"role": message.role, "content": message.text} for message in chat]
    expected = theirs.encode_chat_completion(ChatCompletionRequest(messages=asked)).tokens
    (tmp_path / ("tekken.json" if file.endswith(".json") else "tokenizer.model")).symlink_to(source)
    ours = load(tmp_path, chat_template=template)
    found = ours.encode_rendered(ours.render_chat(chat))
    assert found == expected, (ours.shown(found), ours.shown(expected))
