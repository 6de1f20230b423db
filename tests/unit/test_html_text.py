"""Pages in HTML as text: the words that are shown, in time that grows with the page's length."""

from __future__ import annotations

import pytest

from pyagent.core.html_text import html_text


@pytest.mark.parametrize(
    ("html", "text"),
    [
        ("<!DOCTYPE html><title>T &amp; t</title><p>one <b>two</b><br/>three", "T & t\none two\nthree"),
        ("<p onclick=\"a=>b\" title='c > d'>shown</p>", "shown"),
        ("<script>if (a<b) x = '<p>no</p>'</SCRIPT >yes<style>p {}</style>", "yes"),
        ("a<!-- <p>no -->b<!-->c<!--->d", "a b c d"),
        ("<svg/>in<svg><svg>no</svg>no</svg>out", "in out"),
        ("1 < 2 &lt; 3", "1 < 2 < 3"),
        ("before<script>never closed", "before"),
        ("before<a href='never closed", "before"),
        (f"&#{'9' * 5000};", f"&#{'9' * 5000};"),
    ],
)
def test_page_is_its_words(html: str, text: str) -> None:
    """What a browser does not show is left out, whatever it holds."""
    assert html_text(html) == text


@pytest.mark.parametrize("part", ["<a ", "<a b='", "<a =", "<!--", "<!", "</", "<svg>", "<script></s", "<", '<a x=" '])
def test_page_of_things_never_closed_is_read(part: str) -> None:
    """A page that repeats what is never closed is read in one pass; looking at text again takes minutes."""
    html_text(part * (200_000 // len(part)))
