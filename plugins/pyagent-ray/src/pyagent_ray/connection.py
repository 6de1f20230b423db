"""This process's connection to a Ray cluster: made when first needed, shared by engines and agents."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from pyagent.plugin import BackendError
from pyagent_ray.lazily import module
from pyagent_ray.options import Options

NAMESPACE = "pyagent"
_lock = threading.Lock()
_users = 0
_is_own = False


async def connect(options: Options) -> Any:
    """Return Ray's module, connected; `disconnect` when it is no longer used. Raises `BackendError`.

    A program that has connected by itself keeps its connection.
    """
    return await asyncio.to_thread(connect_blocking, options)


def connect_blocking(options: Options) -> Any:
    """As `connect`."""
    global _users, _is_own  # noqa: PLW0603 - Ray has one connection a process
    try:
        ray = module()
    except ImportError as error:
        text = "the links and the executor `ray` need Ray: pip install 'ray>=2.52'"
        raise BackendError(text, backend="ray", retryable=False) from error
    with _lock:
        if not ray.is_initialized():
            _init(ray, options)
            _is_own = True
        _users += 1
    return ray


def _init(ray: Any, options: Options) -> None:
    local = {"_node_ip_address": "127.0.0.1", "include_dashboard": False} if options.address == "local" else {}
    try:
        ray.init(
            address=options.address,
            namespace=NAMESPACE,
            runtime_env=options.runtime_env or None,
            log_to_driver=False,
            configure_logging=False,
            **local,
        )
    except Exception as error:  # Ray raises plain ones where a node does not start in time
        hint = "start one by `ray start --head` on this machine, or name it in plugins.ray.address"
        text = f"no Ray cluster answers at {options.address!r}: {str(error)[:300]}; {hint}"
        raise BackendError(text, backend="ray") from error


async def disconnect() -> None:
    """Give up one use of the connection; the last one closes it, where it was made here."""
    await asyncio.to_thread(disconnect_blocking)


def disconnect_blocking() -> None:
    """As `disconnect`."""
    global _users, _is_own  # noqa: PLW0603 - as above
    with _lock:
        _users -= 1
        if _users == 0 and _is_own:
            _is_own = False
            module().shutdown()


@contextmanager
def rays_failures(name: str) -> Generator[None]:
    """Make what Ray raises, such as the death of an actor or a node, this backend's failure, which may be retried."""
    try:
        yield
    except module("ray.exceptions").RayError as error:
        said = str(error).strip().splitlines() or [type(error).__name__]
        raise BackendError(f"{name}: {type(error).__name__}: {said[0][:300]}", backend=name) from error
