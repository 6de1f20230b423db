"""The table `[plugins.ray]` of the settings, and which settings go to Ray's workers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import msgspec

from pyagent.plugin import Policy, Settings, plugin_options

_Count = Annotated[int, msgspec.Meta(ge=1, le=10_000)]
_Amount = Annotated[float, msgspec.Meta(ge=0, le=10_000)]
_Seconds = Annotated[float, msgspec.Meta(gt=0)]


class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a user says of Ray.

    `engines` actors with `cpus` and `gpus` each are placed by `strategy`; `routing` chooses among them. `agents` names
    those that run on Ray, none meaning all; each takes `agent_cpus`, and `max_agents` run at once. Each rank of a model
    divided among GPUs takes `rank_cpus` and `rank_gpus`.
    """

    address: str = "auto"
    engines: _Count = 1
    cpus: _Amount = 1.0
    gpus: _Amount = 0.0
    strategy: Literal["PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"] = "SPREAD"
    routing: Policy = "prefix"
    max_restarts: Annotated[int, msgspec.Meta(ge=-1)] = -1
    start_seconds: _Seconds = 120.0
    agents: tuple[str, ...] = ()
    agent_cpus: _Amount = 0.0
    max_agents: _Count = 32
    rank_cpus: _Amount = 1.0
    rank_gpus: _Amount = 1.0
    runtime_env: dict[str, object] = {}


def read_options(settings: Settings) -> Options:
    """Return the options of the settings; raises `ConfigError` naming the one at fault."""
    return plugin_options(settings, "ray", Options)


def encoded_for_workers(settings: Settings, options: Options) -> bytes:
    """Return the settings that an engine elsewhere needs: none that names a key, a header or a client.

    A worker is a process of its own already, and may use the processors that Ray gives it.
    """
    engine = msgspec.structs.replace(settings.engine, process=False)
    if engine.threads is None and options.cpus >= 1:
        engine = msgspec.structs.replace(engine, threads=int(options.cpus))
    none = Settings()
    plugins = msgspec.structs.replace(settings.plugins, options={})
    backends = msgspec.structs.replace(none.backends, unsupported=settings.backends.unsupported)
    told = msgspec.structs.replace(none, engine=engine, plugins=plugins, backends=backends, log=settings.log)
    table = msgspec.to_builtins(told, enc_hook=str)
    is_default = settings.paths.models == none.paths.models
    table["paths"] = {} if is_default else {"models": str(settings.paths.models)}  # else each machine's own folder
    return msgspec.json.encode(table)


def decoded_by_worker(said: bytes) -> Settings:
    """Return the settings in a worker."""
    return msgspec.json.decode(said, type=Settings, dec_hook=_path)


def _path(kind: type[Path], value: str) -> Path:
    return kind(value)
