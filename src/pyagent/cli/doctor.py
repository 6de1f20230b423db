"""`pyagent doctor`: what this machine can do, what is missing, and how to get it. Changes nothing."""

from __future__ import annotations

import os
import platform
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import typer

from pyagent.cli.options import AsJson, Chain, Config, Model
from pyagent.cli.output import coloured, mark, write_json
from pyagent.cli.startup import read_settings
from pyagent.core.one_line import printable
from pyagent.core.sizes import format_bytes

if TYPE_CHECKING:
    from pyagent.core.backends import Backend
    from pyagent.core.chain.settings import LinkSettings
    from pyagent.core.errors import PyAgentError
    from pyagent.core.messages import Health
    from pyagent.core.plugins import PluginHost
    from pyagent.core.settings import Engine, Settings
    from pyagent.infrastructure.engine.options import EngineOptions
    from pyagent.infrastructure.models.store import ModelStore

app = typer.Typer(add_completion=False)

_NEIGHBOURS = (
    ("LM Studio", "http://127.0.0.1:1234/v1", "lmstudio"),
    ("Ollama", "http://127.0.0.1:11434/v1", "ollama"),
)
"""Programs that often run on the same machine, at the addresses they use by default."""
_MAX_DOORS = 8
_MAX_RUN_FINDINGS = 5
_MIN_MEMORY_BYTES = 2_000_000_000


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One line: what was looked at, what was found, and what to do when that is not well."""

    area: str
    name: str
    is_well: bool
    found: str
    advice: str = ""
    is_note: bool = False
    """Only told: nothing is wrong with it, nor right."""


@dataclass(slots=True)
class _Report:
    findings: list[Finding] = field(default_factory=list[Finding])

    def add(self, area: str, name: str, found: str, *, is_well: bool = True, advice: str = "") -> None:
        shown = "" if is_well else advice
        self.findings.append(Finding(area=area, name=name, is_well=is_well, found=found, advice=shown))

    def note(self, area: str, name: str, found: str) -> None:
        self.findings.append(Finding(area=area, name=name, is_well=True, found=found, is_note=True))


@app.command()
def doctor(chain: Chain = None, model: Model = None, as_json: AsJson = False, config: Config = None) -> None:
    """Say what this machine can do, what is missing and how to get it."""
    import asyncio

    settings = read_settings(config, chain, model)
    report = _Report()
    _look_at_machine(report, settings)
    host = _look_at_plugins(report, settings)
    options = _look_at_runners(report, settings, host)
    _look_at_models(report, settings, options)
    _look_at_named_models(report, settings)
    asyncio.run(_look_at_backends(report, settings, host))
    asyncio.run(_look_at_cluster(report, settings))
    _look_at_runs(report, settings)
    asyncio.run(_look_at_mcp(report, settings))
    if as_json:
        write_json(report.findings)
    else:
        _write(report.findings)
    if not any(finding.is_well for finding in report.findings if finding.area == "chain"):
        raise typer.Exit(1)


def _write(findings: list[Finding]) -> None:
    area = ""
    for finding in findings:
        if finding.area != area:
            area = finding.area
            sys.stdout.write(f"{area}\n")
        sys.stdout.write(f"  {_mark(finding)} {printable(finding.name):<16} {printable(finding.found)}\n")
        if finding.advice:
            sys.stdout.write(f"    {'':<16} → {printable(finding.advice)}\n")


def _mark(finding: Finding) -> str:
    if finding.is_note:
        return mark("–", "-")
    return coloured(mark("✓", "+"), "green") if finding.is_well else coloured(mark("✗", "x"), "red")


def _look_at_machine(report: _Report, settings: Settings) -> None:
    report.add("machine", "python", f"{platform.python_version()} on {platform.system()} {platform.machine()}")
    try:
        from pyagent import _rust
    except ImportError as error:
        report.add("machine", "engine", str(error), is_well=False, advice="install the wheel again: make install")
    else:
        features = _rust.cpu_features()
        found = f"{', '.join(features['features']) or 'no vector instructions'}; computes with {features['isa']}"
        report.add("machine", "cpu", found)
        cores = _rust.available_cores()
        report.add("machine", "threads", f"{settings.engine.threads or cores} of {cores} cores")
    from pyagent.infrastructure.engine.memory.system import available_memory

    free = available_memory()
    report.add(
        "machine",
        "memory",
        f"{format_bytes(free)} free" if free else "unknown",
        is_well=free is None or free > _MIN_MEMORY_BYTES,
        advice="the default model wants 1 GB; close something, or set engine.memory lower",
    )


def _look_at_plugins(report: _Report, settings: Settings) -> PluginHost:
    from pyagent.assembly import make_host

    host = make_host(settings)
    host.load_all()
    for info in host.plugins():
        brings = ", ".join(f"{noun}: {' '.join(names)}" for noun, names in info.provides.items())
        is_well = info.state != "quarantined"
        report.add(
            "plugins",
            info.name,
            f"{info.version} {brings or info.state}" if is_well else f"{info.state}: {info.reason}",
            is_well=is_well,
            advice=f"fix or uninstall it, or add it to plugins.disable; `pyagent plugins show {info.name}` has more",
        )
    for name in host.unknown_names():
        report.note("plugins", name, "is in the settings, and not installed")
    return host


def _look_at_runners(report: _Report, settings: Settings, host: PluginHost) -> EngineOptions | None:
    """Return the engine's options; None where the settings are wrong for the plugins there are."""
    from pyagent.core.errors import ConfigError
    from pyagent.infrastructure.engine.plugin import options_of

    try:
        options = options_of(settings, host)
        names = ", ".join(factory.name for factory in options.runners.available())
    except ConfigError as error:
        report.add("models", "runner", str(error), is_well=False, advice=f"correct {error.key or 'engine.runner'}")
        return None
    absent = [f"{name} cannot run here: {reason}" for name, reason in options.runners.unavailable()]
    report.add("models", "runner", "; ".join([names, *absent]))
    _look_at_ranks(report, settings.engine)
    return options


def _look_at_ranks(report: _Report, engine: Engine) -> None:
    if engine.num_ranks > 1:
        stages = f"{engine.tensor_parallel_size} to a stage, {engine.pipeline_parallel_size} stages"
        found = f"{engine.num_ranks} processes: {stages}"
        report.add("models", "ranks", f"{found}; rank 0 is the engine's own")


def _look_at_models(report: _Report, settings: Settings, options: EngineOptions | None) -> None:
    from pyagent.core.errors import CapacityError, ConfigError, ModelError
    from pyagent.infrastructure.models.names import is_path, place_of
    from pyagent.infrastructure.models.store import ModelStore

    store = ModelStore.of(settings)
    for name in settings.engine.models:
        stored = store.find(name)
        path = stored.path if stored else place_of(name) if is_path(name) else None
        if path and os.path.exists(path):
            size = f"{format_bytes(stored.size_bytes)}, " if stored else ""
            fault = _fault_in_model(store, name, path, options)
            again = "fetch the file again"
            if stored and not stored.is_own_file:
                again = f"pyagent models rm {name}, then pyagent models pull {name}"
            if isinstance(fault, ConfigError):
                again = f"correct {fault.key or 'the settings of the engine'}"
            found = f"{size}{path}" if fault is None else str(fault)
            is_well = fault is None or isinstance(fault, CapacityError)  # a server that runs may be who has the memory
            report.add("models", name, found, is_well=is_well, advice=again)
            continue
        try:
            store.look(name)
        except ModelError as error:
            report.add("models", name, str(error), is_well=False, advice="correct engine.models, or --model")
        else:
            report.add("models", name, "not there", is_well=False, advice=f"pyagent models pull {name}")


def _look_at_named_models(report: _Report, settings: Settings) -> None:
    from pyagent.infrastructure.engine.setting_faults import draft_faults, unknown_models

    for fault in draft_faults(settings):
        report.add("models", "draft model", fault, is_well=False, advice="correct engine.speculative.model")
    for fault in unknown_models(settings):
        report.add("models", "settings", fault, is_well=False, advice="correct the name")


def _fault_in_model(store: ModelStore, name: str, path: Path, options: EngineOptions | None) -> PyAgentError | None:
    """Return what is wrong with a model's file: its header, its length, its checksum; or with the settings for it."""
    from pyagent.core.errors import PyAgentError
    from pyagent.infrastructure.models.describe import describe_encoder

    try:
        if describe_encoder(path) is None and options is not None:
            options.runner_for(path)
        store.check(name)
    except PyAgentError as error:
        return error
    return None


def _look_at_runs(report: _Report, settings: Settings) -> None:
    """Say what the numbers of past runs show: agents, tools and links that got slow or fail."""
    import time

    from pyagent.assembly import make_journal
    from pyagent.core.errors import RequestError
    from pyagent.infrastructure.observability.alerts import look_at

    try:
        found = look_at(make_journal(settings), time.time())
    except RequestError as error:
        report.add("runs", "journal", str(error), is_well=False, advice="set paths.data to a folder of your own")
        return
    for one in found[:_MAX_RUN_FINDINGS]:
        is_well = one.level == "info"
        report.add("runs", one.level, one.text, is_well=is_well, advice="`pyagent runs stats --findings` has more")


async def _look_at_backends(report: _Report, settings: Settings, host: PluginHost) -> None:
    import asyncio

    from pyagent.assembly import make_link, present_links
    from pyagent.core.chain import health_of
    from pyagent.core.errors import PyAgentError

    async def link(entry: LinkSettings) -> tuple[str, Health | PyAgentError]:
        try:
            backend: Backend = make_link(entry, settings, host)
        except PyAgentError as error:
            return entry.use, error
        try:
            return backend.name, await health_of(backend)
        finally:
            await backend.close()

    rows = await asyncio.gather(*map(link, present_links(settings, host)))
    if not settings.chain:
        report.add("chain", "no link", "`pyagent node` answers by its peers, nothing else answers", is_well=True)
    ready = [name for name, health in rows if not isinstance(health, PyAgentError) and health.is_ready]
    others = f"start it, or correct its address; {', '.join(ready)} answers meanwhile"
    advice = others if ready else "start it, or put a link that is there into `chain`, such as `native`"
    for name, health in rows:
        if isinstance(health, PyAgentError):
            found, correct = _link_fault(report, health)
            report.add("chain", name, found, is_well=False, advice=correct)
        else:
            found = ("ready" if health.is_ready else "not ready") + (f": {health.detail}" if health.detail else "")
            report.add("chain", name, found, is_well=health.is_ready, advice=advice)
    await _look_at_server(report, settings)
    await _look_at_neighbours(report, host)


def _link_fault(report: _Report, error: PyAgentError) -> tuple[str, str]:
    """Return why a link cannot be made, and what to do; a setting that was found wrong before is only named again."""
    from pyagent.core.errors import ConfigError

    key = error.key if isinstance(error, ConfigError) else None
    before = [finding.name for finding in report.findings if not finding.is_well and finding.found == str(error)]
    found = f"waits for {key}, which is wrong ({before[0]}, above)" if key and before else str(error)
    return found, f"correct {key or '`chain`'} in pyagent.toml"


async def _look_at_server(report: _Report, settings: Settings) -> None:
    """How the links of a server that runs here stand; nothing when none runs, or it wants a key."""
    import httpx

    from pyagent.cli.serving_ranks import serving_ranks
    from pyagent.core.chain.stats import LinkState

    url = f"http://{settings.server.host}:{settings.server.port}/pyagent"
    try:
        async with httpx.AsyncClient(timeout=1.0, trust_env=False, verify=False) as http:  # noqa: S501 - plain http
            response, engine = await http.get(f"{url}/chain"), await http.get(f"{url}/engine")
        states = msgspec.json.decode(response.content, type=list[LinkState])
        ranks = list(serving_ranks(engine.content)) if engine.is_success else []
    except (httpx.HTTPError, httpx.InvalidURL, OSError, msgspec.MsgspecError):
        return
    for state in states:
        failed = ", ".join(f"{count} {kind}" for kind, count in state.failures.items())
        told = "" if state.breaker == "closed" else f"its breaker is {state.breaker}; "  # a link is not to look shut
        told += f"{state.num_answers} of {state.num_requests} requests answered"
        told += f"; not answered: {failed}" if failed else ""
        told += f"; ${state.usd:.4f}" if state.usd else ""
        is_well = state.breaker == "closed"
        advice = f"{state.reason}; `pyagent chain test` tries it, the next probe is in {state.retry_in_seconds:.0f} s"
        report.add("serving", state.backend, told, is_well=is_well, advice=advice)
    for name, told, is_well in ranks:
        advice = "the engine is started again after engine.hang_seconds at most; see the server's log"
        report.add("serving", name, told, is_well=is_well, advice=advice)


async def _look_at_neighbours(report: _Report, host: PluginHost) -> None:
    """Model servers that run here and are not in the chain cost nothing to find and may be wanted."""
    from pyagent.infrastructure.backends.openai import OpenAIBackend

    schemes = host.backends()
    for program, url, scheme in _NEIGHBOURS:
        backend = OpenAIBackend(url, connect_seconds=0.5, read_seconds=2.0)
        health = await backend.health()
        await backend.close()
        if health.is_ready:
            entry = scheme if scheme in schemes else f"openai:{url}"
            models = ", ".join(health.models[:5]) or "no model loaded"
            report.add("nearby", program, f"runs here ({models}); add {entry!r} to `chain` to use it")
        else:
            report.note("nearby", program, f"not running at {url}")


async def _look_at_mcp(report: _Report, settings: Settings) -> None:
    """Which MCP servers answer; they are started for it, and ended."""
    if not settings.mcp_servers:
        return
    from pyagent.cli.mcp import look_at_servers

    for server in await look_at_servers(settings.mcp_servers):
        found = f"{len(server.tools)} tools" if not server.fault else server.fault
        advice = f"correct [mcp_servers.{server.name}]; `pyagent mcp list` tries it again"
        report.add("mcp", server.name, found, is_well=not server.fault, advice=advice)


def _why_kv_stays(engine: Engine) -> str:
    """Return which setting keeps the cluster's nodes from moving KV from and to this one; empty where none does."""
    if engine.process:
        return "engine.process = true"
    if engine.data_parallel is not None and engine.data_parallel > 1:
        return f"engine.data_parallel = {engine.data_parallel}"
    if engine.num_ranks > 1:
        return "the ranks of tensor_parallel_size or pipeline_parallel_size"
    return "" if engine.kv_connector == "auto" else f'engine.kv_connector = "{engine.kv_connector}"'


async def _look_at_cluster(report: _Report, settings: Settings) -> None:
    """Whether this node's files can be read, and which leg of the network works; nothing where it is in no cluster."""
    import asyncio

    from pyagent.cli.running_servers import running_servers
    from pyagent.core.errors import ClusterError
    from pyagent.infrastructure.cluster.cluster_file import REKEY_ADVICE, ClusterFile, cluster_folder
    from pyagent.infrastructure.cluster.interface_check import check_door, check_interfaces
    from pyagent.infrastructure.cluster.known_peers import KnownPeers

    folder = cluster_folder(settings.paths.data)
    cluster = ClusterFile(folder)
    if not cluster.exists():
        return
    try:
        state = cluster.load()
    except ClusterError as error:
        report.add("cluster", "cluster.json", str(error), is_well=False, advice="see the line above")
        return
    if state.own_revocation is not None:
        report.add("cluster", state.name, "this node was revoked", is_well=False, advice=REKEY_ADVICE)
        return
    report.add("cluster", state.name, f"other nodes known: {len(state.members)}; epoch {state.epoch}")
    if stays := _why_kv_stays(settings.engine):
        role = settings.cluster.role
        advice = f'cluster.role = "{role}" needs it: set engine.process = false, engine.kv_connector = "auto"'
        report.add("cluster", "KV moves", f"none, as {stays}", is_well=role == "both", advice=advice)
    own = next((server for server in running_servers(settings.paths.data) if server.door), None)
    doors = [check_door("this node", "127.0.0.1", own.door)] if own else []
    if own is None:
        report.note("cluster", "this node", "does not run; `pyagent node` starts it")
    for door in KnownPeers(folder).doors()[:_MAX_DOORS]:
        member = state.members.get(door.node_id)
        doors.append(check_door(member.name if member and member.name else door.node_id, door.host, door.port))
    legs = await check_interfaces() if settings.cluster.multicast else []
    for check in [*legs, *await asyncio.gather(*doors)]:
        report.add("cluster", check.name, check.found, is_well=not check.advice, advice=check.advice)
