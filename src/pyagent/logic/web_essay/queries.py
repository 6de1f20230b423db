"""What is searched for: queries that rules make of a topic, and those of a model that stay with it. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from pyagent.core.one_line import printable
from pyagent.logic.agents.passages import STOP_STEMS, terms

MAX_QUERY_CHARACTERS = 200
_MAX_TASK_CHARACTERS = 2_000
_WISH = re.compile(
    r"^\W*(?:(?:please|can you|could you|i need|i want|give me|make|do|write|create|compose|draft|prepare)\s+){0,3}"
    r"(?:me\s+)?(?:an?\s+|the\s+)?(?:(?:short|long|brief|well-sourced|sourced|web|news|academic|blog)\s+){0,3}"
    r"(?:web[- ]search[- ])?(?:essay|article|report|paper|post|blog post|briefing|explainer|text|piece)s?\s+"
    r"(?:about|on|of|regarding|concerning)\s+(?:the (?:topic|subject) (?:of\s+)?)?",
    re.IGNORECASE,
)
_TRAILING = re.compile(
    r"(?:[\s,;]{1,4}(?:and |with |citing |from |using |on |in )*(?:its |their |good |online |web )*"
    r"(?:citations?|sources?|references?|quotes?|cited|the (?:web|internet)|web (?:pages?|sites?)|online)){1,4}"
    r"[\s.!?\"']*$|[\s.!?\"']+$",
    re.IGNORECASE,
)
_FROM_THE_WEB = re.compile(
    r"\b(?:web|online|internet|citations?|cit(?:e|ed|ing)|sources?|references?|fact[- ]check\w*)\b", re.IGNORECASE
)
_FACETS = ("facts and figures", "history", "criticism and controversy")
_BULLET = re.compile(r"^\s*(?:[-*•]|\(?\d{1,2}[.):])\s*|[\"“”']")


def is_wish(text: str) -> bool:
    """Whether a text asks for an essay that rests on the web: a text about something, and sources or a search."""
    head = text[:_MAX_TASK_CHARACTERS]
    return bool(_WISH.match(head)) and bool(_FROM_THE_WEB.search(head))


def topic_of(text: str) -> str:
    """Return what an essay is wanted about, on one line: the text without the wish for an essay."""
    line = printable(" ".join(text[:_MAX_TASK_CHARACTERS].split()))
    bare = _TRAILING.sub("", _WISH.sub("", line, count=1), count=1)
    return (bare or line)[:MAX_QUERY_CHARACTERS].strip()


def rule_queries(topic: str) -> list[str]:
    """Return the topic's queries: its words as they are, and its content words with what essays speak about."""
    words = " ".join(dict.fromkeys(word for word in re.findall(r"[\w'’.-]+", topic) if _says_something(word)))
    about = words or topic
    return list(dict.fromkeys(query[:MAX_QUERY_CHARACTERS] for query in (topic, *(f"{about} {f}" for f in _FACETS))))


def kept_queries(lines: Iterable[str], topic: str, beside: Sequence[str]) -> list[str]:
    """Return the lines of a model that are queries about the topic, and new: each has a content word of it."""
    wanted = set(terms(topic)) - STOP_STEMS
    known = [frozenset(terms(query)) for query in beside]
    found: list[str] = []
    for line in lines:
        query = printable(" ".join(_BULLET.sub("", line).split()))
        words = frozenset(terms(query))
        is_query = 1 < len(words) <= 12 and not re.search(r"[:=!;]|\.$", query) and bool(words & wanted)
        if is_query and words not in known:
            known.append(words)
            found.append(query)
    return found


def _says_something(word: str) -> bool:
    return bool(set(terms(word)) - STOP_STEMS)
