"""Which dialect is chosen for a model."""

from pyagent.core.dialects.registry import dialect_for


def test_unknown_template_gets_hermes() -> None:
    """A template that shows no dialect gets Hermes', the one of most models and of the emulation."""
    assert dialect_for("{{ messages }}").name == "hermes"
    assert dialect_for("{{ messages }} <tool_call>").name == "hermes"
