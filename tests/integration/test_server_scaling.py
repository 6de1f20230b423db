"""`agent:scaling` behind a server: live counts where nobody has a key, nothing of other clients where they have."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import openai
import pytest
from support.chains import Played, chain_of, says
from support.server import HI, KEY, connected, keys, serving

import pyagent
from pyagent.assembly import make_host
from pyagent.core.config import load_settings
from pyagent.infrastructure.server.agents import AgentBackend

POOL = 'chain = [{ use = "link:a", weight = 1 }, { use = "link:b", weight = 1 }]\nrules.routing = "least_requests"\n'


async def asked(folder: Path, api_keys: Any) -> str:
    """Ask four times, then the agent."""
    chain = chain_of(folder, f'{POOL}paths.data = "{folder}"\n', *(Played(name, says(name)) for name in "ab"))
    settings = load_settings(folder / "pyagent.toml").settings
    host = make_host(settings)
    agents = AgentBackend(lambda: pyagent.Fleet(settings, backend=chain, host=host))
    try:
        async with serving(chain, agents=agents, api_keys=api_keys) as url, connected(url) as client:
            for _ in range(4):
                await client.chat.completions.create(model="default", messages=HI)
            answer = await client.chat.completions.create(model="agent:scaling", messages=HI)
            return answer.choices[0].message.content or ""
    finally:
        await agents.close()
        await chain.close()


def test_agent_tells_live_counts(tmp_path: Path) -> None:
    """What the server's own chain did since it began, and what each policy would choose."""
    found = asyncio.run(asked(tmp_path, []))
    assert found.count("ready, 0 under way, 2 answered, first token ") == 2
    assert "least_requests (rules.routing): link:" in found


def test_clients_with_keys_do_not_see_what_others_asked(tmp_path: Path) -> None:
    """The counts are all clients': an administrator has them at /pyagent/chain."""
    with pytest.raises(openai.APIError, match="an administrator's to see: GET /pyagent/chain"):
        asyncio.run(asked(tmp_path, keys(KEY)))
