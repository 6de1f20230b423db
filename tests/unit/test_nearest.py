"""The known word nearest to an unknown one."""

from __future__ import annotations

import subprocess
import sys

from hypothesis import given
from hypothesis import strategies as st

from pyagent.core.nearest import did_you_mean, nearest

WORDS = st.text("abcdefgh-.", min_size=1, max_size=12)


@given(WORDS, st.sets(WORDS, max_size=8))
def test_nearest_is_a_known_word_or_none(word: str, known: set[str]) -> None:
    """What is offered is known, and a known word is nearest to itself."""
    found = nearest(word, known)
    assert found is None or found in known
    assert nearest(word, {word, *known}) == word


def test_did_you_mean_names_the_nearest_word() -> None:
    """A misspelt word's hint quotes the known one; an unlike word gets the other hint."""
    assert did_you_mean("temprature", ["top_p", "temperature"]) == "did you mean 'temperature'?"
    assert did_you_mean("xyz", ["native", "ollama"], "there are native, ollama") == "there are native, ollama"
    assert did_you_mean("xyz", []) == ""


def test_nearest_imports_difflib_only_for_an_error() -> None:
    """Importing the module costs nothing of difflib."""
    code = "import sys, pyagent.core.nearest; sys.exit('difflib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
