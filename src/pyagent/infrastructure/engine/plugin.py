"""Brings the embedded engine in as backend scheme `native`."""

from __future__ import annotations

from collections.abc import Mapping

from pyagent.core.backends import Backend, BackendFactory, Link
from pyagent.core.errors import ConfigError
from pyagent.core.hooks import hookimpl
from pyagent.core.settings import Settings


def make_native(link: Link, settings: Settings) -> Backend:
    """A model run in this process: `native`, `native:NAME` or `native:./file.gguf`. Loads on first use."""
    # The engine is imported when a chain names it, not when the plugin is looked at.
    from pyagent.infrastructure.engine.backend import NativeBackend
    from pyagent.infrastructure.engine.model import EngineOptions
    from pyagent.infrastructure.engine.runners.cpu import DEFAULT_KV_BYTES, CpuOptions
    from pyagent.infrastructure.engine.scheduler import SchedulerLimits
    from pyagent.infrastructure.models.store import ModelStore

    engine = settings.engine
    name = link.target or next(iter(engine.models), "")
    if not name:
        raise ConfigError("engine.models is empty, so `native` needs a model: native:NAME", key="engine.models")
    options = EngineOptions(
        cpu=CpuOptions(
            threads=engine.threads or 0,
            kv_bytes=engine.memory or DEFAULT_KV_BYTES,
            kv_type="f32" if engine.kv_dtype == "f32" else "f16",
            isa=None if engine.isa == "auto" else engine.isa,
        ),
        limits=SchedulerLimits(max_num_seqs=engine.max_num_seqs, token_budget=engine.token_budget),
        max_context=engine.max_context,
    )
    store = ModelStore(settings.paths.models)
    return NativeBackend(name, lambda: store.locate(name), options, look=lambda: store.look(name))


@hookimpl
def pyagent_register_backends() -> Mapping[str, BackendFactory]:
    """The scheme `native`."""
    return {"native": make_native}
