from pathlib import Path

import pytest
from pyagent_count import pyagent_register_commands

from pyagent.plugin import RequestError


def test_words_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """The command prints how many words the file has, and the longest when asked."""
    (tmp_path / "text.txt").write_text("three small words")
    pyagent_register_commands()["count"](tmp_path / "text.txt", longest=True)
    assert capsys.readouterr().out == "3\nthree\n"


def test_a_missing_file_is_an_error(tmp_path: Path):
    """A file that is not there is told as PyAgent tells its own errors."""
    with pytest.raises(RequestError, match="cannot be read"):
        pyagent_register_commands()["count"](tmp_path / "nowhere.txt")
