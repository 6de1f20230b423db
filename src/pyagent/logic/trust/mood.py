"""The mood of a text by a small lexicon: how pleasant (valence) and how stirred (arousal). Pure.

As in VADER (Hutto and Gilbert, ICWSM 2014): a word's valence counts 0.74 of its opposite when denied in the three words
before it, more or less after words such as `very` and `slightly`; the sum x becomes x / sqrt(x^2 + 15).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import sqrt

import msgspec

_WORD = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)*|!")
_MAX_CHARACTERS = 200_000
_REACH = 3
_DENIED = -0.74
_NORMAL = 15.0
_NEGATIONS = frozenset(
    [
        "no",
        "not",
        "never",
        "none",
        "nobody",
        "nothing",
        "neither",
        "nor",
        "without",
        "hardly",
        "cannot",
        "can't",
        "don't",
        "doesn't",
        "didn't",
        "isn't",
        "aren't",
        "wasn't",
        "weren't",
        "won't",
        "wouldn't",
        "shouldn't",
        "couldn't",
        "haven't",
        "hasn't",
        "nicht",
        "kein",
        "keine",
        "nie",
        "ohne",
        "pas",
        "jamais",
        "sans",
        "nunca",
        "sin",
        "non",
        "mai",
        "senza",
        "não",
        "nem",
        "не",
        "нет",
        "без",
    ]
)
_DEGREES: Mapping[str, float] = {
    **dict.fromkeys(
        [
            "very",
            "really",
            "extremely",
            "absolutely",
            "totally",
            "completely",
            "so",
            "incredibly",
            "deeply",
            "utterly",
            "too",
            "sehr",
            "äußerst",
            "total",
            "très",
            "vraiment",
            "muy",
            "realmente",
            "molto",
            "davvero",
            "muito",
            "очень",
        ],
        1.3,
    ),
    **dict.fromkeys(
        [
            "slightly",
            "somewhat",
            "rather",
            "fairly",
            "little",
            "kind",
            "partly",
            "etwas",
            "ziemlich",
            "peu",
            "poco",
            "un",
            "pouco",
        ],
        0.6,
    ),
}
_LEXICON_TEXT = (
    # valence from -4 to 4, arousal from 0 to 1
    (3.0, 0.6, "love loved loves wonderful excellent fantastic amazing great brilliant superb liebe wunderbar adore merveilleux amo maravilloso amore люблю прекрасно"),
    (2.0, 0.4, "good happy glad nice thanks thank pleased enjoy enjoyed kind helpful beautiful welcome fine well gut froh danke schön freue bon merci heureux bueno gracias feliz bello grazie bom obrigado хорошо спасибо"),
    (1.8, 0.7, "excited thrilled delighted wow celebrate congratulations won win begeistert ravi emocionado"),
    (1.5, 0.1, "calm peaceful relaxed safe gentle quiet comfortable ruhig entspannt calme tranquilo"),
    (1.0, 0.2, "ok okay sure agree fair correct works useful clear okay genau"),
    (-1.0, 0.3, "problem problems issue wrong late mistake difficult unclear slow bored boring fehler problem schwierig problème problema"),
    (-1.8, 0.2, "sad sorry tired lonely disappointed unhappy miss lost regret traurig müde einsam triste fatigué cansado solo грустно"),
    (-2.0, 0.7, "afraid scared worried anxious nervous panic fear stressed angst sorge panik peur inquiet miedo paura боюсь страшно"),
    (-2.2, 0.6, "bad annoyed upset angry frustrated guilty ashamed jealous selfish unfair schlecht wütend verärgert mauvais fâché enojado malo arrabbiato плохо злой"),
    (-3.0, 0.8, "hate hated terrible horrible awful furious disgusting worst cruel threat threaten arrest hurt kill hasse schrecklich furchtbar déteste horrible odio terribile ненавижу ужасно"),
    (-2.6, 0.7, "stupid idiot fool liar useless pathetic worthless loser scam fraud dumm idiot lügner stupide menteur estúpido mentiroso"),
    (-0.5, 0.8, "urgent urgently immediately now hurry emergency warning alert sofort dringend urgence urgente срочно"),
)  # fmt: skip
_LEXICON: Mapping[str, tuple[float, float]] = {
    word: (valence, arousal) for valence, arousal, words in _LEXICON_TEXT for word in words.split()
}


class Mood(msgspec.Struct, frozen=True):
    """Valence from -1 (bad) to 1 (good), arousal from 0 (calm) to 1; both are 0 where `num_words` of the lexicon is 0."""

    valence: float = 0.0
    arousal: float = 0.0
    num_words: int = 0


def mood_of(text: str) -> Mood:
    """Return the mood of a text's first 200,000 characters."""
    words = _WORD.findall(text[:_MAX_CHARACTERS])
    valence = arousal = 0.0
    num_words = num_shouts = 0
    for at, word in enumerate(words):
        num_shouts += word == "!" or (len(word) > 2 and word.isupper())
        if (known := _LEXICON.get(word.lower())) is None:
            continue
        factor = _factor(words[max(0, at - _REACH) : at])
        valence += known[0] * factor
        arousal += known[1] * min(1.3, abs(factor))
        num_words += 1
    if not num_words and not num_shouts:
        return Mood()
    stirred = arousal / max(1, num_words) + min(0.3, 0.1 * num_shouts)
    return Mood(round(valence / sqrt(valence * valence + _NORMAL), 3), round(min(1.0, stirred), 3), num_words)


def _factor(before: list[str]) -> float:
    """Return what the words before one make of its valence."""
    factor = 1.0
    for word in before:
        small = word.lower().replace("’", "'")
        factor *= _DENIED if small in _NEGATIONS else _DEGREES.get(small, 1.0)
    return factor
