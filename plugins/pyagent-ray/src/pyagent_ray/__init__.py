"""The PyAgent plugin for Ray: the backend scheme `ray`, the executors of agents and of ranks `ray`.

Ray is imported when first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyagent.plugin import Backend, BackendFactory, LinkSpec, hookimpl

if TYPE_CHECKING:
    from pyagent.plugin import Executor, ExecutorFactory, RankExecutor, RankExecutorFactory, Settings


def make_backend(link: LinkSpec, settings: Settings) -> Backend:
    """The backend of a chain entry `ray` (the models of engine.models) or `ray:MODEL`."""
    from pyagent_ray.backend import RayBackend
    from pyagent_ray.options import read_options

    return RayBackend(link, settings, read_options(settings))


def make_executor(settings: Settings) -> Executor:
    """What runs agents as tasks and actors of a Ray cluster."""
    from pyagent_ray.executor import RayExecutor
    from pyagent_ray.options import read_options

    return RayExecutor(settings, read_options(settings))


def make_rank_executor(settings: Settings) -> RankExecutor:
    """What starts the ranks of a model as actors of a Ray cluster."""
    from pyagent_ray.options import read_options
    from pyagent_ray.ranks import RayRanks

    return RayRanks(read_options(settings))


@hookimpl
def pyagent_register_backends() -> dict[str, BackendFactory]:
    """The scheme `ray`."""
    return {"ray": make_backend}


@hookimpl
def pyagent_register_executors() -> dict[str, ExecutorFactory]:
    """The executor `ray`."""
    return {"ray": make_executor}


@hookimpl
def pyagent_register_rank_executors() -> dict[str, RankExecutorFactory]:
    """The executor of ranks `ray`."""
    return {"ray": make_rank_executor}
