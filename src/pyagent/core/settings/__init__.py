"""The model of every setting: name, type, default, how it is read, what it means; the reference page is made from it.

A module for each part of the program. Frozen. Reading files and the environment is `core.config`'s work, which checks
what it reads: `Settings()` here is the defaults alone. Secrets never stand in settings, only references to them
(`env:NAME`, `file:PATH`).
"""

from typing import Annotated

import msgspec

from pyagent.core.chain.settings import LinkSettings, links_of, read_links
from pyagent.core.setting_kinds import Kind
from pyagent.core.settings.a2a import A2a
from pyagent.core.settings.chain import Backends, ResponseCacheSettings, Rules
from pyagent.core.settings.cluster import Cluster
from pyagent.core.settings.engine import Engine
from pyagent.core.settings.engine_tables import RequestClass
from pyagent.core.settings.fleet import Budget, Fleet, Journal, Search
from pyagent.core.settings.learning import Learning
from pyagent.core.settings.mcp import MCP_SERVERS, McpServer
from pyagent.core.settings.program import Log, Paths, Plugins
from pyagent.core.settings.section import ENV_PREFIX, Section, Setting, sections_in, settings_in
from pyagent.core.settings.server import Server
from pyagent.core.settings.tools import Tools
from pyagent.core.settings.web import Web
from pyagent.core.settings.webhooks import Webhooks

__all__ = [
    "ENV_PREFIX",
    "Backends",
    "Cluster",
    "Engine",
    "McpServer",
    "Plugins",
    "RequestClass",
    "ResponseCacheSettings",
    "Section",
    "Server",
    "Setting",
    "Settings",
    "Tools",
    "Webhooks",
    "sections_in",
    "settings_in",
]


class Settings(Section, frozen=True):
    """All settings. `Settings()` is the defaults alone; `load_settings` reads files, environment and flags."""

    chain: Annotated[
        list[str | LinkSettings],
        Setting(
            Kind("list of links", read_links, "list"),
            "The fallback chain: backends in the order they are tried, each `SCHEME` or `SCHEME:TARGET` "
            "(`ollama:llama3.2`), or a table with that as `use` and conditions and limits of its own. `auto` is what "
            "is found of `lmstudio`, `native`, `openai`, `ollama`, `copilot`, `github`.",
        ),
    ] = msgspec.field(default_factory=lambda: ["auto"])
    mcp_servers: Annotated[
        dict[str, McpServer],
        Setting(
            MCP_SERVERS,
            "MCP servers whose tools agents may call, each a table `[mcp_servers.NAME]` with `command`, `args`, `env`, "
            "`cwd`, or with `url`, `headers`; and `tools`, `trust`, `clients`, `timeout_seconds`, `startup_seconds` "
            "([how](../how-to/mcp.md)).",
        ),
    ] = msgspec.field(default_factory=dict[str, McpServer])
    a2a: A2a = A2a()
    rules: Rules = Rules()
    response_cache: ResponseCacheSettings = ResponseCacheSettings()
    budget: Budget = Budget()
    engine: Engine = Engine()
    fleet: Fleet = Fleet()
    learning: Learning = Learning()
    tools: Tools = Tools()
    web: Web = Web()
    webhooks: Webhooks = Webhooks()
    server: Server = Server()
    plugins: Plugins = Plugins()
    paths: Paths = Paths()
    journal: Journal = Journal()
    search: Search = Search()
    log: Log = Log()
    backends: Backends = Backends()
    cluster: Cluster = Cluster()

    @property
    def links(self) -> list[LinkSettings]:
        """The chain's links, each as a table."""
        return links_of(self.chain)
