"""`pyagent score` and what it is made of: perplexity, bits per byte, and the least expected tokens of a text."""

from __future__ import annotations

import json
import math
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.command_line import fresh_environment, pyagent
from support.native import NUM_TOKENS, engine_logits, options, run, running

from pyagent.core.text_score import _pieces, score_text
from pyagent.infrastructure.engine.tokens import ModelTokenizer

TEXT = "the user is at ease,\nand 12 more; the system is on\n\nthe end of it: 7 × 8\n"


def logprobs(path: Path, text: str) -> list[float]:
    """The float64 log probabilities of a text's tokens but the first."""
    tokens = ModelTokenizer.load(path, vocab_size=NUM_TOKENS).encode_text(text)
    rows = engine_logits(path, tokens)
    found: list[float] = []
    for row, token in zip(rows, tokens[1:], strict=False):
        greatest = max(row)
        found.append(row[token] - greatest - math.log(math.fsum(math.exp(logit - greatest) for logit in row)))
    return found


def test_a_texts_score_is_that_of_plain_arithmetic(tiny_model_path: Path) -> None:
    """Perplexity, bits per byte and the least expected tokens, with their lines, follow from the model's logits."""

    async def main() -> None:
        async with running(tiny_model_path, options(kv_type="f32")) as backend:
            scored = await score_text(backend, TEXT, num_least_expected=3)
        expected = logprobs(tiny_model_path, TEXT)
        assert scored.num_tokens == len(expected)
        assert scored.logprob == pytest.approx(math.fsum(expected), rel=1e-5)
        assert scored.perplexity == pytest.approx(math.exp(-math.fsum(expected) / len(expected)), rel=1e-5)
        tokenizer = ModelTokenizer.load(tiny_model_path, vocab_size=NUM_TOKENS)
        first = tokenizer.token_text(tokenizer.encode_text(TEXT)[0])
        assert scored.num_bytes == len(TEXT.encode()) - len(first.encode())
        bits = -math.fsum(expected) / math.log(2) / scored.num_bytes
        assert scored.bits_per_byte == pytest.approx(bits, rel=1e-5)
        found = [token.logprob for token in scored.least_expected]
        assert found == pytest.approx(sorted(expected)[:3], rel=1e-5)
        for token in scored.least_expected:
            assert token.rank is not None
            assert token.rank > 1
            assert token.token.strip("\ufffd") in TEXT.splitlines(keepends=True)[token.line - 1]

    run(main())


def test_a_long_text_is_scored_in_windows(tiny_model_path: Path) -> None:
    """A text longer than window and context is scored in parts that fit, each by itself; lines go on counting."""
    text = TEXT * 30

    async def main() -> None:
        async with running(tiny_model_path, options(max_model_len=128)) as backend:
            scored = await score_text(backend, text, window_tokens=64)
            whole = await score_text(backend, text, window_tokens=100_000)
        for score in (scored, whole):
            assert score.num_tokens > 1000
            assert score.num_bytes > 0.95 * len(text.encode())
            assert score.perplexity is not None
            assert score.perplexity > 1
            assert max(token.line for token in score.least_expected) > 8

    run(main())


@given(st.text(max_size=200), st.integers(1, 40))
def test_pieces_are_the_text(text: str, most_bytes: int) -> None:
    """Joined, the pieces of a text are the text; each has so many bytes at most, or is one letter."""
    pieces = list(_pieces(text, most_bytes))
    assert "".join(pieces) == text
    assert all(len(piece.encode()) <= most_bytes or len(piece) == 1 for piece in pieces)


def test_command_scores_files_and_lines(tiny_model_path: Path, tmp_path: Path) -> None:
    """A file whole, in plain words and as JSON; each line by itself; what is no text is refused."""
    file = tmp_path / "text.txt"
    file.write_text(TEXT)

    def score(*arguments: str) -> subprocess.CompletedProcess[str]:
        return pyagent("score", *arguments, "--model", str(tiny_model_path), env=fresh_environment(tmp_path))

    shown = score(str(file))
    assert shown.returncode == 0, shown.stderr
    assert "perplexity" in shown.stdout
    assert shown.stdout.count("logprob") == 5
    whole = json.loads(score(str(file), "--json", "--top", "0").stdout)
    assert whole["perplexity"] == pytest.approx(
        math.exp(-math.fsum(found := logprobs(tiny_model_path, TEXT)) / len(found)), rel=0.05
    )
    assert whole["least_expected"] == []
    lines = score(str(file), "--json", "--lines").stdout.splitlines()
    assert [json.loads(line)["line"] for line in lines] == [1, 2, 4]
    assert [json.loads(line)["text"] for line in lines] == [line for line in TEXT.splitlines() if line]
    plain = score(str(file), "--lines").stdout.splitlines()
    assert [line.split()[0] for line in plain] == ["1", "2", "4"]
    (tmp_path / "bad.txt").write_bytes(b"\xff\xfe\x00")
    refused = score(str(tmp_path / "bad.txt"))
    assert refused.returncode != 0
    assert "is not UTF-8 text" in refused.stderr
