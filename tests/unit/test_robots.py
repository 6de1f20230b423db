"""robots.txt as RFC 9309 has it, by its own examples and the standard library's reader."""

from __future__ import annotations

import time
from urllib.robotparser import RobotFileParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyagent.infrastructure.web.robots import NO_PAGE, fits, read_robots

RFC = """
User-Agent: *
Disallow: *.gif$
Disallow: /example/
Allow: /publications/

User-Agent: foobot
Disallow:/
Allow:/example/page.html
Allow:/example/allowed.gif

User-Agent: barbot
User-Agent: bazbot
Disallow: /example/page.html

User-Agent: quxbot
"""


@pytest.mark.parametrize(
    ("program", "path", "is_allowed"),
    [
        ("pyagent", "/a.gif", False),
        ("pyagent", "/a.gif?x", True),
        ("pyagent", "/example/x", False),
        ("pyagent", "/publications/x", True),
        ("foobot", "/x", False),
        ("foobot", "/example/page.html", True),
        ("barbot", "/example/page.html", False),
        ("BAZBOT", "/example/page.html", False),
        ("barbot", "/a.gif", True),
        ("quxbot", "/example/", True),
    ],
)
def test_examples_of_the_rfc(program: str, path: str, is_allowed: bool) -> None:
    """RFC 9309, 5.1: a program's own groups count, else those of `*`; the longest rule decides."""
    assert read_robots(RFC, program).allows(f"http://x.test{path}") is is_allowed


def test_longest_rule_decides_and_allowing_wins_a_tie() -> None:
    """RFC 9309, 5.2: however rules are ordered, the most specific is taken."""
    robots = read_robots(
        "user-agent: *\ndisallow: /example/page/disallowed.gif\nallow: /example/page/\ndisallow: /tie\nallow: /tie", "x"
    )
    assert robots.allows("http://x.test/example/page/")
    assert not robots.allows("http://x.test/example/page/disallowed.gif")
    assert robots.allows("http://x.test/tie")


def test_encoded_letters_are_one() -> None:
    """A path in percent encoding is the path (RFC 9309, 2.2.2)."""
    robots = read_robots("User-agent: *\nDisallow: /käse\nDisallow: /%7Ejoe/", "x")
    assert not robots.allows("http://x.test/k%C3%A4se")
    assert not robots.allows("http://x.test/~joe/a")


def test_no_answer_allows_nothing() -> None:
    """A site that does not answer lets no page be read; an empty file lets all."""
    assert not NO_PAGE.allows("http://x.test/")
    assert read_robots("", "x").allows("http://x.test/")


@given(
    st.lists(st.sampled_from(["/a", "/a/b", "/c", "/"]), min_size=1, max_size=4),
    st.sampled_from(["/a", "/a/b/c", "/d"]),
)
def test_plain_rules_are_read_as_the_standard_library_does(paths: list[str], path: str) -> None:
    """Of files that only forbid plain paths, both readers say the same."""
    text = "User-agent: *\n" + "\n".join(f"Disallow: {each}" for each in paths)
    parser = RobotFileParser()
    parser.parse(text.splitlines())
    assert read_robots(text, "pyagent").allows(f"http://x.test{path}") == parser.can_fetch(
        "pyagent", f"http://x.test{path}"
    )


def test_hostile_file_is_read_quickly() -> None:
    """Half a megabyte of stars takes less than two seconds."""
    text = "User-agent: *\n" + "Disallow: /" + "*a" * 240_000 + "\n" + "Disallow: /*x*y\n" * 1_000
    begun = time.monotonic()
    assert read_robots(text, "x").allows("http://x.test/" + "a" * 2_000)
    assert time.monotonic() - begun < 2
    assert fits("/*a*a*a*a*a*a*a*a*b", "/" + "a" * 2_000) is False


def test_groups_of_other_programs_cost_nothing() -> None:
    """A file that names thousands of programs, each rule for all of them, is read at once, and its last group too."""
    others = "".join(f"user-agent: {number}\n" for number in range(4_000)) + "disallow: /\n" * 12_000
    begun = time.process_time()
    robots = read_robots(
        f"{others}user-agent: pyagent\nuser-agent: *\nuser-agent: pyagent\ndisallow: /own\n", "pyagent"
    )
    assert time.process_time() - begun < 1
    assert [rule.pattern for rule in robots.rules] == ["/own"]
