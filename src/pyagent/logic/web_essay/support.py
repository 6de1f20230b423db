"""Whether a sentence says nothing but what a quote says: figures, names, denials and words, by exact rules. Pure.

This is what holds where a model words an essay: a sentence that fails is left out, however well it sounds. Words may be
left out or put in another order, none may be new, and little may be left out: a clause that goes can turn the sense.
"""

from __future__ import annotations

import re
from collections import Counter

from pyagent.logic.agents.passages import STOP_STEMS, stem, terms
from pyagent.logic.web_essay.statements import NEGATION

_FIGURE = re.compile(r"\d+(?:[.,]\d+)*")
_HEDGE = re.compile(
    r"\b(?:may|might|could|would|should|if|unless|until|alleged(?:ly)?|reported(?:ly)?|claim(?:s|ed)?|believed?"
    r"|according|planned|plans|proposed|expected|estimated?|about|around|approximately|roughly|nearly|almost|over|under"
    r"|more|less|fewer|least|up to|some|most|many|few|only|all|every|once|former(?:ly)?|no longer|probably|perhaps"
    r"|possibly|likely)\b",
    re.IGNORECASE,
)
_JOINING = frozenset(
    map(stem, ["also", "moreover", "furthermore", "additionally", "addition", "meanwhile", "while", "whereas"])
)
_NAME = re.compile(r"\b[^\W\d_]*[A-ZÀ-ÖØ-Þ][\w’'-]*")
_MIN_KEPT = 0.75


def figures(text: str) -> Counter[str]:
    """Return the figures of a text, each as often as it stands there."""
    return Counter(match[0].replace(",", "") for match in _FIGURE.finditer(text))


def supports(quote: str, sentence: str) -> bool:
    """Whether the quote says what the sentence says.

    The sentence has no figure and no content word that the quote has not, the same denials and the same words of doubt
    and degree, three of four content words of the quote, and the names and figures in the quote's order.
    """
    said, meant = set(terms(sentence)) - STOP_STEMS - _JOINING, set(terms(quote)) - STOP_STEMS
    return (
        bool(said)
        and said <= meant
        and len(said) >= _MIN_KEPT * len(meant)
        and not figures(sentence) - figures(quote)
        and _found(NEGATION, sentence) == _found(NEGATION, quote)
        and _found(_HEDGE, sentence) == _found(_HEDGE, quote)
        and _keeps_order(quote, sentence)
    )


def _found(pattern: re.Pattern[str], text: str) -> Counter[str]:
    return Counter(match[0].lower() for match in pattern.finditer(text))


def _keeps_order(quote: str, sentence: str) -> bool:
    """Whether names and figures come in one order in both: who did what to whom, what came before what."""
    marked = [(match.start(), match[0]) for pattern in (_NAME, _FIGURE) for match in pattern.finditer(sentence)]
    places = [quote.find(word) for _, word in sorted(marked)]
    known = [place for place in places if place >= 0]
    return known == sorted(known)
