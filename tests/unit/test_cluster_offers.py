"""What a node offers to its peers when nobody says what."""

from __future__ import annotations

import asyncio
from pathlib import Path

from pyagent.assembly import make_chain, make_host
from pyagent.core.config import load_settings
from pyagent.core.messages import ChatRequest
from pyagent.infrastructure.cluster.advertising import offered_links, unknown_offers

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


def test_links_of_files_are_named_either_way(tmp_path: Path) -> None:
    """`cluster.offer` and rules of privacy write a file's link as the chain does; its name is short."""
    file, other = f"native:{tmp_path / 'm.gguf'}", f"native:{tmp_path / 'n.gguf'}"
    settings = load_settings(overrides={"chain": [file, other], "rules.private": [file]}).settings
    chain = make_chain(settings, make_host(settings))
    assert chain.names == ["native:m", "native:n"]
    for written in (file, "native:m"):
        assert [link.name for link in offered_links(chain.links, [written])] == ["native:m"]
    assert unknown_offers(chain.links, [file, "native:n", "native:o"]) == "'native:o'"
    private = ChatRequest(prompt="hi", private=True)
    assert [view.backend for view in asyncio.run(chain.explain(private)) if view.is_eligible] == ["native:m"]
    named = ChatRequest(model=other, prompt="hi")
    assert [view.backend for view in asyncio.run(chain.explain(named)) if view.is_eligible] == ["native:n"]
