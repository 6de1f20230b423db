"""The engines of one link: actors in a placement group, made when the first is asked for and ended together."""

from __future__ import annotations

import asyncio
from typing import Any

from pyagent.plugin import BackendError
from pyagent_ray.connection import connect, disconnect, rays_failures
from pyagent_ray.engine_actor import EngineActor
from pyagent_ray.lazily import module
from pyagent_ray.options import Options

_MAX_CALLS = 1_000
"""An actor's calls at once: the engine queues what it cannot compute yet."""


class Engines:
    """The actors of `options.engines` engines, each made from a chain entry and the settings that workers get."""

    def __init__(self, name: str, entry: str, settings: bytes, options: Options) -> None:
        self._name = name
        self._made_from = (entry, settings)
        self._options = options
        self._starting: asyncio.Task[list[Any]] | None = None
        self._group: Any = None
        self._num_users = options.engines

    @property
    def is_started(self) -> bool:
        """Whether there are actors to ask."""
        task = self._starting
        return task is not None and task.done() and not task.cancelled() and task.exception() is None

    async def actor(self, number: int) -> Any:
        """Return an engine's actor. Raises `BackendError` while the cluster cannot be reached or has no room."""
        if self._starting is None or (self._starting.done() and not self.is_started):
            self._starting = asyncio.create_task(self._start())
        return (await asyncio.shield(self._starting))[number]

    async def _start(self) -> list[Any]:
        ray = await connect(self._options)
        try:
            with rays_failures(self._name):
                await self._reserve()
                return self._actors(ray)
        except BaseException:
            await self._release()
            raise

    async def _reserve(self) -> None:
        options = self._options
        bundle = {"CPU": options.cpus, "GPU": options.gpus}
        bundles = [{kind: amount for kind, amount in bundle.items() if amount} for _ in range(options.engines)]
        if not bundles[0]:
            return  # they take nothing that Ray counts
        self._group = await asyncio.to_thread(
            module("ray.util.placement_group").placement_group, bundles, strategy=options.strategy
        )
        try:
            async with asyncio.timeout(options.start_seconds):
                await self._group.ready()
        except TimeoutError as error:
            text = (
                f"{self._name}: the Ray cluster has no room for {options.engines} engines with {options.cpus:g} CPUs "
                f"and {options.gpus:g} GPUs each ({options.strategy}); it was asked for {options.start_seconds:g} s"
            )
            raise BackendError(text, backend=self._name) from error

    def _actors(self, ray: Any) -> list[Any]:
        strategies = module("ray.util.scheduling_strategies")
        options = self._options
        actor_class = ray.remote(EngineActor)
        actors: list[Any] = []
        for number in range(options.engines):
            place: dict[str, Any] = {}
            if self._group is not None:
                place = {"scheduling_strategy": strategies.PlacementGroupSchedulingStrategy(self._group, number)}
            made = actor_class.options(
                num_cpus=options.cpus,
                num_gpus=options.gpus,
                max_restarts=options.max_restarts,
                max_task_retries=0,  # a broken answer is the chain's to continue
                max_concurrency=_MAX_CALLS,
                **place,
            )
            actors.append(made.remote(*self._made_from))
        return actors

    async def release(self) -> None:
        """Give up one engine; with the last one the actors end and their place is free."""
        self._num_users -= 1
        if self._num_users or self._starting is None:
            return
        self._starting.cancel()
        started = await asyncio.gather(self._starting, return_exceptions=True)
        if isinstance(started[0], list):
            await asyncio.to_thread(_kill, started[0])
            await self._release()

    async def _release(self) -> None:
        group, self._group = self._group, None
        if group is not None:
            await asyncio.to_thread(module("ray.util.placement_group").remove_placement_group, group)
        await disconnect()


def _kill(actors: list[Any]) -> None:
    for actor in actors:
        module().kill(actor)
