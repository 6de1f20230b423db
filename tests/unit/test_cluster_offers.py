"""What a node offers to its peers when nobody says what."""

from __future__ import annotations

from pathlib import Path

from pyagent.assembly import make_chain, make_host
from pyagent.core.config import load_settings
from pyagent.infrastructure.cluster.advertising import offered_links

CHAIN = ["native", "ollama:m", "openai:http://127.0.0.1:9/v1#m", "ollama:http://192.0.2.1:11434#m", "lmstudio:m"]


def test_links_that_may_spend_money_are_not_offered(tmp_path: Path) -> None:
    """The embedded engine and this machine's own model servers are; any other server only where it is named."""
    settings = load_settings(overrides={"engine.models": [str(tmp_path / "m.gguf")]}).settings
    links = make_chain(settings, make_host(settings), CHAIN).links
    schemes = [link.name.partition(":")[0] for link in offered_links(links, None)]
    assert schemes == ["native", "ollama", "lmstudio"]
    assert "192.0.2.1" not in str([link.name for link in offered_links(links, None)])
    assert [link.name for link in offered_links(links, ["openai"])] == [links[2].name]
    assert offered_links(links, []) == []
