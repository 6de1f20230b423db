"""Which language a text is in, as far as a model has to be told: by its letters, else by its commonest words. Pure."""

from __future__ import annotations

import re
from collections import Counter

_SAMPLE_CHARACTERS = 20_000
_MIN_LETTERS = 0.3
"""The share of a script's letters from which on a text is in it: names and code are in Latin letters everywhere."""
_SCRIPTS: tuple[tuple[str, str], ...] = (
    ("Japanese", "\u3040-\u30ff"),
    ("Korean", "\uac00-\ud7af\u1100-\u11ff"),
    ("Chinese", "\u3400-\u9fff"),
    ("Thai", "\u0e00-\u0e7f"),
    ("Hindi", "\u0900-\u097f"),
    ("Bengali", "\u0980-\u09ff"),
    ("Tamil", "\u0b80-\u0bff"),
    ("Hebrew", "\u0590-\u05ff"),
    ("Arabic", "\u0600-\u06ff"),
    ("Greek", "\u0370-\u03ff"),
    ("Russian", "\u0400-\u04ff"),
)
_MIN_KANA = 0.05
"""Of Japanese: the rest are letters that Chinese has too."""
_MORE_PRECISE: tuple[tuple[str, str, str], ...] = (
    ("Russian", "Ukrainian", "іїєґ"),
    ("Arabic", "Persian", "پچژگ"),
    ("Arabic", "Urdu", "ٹڈڑےں"),
)
_WORDS = {
    "English": "the of and to is was that with for are this by from have it",
    "German": "der die das und ist nicht ein eine den von mit auf für sich dem",
    "French": "le la les des et est une dans que pour qui sur pas du avec",
    "Spanish": "el la los las que y en una es por con para del se su",
    "Portuguese": "o a os as que e em uma não para com por do da é",
    "Italian": "il la che di e un una per non sono con del della gli è",
    "Dutch": "de het een van en is dat niet op te met voor zijn aan er",
    "Polish": "w i na z nie się do jest że to o od po dla przez",
    "Turkish": "ve bir bu için ile da de olarak çok olan daha en gibi ne",
    "Swedish": "och att det som en på är av för med till den inte om ett",
}
_WORD_TO_LANGUAGES = {
    word: [language for language, words in _WORDS.items() if word in words.split()]
    for word in {word for words in _WORDS.values() for word in words.split()}
}
_LETTER_WORD = re.compile(r"[^\W\d_]+")


def language_of(text: str) -> str:
    """Return a text's language in English, as `German`; empty where its letters and words do not say."""
    sample = text[:_SAMPLE_CHARACTERS]
    letters = [letter for letter in sample if letter.isalpha()]
    if not letters:
        return ""
    for language, ranges in _SCRIPTS:
        share = len(re.findall(f"[{ranges}]", sample)) / len(letters)
        if share >= (_MIN_KANA if language == "Japanese" else _MIN_LETTERS):
            return _more_precise(language, sample)
    return _by_words(sample)


def joins_without_space(language: str) -> bool:
    """Whether the sentences of a language follow each other without a space."""
    return language in {"Japanese", "Chinese"}


def _more_precise(language: str, sample: str) -> str:
    for known, other, own in _MORE_PRECISE:
        if language == known and sum(sample.count(letter) for letter in own) > len(sample) / 100:
            return other
    return language


def _by_words(sample: str) -> str:
    words = _LETTER_WORD.findall(sample.lower())
    votes: Counter[str] = Counter()
    for word in words:
        votes.update(_WORD_TO_LANGUAGES.get(word, ()))
    ranked = votes.most_common(2)
    if not ranked or ranked[0][1] < max(2, len(words) / 20):
        return ""
    return "" if len(ranked) > 1 and ranked[0][1] == ranked[1][1] else ranked[0][0]
