"""Which names are this machine's: the guard of a server without keys against pages that rebind their own name."""

from __future__ import annotations

import pytest

from pyagent.infrastructure.server.api_keys import is_loopback


@pytest.mark.parametrize(
    "host", ["localhost", "localhost.", "a.localhost", "LOCALHOST", "127.0.0.1", "127.9.9.9", "[::1]"]
)
def test_names_of_this_machine_are_let_in(host: str) -> None:
    """Loopback addresses, localhost, and names below it."""
    assert is_loopback(host)


@pytest.mark.parametrize(
    "host", ["notlocalhost", "evil-localhost", "localhost.evil.com", "127.0.0.1.evil.com", "10.0.0.1", ""]
)
def test_other_names_are_not(host: str) -> None:
    """A name that only ends or begins alike is another machine's."""
    assert not is_loopback(host)
