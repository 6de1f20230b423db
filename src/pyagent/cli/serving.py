"""The work of `pyagent serve`: OpenAI's API on a local port, over the chain and the fleet's agents.

It answers before it has all: the first model and then the fleet come in a thread, and who needs them sooner waits.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import logging
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from pyagent.cli.plain_flags import whole_number
from pyagent.cli.running_servers import announced
from pyagent.cli.startup import fetch_first_model, read_layers, set_up_logging
from pyagent.core.errors import ConfigError, PyAgentError

if TYPE_CHECKING:
    from pyagent.core.chain import Chain as BackendChain
    from pyagent.core.settings import Settings
    from pyagent.fleet import Fleet
    from pyagent.infrastructure.cluster.node import Node
    from pyagent.infrastructure.observability.answer_spans import PeerTracer
    from pyagent.infrastructure.server.agents import AgentBackend

FLAGS: Mapping[str, Callable[[str], object]] = {
    "--model": str,
    "--chain": str,
    "--chat-template": str,
    "--data-parallel": str,
    "--host": str,
    "--port": whole_number(65535),
    "--config": Path,
}
"""How the values of the command's flags are read; `cli/serve.py` declares them for people."""
logger = logging.getLogger(__name__)


def serve(
    *,
    model: str | None = None,
    chain: str | None = None,
    chat_template: str | None = None,
    data_parallel: str | None = None,
    host: str | None = None,
    port: int | None = None,
    config: Path | None = None,
    is_node: bool = False,
    cluster: Mapping[str, object] = MappingProxyType({}),
) -> None:
    """Answer OpenAI clients until a signal comes; as a node of a cluster too, with these settings of `[cluster]`."""
    gc.disable()  # what is imported stays: looking for garbage in it is a tenth of the time to start
    from pyagent.assembly import make_chain, make_host
    from pyagent.infrastructure.server.api_keys import read_keys
    from pyagent.infrastructure.server.uvicorn_server import address, bind

    engine = {"engine__chat_template": chat_template, "engine__data_parallel": data_parallel}
    flags = {"server__host": host, "server__port": port, **engine, **cluster}
    settings, origins = read_layers(config, chain, model, **flags)
    # A model is fetched when nothing is left that could be wrong: it takes minutes where the network is slow.
    keys = read_keys(settings.server)
    if is_node:
        _check_node(settings)
    listening = bind(settings.server.host, settings.server.port)
    fetch_first_model(settings)
    plugins = make_host(settings)
    own_address = (settings.server.host, settings.server.port)
    backend = make_chain(settings, plugins, own_address=own_address, may_be_empty=is_node)

    from pyagent.cli.event_loop import run_to_end
    from pyagent.infrastructure.models.store import ModelStore
    from pyagent.infrastructure.server.agents import AgentBackend

    def make_fleet() -> Fleet:
        from pyagent.fleet import Fleet

        return Fleet(settings, backend=backend, host=plugins)

    agents = AgentBackend(make_fleet, settings.server.files_root, settings.server.run_rate)
    # The model loads while the server's modules are imported: each takes about as long as the other.
    threading.Thread(target=_load, args=(backend, agents, settings), name="pyagent-first-model", daemon=True).start()

    from pyagent.infrastructure.server.app import create_app
    from pyagent.infrastructure.server.uvicorn_server import serve as serve_app
    from pyagent.reloading import PluginReloader

    node = make_node(settings, backend, agents) if is_node else None

    async def work() -> None:
        reloader = PluginReloader(settings, plugins, backend, agents)
        agents.start_watching(settings.server.hooks)
        try:
            if node is not None:
                await node.start()
            server = create_app(
                backend,
                agents=agents,
                store=ModelStore.of(settings),
                api_keys=keys,
                emulates=settings.backends.unsupported == "emulate",
                settings=settings.server,
                node=node,
                plugins=reloader,
            )
            is_json = settings.log.format == "json"
            said = start_text(address(listening), backend.names, origins, is_json=is_json)
            _say(said + (f"{node.told()}\n" if node is not None and not is_json else ""))
            gc.freeze()
            gc.enable()
            door = 0 if node is None else node.door_port
            with announced(settings.paths.data, *listening.getsockname()[:2], door=door):
                await serve_app(server, listening, settings.server, [agents] if node is None else [agents, node])
        finally:
            if node is not None:
                await node.stop()
            await agents.close()
            await reloader.close()
            await backend.close()

    run_to_end(work(), watches_sockets=is_node)


def _check_node(settings: Settings) -> None:
    """Raise `ClusterError` or `ConfigError` for what would keep a node from starting, before a model is fetched."""
    from pyagent.core.cluster.names import check_rules
    from pyagent.infrastructure.cluster.cluster_file import ClusterFile, cluster_folder
    from pyagent.infrastructure.cluster.endpoints import check_bind

    state = ClusterFile(cluster_folder(settings.paths.data)).standing()
    check_rules(settings.rules.private, {node_id: member.name for node_id, member in state.members.items()})
    if settings.cluster.port and settings.cluster.port == settings.server.port:
        text = f"port {settings.server.port} is that of OpenAI clients; choose another for other nodes with --door"
        raise ConfigError(text, key="cluster.port")
    check_bind(settings.cluster.bind)


def make_node(settings: Settings, chain: BackendChain, agents: AgentBackend) -> Node:
    """Return this server's part in the cluster, not started. Raises `ClusterError` where it is in none."""
    import msgspec

    from pyagent.infrastructure.cluster.cluster_file import cluster_folder
    from pyagent.infrastructure.cluster.node import Node
    from pyagent.infrastructure.models.names import by_model_name, configured_names

    tracer = _peer_tracer(settings.server.otlp_endpoint) if settings.server.otlp_endpoint is not None else None
    told = {"tell": _say_line} if sys.stdout.isatty() and settings.log.format != "json" else {}
    placement = by_model_name(settings.cluster.placement, configured_names(settings))
    own = msgspec.structs.replace(settings.cluster, placement=placement)
    return Node(cluster_folder(settings.paths.data), own, chain, agents=agents, tracer=tracer, **told)


def _say_line(line: str) -> None:
    """Show a person at a terminal who comes and goes; elsewhere the log has it."""
    with contextlib.suppress(OSError):  # the terminal may be gone: no peer is to notice
        _say(f"{line}\n")


def _say(text: str) -> None:
    """Write it at once; a server goes on where its output is a file on a full disk."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        logger.warning("what this server writes has no room: %s", error.strerror)


def _peer_tracer(endpoint: str) -> PeerTracer:
    from pyagent.core.trace_context import missing_packages

    try:
        from pyagent.infrastructure.observability.answer_spans import PeerTracer
    except ModuleNotFoundError as error:
        raise ConfigError(missing_packages(error), key="server.otlp_endpoint") from error
    return PeerTracer(endpoint)


def start_text(url: str, links: Sequence[str], origins: Mapping[str, str], *, is_json: bool) -> str:
    """What is said at the start: where it answers, by which links, and the settings that are not defaults by origin."""
    if is_json:  # as the log has it: a collector of lines must not meet one that is none
        import msgspec

        said = {"event": "PyAgent answers", "level": "info", "url": url, "links": links, "settings": origins}
        return msgspec.json.encode(said).decode() + "\n"
    told = f"PyAgent answers on {url} ({', '.join(links) or 'by its peers alone'}); Ctrl+C stops it\n"
    keys_by_origin: dict[str, list[str]] = {}
    for key, origin in origins.items():
        keys_by_origin.setdefault(origin, []).append(key)
    groups = [f"{', '.join(keys)} ({origin})" for origin, keys in keys_by_origin.items()]
    return told + (f"not defaults: {'; '.join(groups)}\n" if groups else "")


def _load(backend: BackendChain, agents: AgentBackend, settings: Settings) -> None:
    """Get the first link ready, then logs and agents; what goes wrong is told to the request that needs it."""
    import asyncio

    asyncio.run(backend.load())
    set_up_logging(settings)
    try:
        agents.fleet()
    except PyAgentError as error:
        logger.error("the agents cannot be used: %s", error)  # noqa: TRY400 - the text says it all
