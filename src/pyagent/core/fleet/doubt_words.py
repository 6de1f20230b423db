"""Words by which an answer says that it is not sure, by language; found whole, and not where they are denied or quoted.

A list and rules, so that a person can read why an answer counts as doubtful. What stands in code or between quotation
marks is spoken about, and not said. Knows no model.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

import msgspec

MAX_CHARACTERS = 50_000
"""How much of an answer is looked at."""
_QUOTED = re.compile(r'```.*?(?:```|\Z)|`[^`\n]*`|"[^"\n]*"|“[^”\n]*”|«[^»\n]*»|„[^“\n]*“', re.DOTALL)
_WORD = re.compile(r"[^\W_]+(?:['’][^\W_]+)*|[.!?;:\n]")
_END = frozenset(".!?;:\n")


class Language(msgspec.Struct, frozen=True):
    """A language's phrases. `strong` ones say plainly that the answer is not known; `negations` before one deny it."""

    strong: tuple[str, ...]
    weak: tuple[str, ...]
    negations: frozenset[str]


ENGLISH = Language(
    strong=(
        "i don't know",
        "i do not know",
        "i'm not sure",
        "i am not sure",
        "not entirely sure",
        "not completely sure",
        "not quite sure",
        "not sure",
        "i'm not certain",
        "not certain",
        "i'm unsure",
        "i am unsure",
        "unsure",
        "no idea",
        "hard to say",
        "difficult to say",
        "hard to tell",
        "i can't tell",
        "i cannot tell",
        "i can't say for sure",
        "cannot say for sure",
        "can't be sure",
        "cannot be sure",
        "i can only guess",
        "my best guess",
        "just a guess",
        "cannot determine",
        "can't determine",
        "could not determine",
        "couldn't determine",
        "unable to determine",
        "not enough information",
        "don't have enough information",
        "do not have enough information",
        "i could be wrong",
        "i might be wrong",
        "i may be wrong",
        "don't quote me",
    ),
    weak=(
        "maybe",
        "perhaps",
        "possibly",
        "probably",
        "presumably",
        "apparently",
        "supposedly",
        "conceivably",
        "arguably",
        "likely",
        "unlikely",
        "might",
        "may be",
        "may have",
        "may not be",
        "could be",
        "could have been",
        "i think",
        "i don't think",
        "i do not think",
        "i believe",
        "i guess",
        "i suppose",
        "i assume",
        "i suspect",
        "i would guess",
        "i'd guess",
        "it seems",
        "seems to",
        "seems like",
        "it appears",
        "appears to",
        "as far as i know",
        "as far as i can tell",
        "if i remember correctly",
        "if i recall correctly",
        "to the best of my knowledge",
        "uncertain",
        "unclear",
        "doubtful",
    ),
    negations=frozenset(
        {"no", "not", "never", "without", "cannot", "can't", "couldn't", "isn't", "aren't", "neither", "nor"}
    ),
)
GERMAN = Language(
    strong=(
        "ich weiß nicht",
        "ich weiß es nicht",
        "nicht sicher",
        "nicht ganz sicher",
        "unsicher",
        "keine ahnung",
        "schwer zu sagen",
        "lässt sich nicht sagen",
        "nicht genug informationen",
        "ich könnte mich irren",
    ),
    weak=(
        "vielleicht",
        "möglicherweise",
        "wahrscheinlich",
        "vermutlich",
        "wohl",
        "eventuell",
        "anscheinend",
        "scheinbar",
        "könnte",
        "dürfte",
        "ich glaube",
        "ich denke",
        "ich vermute",
        "ich nehme an",
        "soweit ich weiß",
        "es scheint",
        "unklar",
        "ungewiss",
    ),
    negations=frozenset({"nicht", "kein", "keine", "ohne", "nie", "niemals", "weder"}),
)
LANGUAGES: Mapping[str, Language] = {"en": ENGLISH, "de": GERMAN}


class DoubtWords(msgspec.Struct, frozen=True):
    """What was found in a text: the phrases in their order, how many of them are strong, and the text's words."""

    phrases: tuple[str, ...]
    num_strong: int
    num_words: int


def doubt_words(text: str, languages: Sequence[str] = ("en",)) -> DoubtWords:
    """Return the phrases of doubt in a text, in time linear in it."""
    said = _QUOTED.sub(" ", text[:MAX_CHARACTERS])
    words = [word.lower().replace("’", "'") for word in _WORD.findall(said)]
    found, num_strong = list[str](), 0
    for name in languages:
        language = LANGUAGES[name]
        for phrase, is_strong in _phrases_in(words, language):
            found.append(phrase)
            num_strong += is_strong
    return DoubtWords(tuple(found), num_strong, sum(word not in _END for word in words))


def _phrases_in(words: Sequence[str], language: Language) -> Iterable[tuple[str, bool]]:
    table = _table(language)
    place = 0
    while place < len(words):
        match = _match_at(words, place, table)
        if match is None:
            place += 1
            continue
        phrase, is_strong = match
        if is_strong or not _is_denied(words, place, language):
            yield " ".join(phrase), is_strong
        place += len(phrase)


def _match_at(words: Sequence[str], place: int, table: _Table) -> tuple[tuple[str, ...], bool] | None:
    """Return the longest phrase that begins at a word."""
    for phrase, is_strong in table.get(words[place], ()):
        if tuple(words[place : place + len(phrase)]) == phrase:
            return phrase, is_strong
    return None


def _is_denied(words: Sequence[str], place: int, language: Language) -> bool:
    """Whether one of the two words before denies it: `cannot possibly`, `not in the least doubtful` does not count."""
    for word in reversed(words[max(0, place - 2) : place]):
        if word in _END:
            return False
        if word in language.negations:
            return True
    return False


_Table = dict[str, list[tuple[tuple[str, ...], bool]]]
_TABLES: dict[int, _Table] = {}


def _table(language: Language) -> _Table:
    """Return a language's phrases by their first word, the longest first."""
    if id(language) not in _TABLES:
        table: _Table = {}
        phrases = [(tuple(phrase.split()), True) for phrase in language.strong]
        phrases += [(tuple(phrase.split()), False) for phrase in language.weak]
        for phrase, is_strong in sorted(phrases, key=lambda entry: -len(entry[0])):
            table.setdefault(phrase[0], []).append((phrase, is_strong))
        _TABLES[id(language)] = table
    return _TABLES[id(language)]
