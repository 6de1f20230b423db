"""Where a URL leads, by its text alone."""

from __future__ import annotations

import pytest

from pyagent.core.addresses import is_loopback, leads_to


@pytest.mark.parametrize(
    ("url", "is_here"),
    [
        ("http://127.0.0.1:1/v1", True),
        ("http://127.9.8.7", True),
        ("http://localhost", True),
        ("http://LOCALHOST.:9", True),
        ("http://a.localhost", True),
        ("http://[::1]:8000/v1", True),
        ("http://[::ffff:127.0.0.1]/", True),
        ("https://api.openai.com/v1", False),
        ("http://10.0.0.1", False),
        ("http://localhost.evil.com", False),
        ("http://127.0.0.1.evil.com", False),
        ("http://user@evil.com", False),
        ("http://[::1", False),
        ("", False),
    ],
)
def test_loopback_is_told_from_elsewhere(url: str, is_here: bool) -> None:
    """Loopback addresses and names are this machine; what cannot be read is elsewhere."""
    assert is_loopback(url) is is_here


def test_urls_that_lead_to_a_server_are_known() -> None:
    """A server is met under every name of this machine when it listens on all, else under loopback's or its own."""
    assert leads_to("http://localhost:8321/v1", "127.0.0.1", 8321)
    assert leads_to("http://0.0.0.0:8321", "localhost", 8321)
    assert leads_to("http://127.0.0.1", "0.0.0.0", 80)
    assert leads_to("http://10.0.0.7:8321/v1", "10.0.0.7", 8321)
    assert not leads_to("http://127.0.0.1:8321/v1", "10.0.0.7", 8321)
    assert not leads_to("http://gpu-box:8321/v1", "0.0.0.0", 8321)
    assert not leads_to("http://127.0.0.1:8322/v1", "127.0.0.1", 8321)
    assert not leads_to("http://127.0.0.1:99999/v1", "127.0.0.1", 8321)
