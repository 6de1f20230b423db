"""Byte-level BPE by ranks, as tiktoken and tekken have it, for the library `tokenizers`.

A rank file lists tokens as bytes, those that were made first before the others: of two neighbours whose bytes together
are a token, those of the lowest rank are joined first. As merges that is every way to make a token of two others, in
the order of the ranks. Ranks come from model files: their number and lengths are bounded, since the ways to make a
token are as many as its bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers

from pyagent import _rust
from pyagent.core.errors import ModelError
from pyagent.infrastructure.engine.tokens.huggingface import HuggingFaceTokenizer, byte_alphabet

MAX_TOKENS, MAX_TOKEN_BYTES, MAX_BYTES = 1 << 20, 512, 1 << 24
_LETTERS = str.maketrans({chr(byte): letter for byte, letter in enumerate(byte_alphabet())})
_MAX_PATTERN_CHARS = 4096


def build_ranked(
    ranks: Sequence[bytes],
    added: Mapping[int, tuple[str, bool]],
    pattern: str,
    name: str,
    *,
    first_rank: int = 0,
) -> HuggingFaceTokenizer:
    """Return the tokenizer with these tokens, of which `ranks` begin at the id `first_rank`.

    `pattern` cuts a text into words; `added` are further tokens by id, with whether each is a control token. Raises
    `ModelError` naming the model.
    """
    _check(ranks, name)
    texts = _texts(ranks, added, first_rank, name)
    made = range(first_rank, first_rank + len(ranks))
    merges = _rust.Texts(texts).merges_by_score(list(made), [-float(place) for place in range(len(texts))])
    vocabulary = {text: token for token, text in enumerate(texts)}
    try:
        # A word that is a token is taken whole, before any merging.
        inner = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=merges, ignore_merges=True))
        words = pre_tokenizers.Split(Regex(pattern[:_MAX_PATTERN_CHARS]), "isolated")
    except Exception as error:
        raise ModelError(f"{name}: the tokenizer's ranks or its pattern are not valid: {error}", model=name) from error
    letters = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    inner.pre_tokenizer = pre_tokenizers.Sequence([words, letters])
    inner.decoder = decoders.ByteLevel()
    for is_special in (True, False):
        told = [text for text, special in added.values() if special == is_special]
        inner.add_tokens([AddedToken(text, special=is_special, normalized=False) for text in told])  # pyright: ignore[reportUnknownMemberType]
    return HuggingFaceTokenizer(inner, name, num_tokens=len(texts))


def _texts(ranks: Sequence[bytes], added: Mapping[int, tuple[str, bool]], first_rank: int, name: str) -> list[str]:
    """Return all tokens by id, bytes as their letters; ids that stand for nothing have a name that no text is."""
    num_tokens = max(first_rank + len(ranks), 1 + max(added, default=-1))
    if num_tokens > MAX_TOKENS:
        raise ModelError(f"{name}: a vocabulary of {num_tokens} tokens; {MAX_TOKENS} are read at most", model=name)
    texts = [f"\ufdd0{token}" for token in range(num_tokens)]
    texts[first_rank : first_rank + len(ranks)] = [rank.decode("latin-1").translate(_LETTERS) for rank in ranks]
    for token, (text, _) in added.items():
        if first_rank <= token < first_rank + len(ranks):
            raise ModelError(f"{name}: the token {text!r:.40} has the id {token} of another", model=name)
        texts[token] = text
    if len(set(texts)) != num_tokens:
        raise ModelError(f"{name}: its vocabulary has a token twice", model=name)
    return texts


def _check(ranks: Sequence[bytes], name: str) -> None:
    longest, num_bytes = max(map(len, ranks), default=0), sum(map(len, ranks))
    if longest > MAX_TOKEN_BYTES or num_bytes > MAX_BYTES:
        text = f"tokens of {longest} and {num_bytes} bytes together; {MAX_TOKEN_BYTES} and {MAX_BYTES} are read at most"
        raise ModelError(f"{name}: {text}", model=name)
    missing = set(range(256)) - {rank[0] for rank in ranks if len(rank) == 1}
    if missing or not all(ranks):
        text = f"the byte {min(missing)} is no token" if missing else "a token is empty"
        raise ModelError(f"{name}: {text}, so that not every text can be tokenised", model=name)
