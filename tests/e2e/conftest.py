"""What the end-to-end tests of the command line share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.command_line import Talker, fresh_environment

from pyagent.infrastructure.server.app import create_app
from pyagent.testing import serve


@pytest.fixture(scope="module")
def chain() -> Iterator[str]:
    """The chain entry of a loopback server."""
    with serve(create_app(Talker())) as url:
        yield f"openai:{url}/v1#talker"


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """A user without settings, models or past runs."""
    return fresh_environment(tmp_path)
