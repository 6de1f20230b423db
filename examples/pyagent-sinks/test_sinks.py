"""The backend is found by its name. What FlexAttention makes of a mask is tested where torch is."""

from __future__ import annotations

import pyagent_sinks

from pyagent.assembly import make_host
from pyagent.core.settings import Settings


def test_sinks_are_a_backend_of_their_name() -> None:
    """`engine.attention = "sinks"` names it; the first tokens and near ones are seen, others not."""
    host = make_host(Settings())
    host.register(pyagent_sinks, name="sinks")
    assert "sinks" in host.attention_backends()
    assert [bool(pyagent_sinks.mask(0, 5000, key)) for key in (0, 3, 4, 4000, 4001)] == [True, True, False, False, True]
