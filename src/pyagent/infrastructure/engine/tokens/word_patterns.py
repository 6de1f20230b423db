"""How byte-level vocabularies cut a text into words before its bytes are joined, by regular expressions. Pure text.

Those of the families that files name without saying them: tiktoken's ranks, GGUF's `tokenizer.ggml.pre`.
"""

from __future__ import annotations

_CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_BEFORE_WORD = r"[^\r\n\p{L}\p{N}]?"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_HAN = r"\p{Han}"


def _cased(upper: str, lower: str) -> str:
    """Return words that end where a small letter meets a capital one, and numbers of up to three digits."""
    return (
        rf"{_BEFORE_WORD}{upper}*{lower}+{_CONTRACTIONS}?|{_BEFORE_WORD}{upper}+{lower}*{_CONTRACTIONS}?|"
        r"\p{N}{1,3}"
    )


GPT2 = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
CL100K = rf"{_CONTRACTIONS}|{_BEFORE_WORD}\p{{L}}+|\p{{N}}{{1,3}}|{_REST}"
"""Of GPT-4 and Llama 3."""
QWEN = rf"{_CONTRACTIONS}|{_BEFORE_WORD}\p{{L}}+|\p{{N}}|{_REST}"
QWEN35 = (
    rf"{_CONTRACTIONS}|{_BEFORE_WORD}[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|"
    r"\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""Marks, such as accents of their own and vowel signs, belong to words."""
SEED = rf"{_CONTRACTIONS}|{_BEFORE_WORD}\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+"
"""Of Seed-OSS: line breaks belong to no mark before them."""
TEKKEN = (
    rf"{_BEFORE_WORD}{_UPPER}*{_LOWER}+|{_BEFORE_WORD}{_UPPER}+{_LOWER}*|\p{{N}}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""Of Mistral's: words end where a small letter meets a capital one, and digits are single."""
_ASCII_MARKS = r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~]"""
DEEPSEEK3 = (
    r"\p{N}{1,3}",
    "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
    rf"{_ASCII_MARKS}[A-Za-z]+|[^\r\n\p{{L}}\p{{P}}\p{{S}}]?[\p{{L}}\p{{M}}]+|"
    r" ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
)
"""Of DeepSeek-V3 and Hunyuan, one after the other: numbers, Chinese and Japanese, then words."""
O200K = rf"{_cased(_UPPER, _LOWER)}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
KIMI = rf"{_HAN}+|{_cased(f'[{_UPPER}&&[^{_HAN}]]', f'[{_LOWER}&&[^{_HAN}]]')}|{_REST}"
