"""The composition root: settings become plugins, and plugins a chain.

The command line, the server and programs build on these functions, or on the fleet made of them (`pyagent.fleet`), and
on nothing below. A server answers before it has a fleet, so nothing of a fleet is imported here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import msgspec

from pyagent.core.backends import Backend, LinkSpec, ServerSetting
from pyagent.core.chain.chain import Chain
from pyagent.core.chain.settings import LinkSettings
from pyagent.core.errors import ConfigError, PluginError
from pyagent.core.nearest import did_you_mean
from pyagent.core.plugins import Isolator, PluginHost
from pyagent.core.resilience.retry import RetryPolicy
from pyagent.core.resilience.spend_limit import SpendLimit
from pyagent.core.secrets import strike_text

if TYPE_CHECKING:
    from pyagent.core.fleet.agent import Agent
    from pyagent.core.response_cache.cache import ResponseCache
    from pyagent.core.settings import ResponseCacheSettings, Settings
    from pyagent.core.settings.program import Plugins
    from pyagent.infrastructure.backends.found import Look
    from pyagent.infrastructure.storage.journal import SqliteJournal

__all__ = [
    "make_agents",
    "make_backend",
    "make_chain",
    "make_embedder",
    "make_host",
    "make_journal",
    "make_link",
    "present_links",
]


def make_host(settings: Settings) -> PluginHost:
    """Return the installed plugins, found but not imported."""
    return PluginHost.discover(settings.plugins, _isolator_of(settings.plugins))


def _isolator_of(options: Plugins) -> Isolator | None:
    """Return what isolates plugins, where the settings name some."""
    if not options.isolate:
        return None
    from pyagent.infrastructure.isolation.plugin import isolated

    return partial(isolated, seconds=options.isolated_seconds, memory_bytes=options.isolated_memory)


def make_backend(
    entry: str,
    settings: Settings,
    host: PluginHost,
    headers: dict[str, str] | None = None,
    server: ServerSetting | None = None,
) -> Backend:
    """Make the backend of one chain entry, with headers and a server of the link's own where its table has some.

    Raises `ConfigError` naming the schemes there are, `PluginError` when the plugin that brings it is broken.
    """
    link = LinkSpec.parse(entry)
    factories = host.backends()
    if link.scheme not in factories:
        for plugin in host.plugins():
            if plugin.state == "quarantined" and plugin.name == link.scheme:
                raise PluginError(f"the backend {link.scheme!r} is not there: {plugin.reason}", plugin=plugin.name)
        hint = did_you_mean(link.scheme, factories, f"there are {', '.join(sorted(factories)) or 'none'}")
        named = f"no plugin brings the backend {link.scheme!r} (chain entry {strike_text(entry)!r})"
        raise ConfigError(f"{named}; {hint}", key="chain")
    if "@" in link.target:
        _check_password(link)
    if server is not None:
        if link.scheme != "openai":
            raise ConfigError(f"{entry} is no openai: link; take `server` out of its table", key="chain")
        link = msgspec.structs.replace(link, server=server)
    if not headers:
        return factories[link.scheme](link, settings)
    backend = factories[link.scheme](msgspec.structs.replace(link, headers=headers), settings)
    if not backend.capabilities.sends_headers:
        raise ConfigError(f"{entry} sends no headers of yours; take `headers` out of its table", key="chain")
    return backend


def _check_password(link: LinkSpec) -> None:
    from pyagent.core.addresses import has_password

    if has_password(link.target):
        text = f"{link.scheme}: a link's URL may hold no password, as answers and metrics name the link by it"
        raise ConfigError(f"{text}; send it by `headers` of the link", key="chain")


def make_chain(
    settings: Settings,
    host: PluginHost,
    entries: Sequence[str] | None = None,
    *,
    own_address: tuple[str, int] | None = None,
    may_be_empty: bool = False,
) -> Chain:
    """Make the chain of the settings, or of `entries`; models load and sockets open on first use.

    A link whose plugin is broken is left out with a warning while another is left; a misspelt one is an error. So is
    one that leads to `own_address`, the host and port of the server whose chain it is. Without links only a node of a
    cluster answers, by its peers: its chain `may_be_empty`.
    """
    links: list[Backend] = []
    kept: list[LinkSettings] = []
    broken: list[PluginError] = []
    wanted = settings.links if entries is None else [LinkSettings(use=entry) for entry in entries]
    for link, look in _with_found(wanted, settings, host, own_address):
        try:
            backend = make_link(link, settings, host) if look is None else _found(link, look, settings, host)
        except PluginError as error:
            broken.append(error)
            continue
        if own_address is not None and look is None:
            _refuse_itself(backend, own_address)
        links.append(backend)
        kept.append(link)
    if not links and broken:
        raise broken[0]
    if not links and not may_be_empty:
        raise ConfigError("the chain is empty: name a link in `chain`; only `pyagent node` needs none", key="chain")
    if broken:
        _warn_left_out(broken)
    rules = settings.rules
    _check_private(rules.private, [*host.backends(), *(backend.name for backend in links)])
    return Chain(
        links,
        private=rules.private,
        settings=kept,
        retry_policy=RetryPolicy(num_retries=rules.retries, jitter=rules.jitter),
        spend_limit=SpendLimit(rules.usd_per_request, rules.usd_per_hour),
        after_first_token=rules.after_first_token,
        check_answers=rules.check_answers,
        deadline_seconds=rules.deadline_seconds,
        routing=rules.routing,
        response_cache=_make_response_cache(settings.response_cache),
    )


_OWN_PLUGINS = ("lmstudio", "ollama", "copilot")
"""Schemes that a settings file may name though their plugins are not installed here."""


def _check_private(private: Sequence[str], known: Sequence[str]) -> None:
    """Raise `ConfigError` for a misspelt entry of rules.private, which would keep private requests from their link."""
    names = {*known, *_OWN_PLUGINS}
    for name in private:
        if name not in names and (hint := did_you_mean(name, names)):
            raise ConfigError(f"rules.private names {name!r}, which is no scheme or link; {hint}", key="rules.private")


def _refuse_itself(backend: Backend, own_address: tuple[str, int]) -> None:
    from pyagent.core.addresses import leads_to

    if leads_to(backend.capabilities.url, *own_address):
        text = f"the link {backend.name} leads back to this server, which would ask itself; take it out of `chain`"
        raise ConfigError(text, key="chain")


def _make_response_cache(settings: ResponseCacheSettings) -> ResponseCache | None:
    if settings.keep == "off":
        return None
    from pyagent.core.response_cache.cache import ResponseCache
    from pyagent.core.response_cache.store import ResponseStore

    store = ResponseStore(settings.max_bytes, settings.ttl_seconds)
    return ResponseCache(store, settings.keep, settings.pinned, settings.between_clients)


def present_links(settings: Settings, host: PluginHost) -> list[LinkSettings]:
    """Return the links of the settings that are there now, `auto` replaced by what is found."""
    return [link for link, look in _with_found(settings.links, settings, host) if look is None or not look()]


def _with_found(
    links: Sequence[LinkSettings],
    settings: Settings,
    host: PluginHost,
    own_address: tuple[str, int] | None = None,
) -> Iterator[tuple[LinkSettings, Look | None]]:
    """Yield the links, and how to look for those that `auto` stands for; named links are not looked for."""
    named = {link.use for link in links}
    for link in links:
        if link.use != "auto":
            yield link, None
            continue
        from pyagent.infrastructure.backends.found import candidates

        remote = settings.backends.allow_remote
        keys = settings.backends.api_keys
        for candidate in candidates(host.backends(), keys, allow_remote=remote, own_address=own_address):
            if candidate.entry not in named:
                look = None if candidate.entry == "native" else candidate.look
                yield msgspec.structs.replace(link, use=candidate.entry), look


def _found(link: LinkSettings, look: Look, settings: Settings, host: PluginHost) -> Backend:
    from pyagent.infrastructure.backends.found import FoundLink

    return FoundLink(link.use, look, lambda: make_link(link, settings, host))


def make_link(link: LinkSettings, settings: Settings, host: PluginHost) -> Backend:
    """Make the backend of one link, with the link's own key. Raises as `make_backend` does."""
    return make_backend(link.use, _with_key(settings, link), host, link.headers, link.server)


def _with_key(settings: Settings, link: LinkSettings) -> Settings:
    """Return the settings as a link with a key of its own sees them."""
    if link.key is None:
        return settings
    host = urlsplit(link.use.partition(":")[2]).netloc
    keys = {**settings.backends.api_keys, host: link.key}
    return msgspec.structs.replace(settings, backends=msgspec.structs.replace(settings.backends, api_keys=keys))


def _warn_left_out(broken: Sequence[PluginError]) -> None:
    import logging

    plugin_to_error = {error.plugin: error for error in reversed(broken)}  # one line a plugin
    for error in plugin_to_error.values():
        logging.getLogger("pyagent.chain").warning("a link of the chain is left out", extra={"reason": str(error)})


def make_journal(settings: Settings) -> SqliteJournal:
    """Return the journal in the settings' data folder."""
    from pyagent.infrastructure.storage.journal import SqliteJournal

    kept = settings.journal
    return SqliteJournal(
        settings.paths.data / "journal",
        max_runs=kept.max_runs,
        max_age_days=kept.max_age_days,
        webhooks=settings.webhooks,
    )


def make_agents(settings: Settings, host: PluginHost) -> dict[str, Agent]:
    """Return the agents of plugins, and those elsewhere by the settings. Raises `ConfigError` for two of a name."""
    agents = dict(host.agents())
    if settings.a2a.agents:
        from pyagent.infrastructure.a2a.remote_agent import a2a_agents

        for agent in a2a_agents(settings.a2a.agents):
            if agent.name in agents:
                text = f"there is an agent {agent.name} here; give the one elsewhere another name"
                raise ConfigError(f"a2a.agents.{agent.name}: {text}", key="a2a.agents")
            agents[agent.name] = agent
    return agents


def make_embedder(settings: Settings, host: PluginHost) -> Backend | None:
    """Return the backend that embeds what is searched; None when search goes by words alone."""
    entry = settings.search.embedder.strip()
    if entry == "auto" and "native" not in host.backends():
        entry = "off"
    elif entry == "auto":
        from pyagent.infrastructure.models.store import ModelStore

        store = ModelStore.of(settings)
        here = [model.manifest.name for model in store.list()]
        entry = next((f"native:{name}" for name in here if store.task_of(name) == "embed"), "off")
    return None if entry in {"", "off"} else make_backend(entry, settings, host)
