"""`pyagent search`, as a person uses it."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from pyagent.cli.root import run
from pyagent.core.errors import RequestError


@pytest.fixture
def config(tmp_path: Path) -> list[str]:
    """Return the flags of settings that keep their data here."""
    file = tmp_path / "pyagent.toml"
    file.write_text(f'[paths]\ndata = "{tmp_path / "data"}"\n')
    return ["--config", str(file)]


def test_search_shows_files_and_lines(tmp_path: Path, config: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Hits are shown with file, line and an excerpt; --json has the ranks; nothing found is said."""
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "a.md").write_text("The deposit is unusual.\n")
    assert run(["search", "deposits", "--files", str(tmp_path / "docs"), *config]) == 0
    assert capsys.readouterr().out == "a.md:1\n  The deposit is unusual.\n"
    assert run(["search", "unusual", "--json", "--files", str(tmp_path / "docs"), *config]) == 0
    found = msgspec.json.decode(capsys.readouterr().out)
    assert found["hits"][0]["keyword_rank"] == 1
    assert run(["search", "nowhere", *config]) == 0
    assert capsys.readouterr().out == "nothing found in 0 passages\n"


def test_search_refuses_what_it_cannot_do(
    tmp_path: Path, config: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Wrong flags, folders that are none and queries without words are answered by a sentence."""
    assert run(["search", "x", "--runs", "--files", str(tmp_path), *config]) == 2
    assert "takes no --runs" in capsys.readouterr().err
    with pytest.raises(RequestError, match="there is no folder"):
        run(["search", "x", "--files", str(tmp_path / "none"), *config])
    with pytest.raises(RequestError, match="at least one word"):
        run(["search", "?!", *config])
