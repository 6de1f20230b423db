"""What every tokenizer must do.

class TestBytes(TokenizerConformance):
    def make(self):
        return ByteModels()

    def model(self):
        return Path("tests/small.bytes.gguf")
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import ClassVar

import pytest

from pyagent.core.errors import ModelError, PluginError
from pyagent.core.guarded_tokenizer import CheckedTokenizer
from pyagent.core.tokenizers import Tokenizer, TokenizerFactory
from pyagent.testing.suites.checks import check_host_takes

_LONG_SECONDS = 10.0
_MOST_COPIED_BYTES = 1 << 26


class TokenizerConformance:
    """Derive from it, and define `make` and `model`; `texts` come back as they were from the bytes of their tokens."""

    texts: ClassVar[Sequence[str]] = (
        "a",
        "The quick brown fox.",
        "  two  spaces\n\nand a\ttab ",
        "naïve café, Ελλάδα, 東京, 🦊🏽",
        "x = 10**9 - 1  # {'a': [1, 2]}",
        "e\u0301 and \u200b\u202e",
    )

    def make(self) -> TokenizerFactory:
        """Return the factory."""
        raise NotImplementedError

    def model(self) -> Path:
        """Return a model, a file or a folder, that has such a tokenizer."""
        raise NotImplementedError

    def test_host_takes_the_factory(self) -> None:
        """It has a name, `matches` and `load`."""
        check_host_takes("tokenizers", [self.make()])

    def test_it_knows_its_own_models_alone(self) -> None:
        """It matches its model, and neither an empty folder, nor one of other files, nor what is not there."""
        factory = self.make()
        assert factory.matches(self.model()) is True, f"it does not know {self.model()}"
        with tempfile.TemporaryDirectory() as made:
            folder = Path(made)
            (folder / "empty").mkdir()
            (folder / "other").mkdir()
            (folder / "other" / "notes.txt").write_bytes(b"\x00other\xff" * 9)
            for other in ("empty", "other", "nowhere"):
                assert factory.matches(folder / other) is False, f"it takes {other!r} for a model of its own"

    def test_values_are_what_they_should_be(self) -> None:
        """Numbers, names and bytes are of the right types; ids are below `num_tokens`; control tokens are no text."""
        loaded = self._load()
        try:
            CheckedTokenizer(loaded, "under test")
        except PluginError as error:
            raise AssertionError(str(error)) from error
        texts = {name: loaded.token_bytes(token) for name, token in loaded.special_tokens.items()}
        wrong = [name for name, text in texts.items() if text]
        assert not wrong, f"the control token {wrong[0]} adds the text {texts[wrong[0]]!r}"

    def test_texts_come_back(self) -> None:
        """The bytes of a text's tokens are the text, but for the one space that some put before it."""
        loaded = self._load()
        for text in self.texts:
            back = b"".join(map(loaded.token_bytes, loaded.encode(text))).decode("utf-8", "replace")
            if loaded.has_leading_space:
                back = back.removeprefix(" ")
            assert back == text, f"{text!r} comes back as {back!r}"

    def test_nothing_is_added(self) -> None:
        """A text's tokens are its own: none for none, and no control token but where the text names one."""
        loaded = self._load()
        assert list(loaded.encode("")) == [], "an empty text has tokens"
        control = set(loaded.special_tokens.values())
        for text in self.texts:
            added = control & set(loaded.encode(text))
            assert not added, f"{text!r} gets the control tokens {sorted(added)}"

    def test_names_of_control_tokens_are_these(self) -> None:
        """The name of a control token, alone or in a text, is that token."""
        loaded = self._load()
        for name, token in loaded.special_tokens.items():
            assert list(loaded.encode(name)) == [token], f"{name!r} is not token {token}"
            assert token in loaded.encode(f"a{name}b"), f"{name!r} within a text is not token {token}"

    def test_same_text_gives_the_same_tokens_in_threads(self) -> None:
        """Several threads at once get the tokens that one gets alone."""
        loaded, texts = self._load(), [*self.texts] * 8
        alone = [list(loaded.encode(text)) for text in texts]
        with ThreadPoolExecutor(8) as pool:
            assert list(map(list, pool.map(loaded.encode, texts))) == alone, "in threads, a text's tokens are others"

    def test_long_text_takes_linear_time(self) -> None:
        """A text of 200,000 letters, words or one letter again and again, takes less than ten seconds."""
        loaded = self._load()
        for text in ("a lighthouse " * 15_000, "a" * 200_000, " " * 200_000):
            started = time.perf_counter()
            loaded.encode(text)
            assert time.perf_counter() - started < _LONG_SECONDS, "a long text takes more than linear time"

    def test_damaged_files_are_told(self) -> None:
        """A model that was cut, or is other bytes, is a `ModelError`, where it is not known to have a tokenizer."""
        model, factory = self.model(), self.make()
        files = [model] if model.is_file() else [one for one in model.rglob("*") if one.is_file()]
        if not files or sum(one.stat().st_size for one in files) > _MOST_COPIED_BYTES:
            pytest.skip("there is no file of its own, or too much to copy")
        for damage in (_cut, _overwritten):
            with tempfile.TemporaryDirectory() as made:
                copy = Path(made) / model.name
                (shutil.copytree if model.is_dir() else shutil.copy)(model, copy)
                for file in [copy] if copy.is_file() else [one for one in copy.rglob("*") if one.is_file()]:
                    file.write_bytes(damage(file.read_bytes()))
                if factory.matches(copy):
                    _load_or_refuse(factory, copy)

    def _load(self) -> Tokenizer:
        return self.make().load(self.model())


def _cut(data: bytes) -> bytes:
    return data[: len(data) // 3]


def _overwritten(data: bytes) -> bytes:
    return b"\xff\x00" * (len(data) // 2)


def _load_or_refuse(factory: TokenizerFactory, path: Path) -> None:
    try:
        factory.load(path)
    except ModelError:
        return
    except Exception as error:
        raise AssertionError(f"a damaged model is not a ModelError, but {type(error).__name__}: {error}") from error
