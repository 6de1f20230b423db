"""What the suites share: the host's own look at what a hook brings, and runs that end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

import msgspec

from pyagent.core.errors import PluginError
from pyagent.core.plugin_checks import checked_items

T = TypeVar("T")
LONGEST_SECONDS = 30.0


def check_host_takes(noun: str, brought: object) -> None:
    """Fail with the host's sentence where it would quarantine a plugin that brings this."""
    try:
        assert checked_items("under test", noun, brought), f"the hook brings no {noun}"
    except PluginError as error:
        raise AssertionError(str(error)) from error


def check_json(what: str, value: object) -> None:
    """Fail where a value cannot be written as JSON."""
    try:
        msgspec.json.encode(value)
    except (TypeError, ValueError) as error:
        raise AssertionError(f"{what} cannot be written as JSON: {error}") from error


def run(work: Awaitable[T]) -> T:
    """Return what comes of it, in an event loop of its own; fail where it does not end."""

    async def main() -> T:
        async with asyncio.timeout(LONGEST_SECONDS):
            return await work

    try:
        return asyncio.run(main())
    except TimeoutError as error:
        raise AssertionError(f"it has not ended within {LONGEST_SECONDS:g} seconds") from error
