"""The pages that an essay may rest on: one for each address, however often and in whatever form it was found. Pure."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from hashlib import blake2b
from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit

import msgspec

from pyagent.core.one_line import printable
from pyagent.core.trust.findings import FLAGGED, Scan
from pyagent.core.trust.scan import MAX_CHARACTERS, scan
from pyagent.core.web_search import SearchHit, WebPage

_TRACKING = re.compile(r"utm_\w+|gclid|fbclid|msclkid|mc_[ce]id|igshid|ref|ref_src|spm|yclid", re.IGNORECASE)
_DEFAULT_PORTS = {"http": 80, "https": 443}
_RANK_CONSTANT = 60
"""Of reciprocal rank fusion (Cormack, Clarke and Büttcher 2009)."""
_WITHHELD_FROM = 0.3
"""A passage's score of injection from which on it is withheld: below what the tools' guard flags."""

_MIN_LINE_CHARACTERS = 12
"""Of a line that is scanned by itself: a shorter one says nothing without its neighbours."""


class Source(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A page that was read. `num_withheld` passages of it read like instructions to a model, and were left out."""

    number: int
    url: str
    title: str
    author: str = ""
    date: str = ""
    accessed: str
    num_withheld: int = 0

    def __str__(self) -> str:
        author = f"{self.author}: " if self.author else ""
        date = f", {self.date}" if self.date else ""
        return f"[{self.number}] {author}{self.title}{date}. {self.url} (accessed {self.accessed})"


class Text(msgspec.Struct, frozen=True):
    """What a source says, without the passages that are withheld, which are blank in it."""

    source: Source
    text: str
    kinds: tuple[str, ...] = ()


def canonical_url(url: str) -> str:
    """Return an address as it is compared and asked: no fragment, no tracking, ASCII alone. Raises `ValueError`."""
    parts = urlsplit(url)
    host, port = (parts.hostname or "").rstrip("."), parts.port
    if parts.scheme not in {"http", "https"} or not host or "@" in parts.netloc:
        raise ValueError(f"{url!r:.200} is no http:// or https:// URL")
    if not host.isascii():
        host = host.encode("idna").decode("ascii")
    host = f"[{host}]" if ":" in host else host
    netloc = host if port in {None, _DEFAULT_PORTS[parts.scheme]} else f"{host}:{port}"
    asked = [(key, value) for key, value in parse_qsl(parts.query, keep_blank_values=True, max_num_fields=100)
             if not _TRACKING.fullmatch(key)]  # fmt: skip
    path = quote(parts.path or "/", safe="/%:@!$&'()*+,;=~-._")
    return urlunsplit((parts.scheme, netloc, path, urlencode(asked), ""))


def ranked(found: Sequence[Sequence[SearchHit]]) -> list[SearchHit]:
    """Return the results of several searches as one list without doubles, those first that many searches rank high."""
    url_to_hit: dict[str, SearchHit] = {}
    scores: dict[str, float] = {}
    for hits in found:
        for rank, hit in enumerate(hits, 1):
            try:
                url = canonical_url(hit.url)
            except ValueError:
                continue
            key = url.partition("://")[2].removesuffix("/")
            url_to_hit.setdefault(key, msgspec.structs.replace(hit, url=url))
            scores[key] = scores.get(key, 0.0) + 1 / (_RANK_CONSTANT + rank)
    return sorted(url_to_hit.values(), key=lambda hit: -scores[hit.url.partition("://")[2].removesuffix("/")])


def fingerprint(text: str) -> bytes:
    """Return what is equal for texts of the same words: a copy on another site is no second source."""
    return blake2b(" ".join(re.findall(r"\w+", text.lower())).encode(), digest_size=16).digest()


def read_source(number: int, page: WebPage, hit: SearchHit) -> Text:
    """Return a page as a source; lines that read like instructions to a model are blank, and never reach one."""
    withheld = _withheld(page.text)
    lines = page.text.split("\n")
    for place in withheld:
        lines[place] = " " * len(lines[place])
    title = page.title or hit.title or page.url
    source = Source(
        number=number,
        url=page.url,
        title=_shown(page.url if _is_injection(title) else title),
        author="" if _is_injection(page.author) else _shown(page.author),
        date=_shown(page.date),
        accessed=page.accessed,
        num_withheld=len(withheld),
    )
    kinds = dict.fromkeys(kind for found in withheld.values() for kind in found)
    return Text(source, "\n".join(lines), tuple(kinds))


def _withheld(text: str) -> dict[int, list[str]]:
    """Return the numbers of the lines that are signs of injection, alone or with their neighbours, and the signs."""
    found: dict[int, list[str]] = {}
    starts = [0, *(place.end() for place in re.finditer("\n", text))]
    for number, line in enumerate(text.split("\n")):
        seen = scan(line, "injection") if len(line) >= _MIN_LINE_CHARACTERS else Scan()
        if seen.injection >= _WITHHELD_FROM:
            found[number] = [finding.kind for finding in seen.findings]
    whole = scan(text, "injection")
    for finding in whole.findings if whole.injection >= FLAGGED and len(text) <= MAX_CHARACTERS else ():
        if finding.weight >= _WITHHELD_FROM:
            first, last = (
                bisect_right(starts, place) - 1 for place in (finding.start, max(finding.start, finding.end - 1))
            )
            for number in range(first, last + 1):
                found.setdefault(number, []).append(finding.kind)
    return found


def _is_injection(text: str) -> bool:
    return scan(text, "injection").injection >= _WITHHELD_FROM


def _shown(text: str) -> str:
    return printable(" ".join(text.split()))[:200].replace("[", "(").replace("]", ")").rstrip(".")
