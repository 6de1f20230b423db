"""How byte-level vocabularies cut a text into words before its bytes are joined, by regular expressions. Pure text.

Those of the families that files name without saying them: tiktoken's ranks, GGUF's `tokenizer.ggml.pre`.
"""

from __future__ import annotations

_CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_BEFORE_WORD = r"[^\r\n\p{L}\p{N}]?"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_HAN = r"\p{Han}"


def _cased(upper: str, lower: str, *, after: str = f"{_CONTRACTIONS}?", digits: str = "{1,3}") -> str:
    """Return words that end where a small letter meets a capital one, and numbers of some digits."""
    return rf"{_BEFORE_WORD}{upper}*{lower}+{after}|{_BEFORE_WORD}{upper}+{lower}*{after}|\p{{N}}{digits}"


GPT2 = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
FALCON = (r"[\p{P}$+<=>^~|`]+", GPT2, "[0-9]{3}")
"""One after the other: marks, of which ASCII has all that are no letters, then GPT-2's words, then digits by three."""
BLOOM = " ?[^(\\s|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+"
"""Words end at what ends or parts sentences, in several scripts; digits and other marks belong to them."""
CL100K = rf"{_CONTRACTIONS}|{_BEFORE_WORD}\p{{L}}+|\p{{N}}{{1,3}}|{_REST}"
"""Of GPT-4 and Llama 3."""
QWEN = rf"{_CONTRACTIONS}|{_BEFORE_WORD}\p{{L}}+|\p{{N}}|{_REST}"
QWEN35 = (
    rf"{_CONTRACTIONS}|{_BEFORE_WORD}[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|"
    r"\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""Marks, such as accents of their own and vowel signs, belong to words."""
_REST_WITH_SLASHES = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
O200K = rf"{_cased(_UPPER, _LOWER)}|{_REST_WITH_SLASHES}"
COHERE2_MOE = (r"\d{1,3}(?=(?:\d{3})*\b)", O200K)
"""Of Command A+: numbers are grouped by three from their end, then GPT-4o's words."""
_SPACES = "|".join(rf"\s{{{count}}}(?!\S)" for count in ("512", "256", "128", "64", "32", "16", "8", "4", "1,2"))
JAIS2 = rf"{_CONTRACTIONS}|{_BEFORE_WORD}\p{{L}}+|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|{_SPACES}|\s"
"""Of Jais 2: Llama 3's, but that spaces are cut by powers of two."""
TEKKEN = rf"{_cased(_UPPER, _LOWER, after='', digits='')}|{_REST_WITH_SLASHES}"
"""Of Mistral's: digits stand alone."""
YOUTU = (
    "[\uac00-\ud7a3\u3131-\u318e]+|[\uff01\u2026\u201c\u201d\u2018\u2019\u2014\uff1a\uff1b\uff0c"
    "\u3001-\u303f\ufe30-\ufe4f]+|[\u3105-\u312f]+|[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
    rf"{_cased(_UPPER, _LOWER, digits='')}|{_REST_WITH_SLASHES}",
)
"""Of Youtu-LLM: Korean, full-width marks, Bopomofo and Chinese or Japanese stand alone, then GPT-4o's words."""
KIMI = rf"{_HAN}+|{_cased(f'[{_UPPER}&&[^{_HAN}]]', f'[{_LOWER}&&[^{_HAN}]]')}|{_REST}"
SEED = rf"{_CONTRACTIONS}|{_BEFORE_WORD}\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+"
EXAONE_MOE = (
    rf"{_CONTRACTIONS}|{_BEFORE_WORD}(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]?|"
    r"\s*[\r\n]|\s+(?!\S)|\s+"
)
"""Of EXAONE with experts: words with single spaces between them are one, as its tokens go over them."""
_ASCII_MARKS = r"[!-/:-~&&[^A-Za-z]]"
DEEPSEEK_V3 = (
    r"\p{N}{1,3}",
    "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
    rf"{_ASCII_MARKS}[A-Za-z]+|[^\r\n\p{{L}}\p{{P}}\p{{S}}]?[\p{{L}}\p{{M}}]+| ?[\p{{P}}\p{{S}}]+[\r\n]*|"
    r"\s*[\r\n]+|\s+(?!\S)|\s+",
)
"""One after the other: numbers, then Chinese and Japanese, then the rest."""
AFMOE = (
    r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))",
    "[\u4e00-\u9fff\u3400-\u4dbf\uf900-\ufaff\u3040-\u30ff\uff65-\uff9f\u2f00-\u2fdf\u0e40-\u0eff\u1780-\u17ff"
    "\u1000-\u109f\uaa60-\uaa7f\ua9e0-\ua9ff\uac00-\ud7af\u1100-\u11ff]+",
    DEEPSEEK_V3[2],
)
"""Of Arcee's Trinity: numbers are grouped by three from their end; further scripts without spaces stand alone."""
