"""Many subjects of one suite, as test classes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

import pytest


def add_suites(suite: type, subjects: Mapping[str, Callable[[], object]], **inputs: Mapping[str, Any]) -> None:
    """Put a test class for each subject into the caller's module; `inputs` are the suite's attributes by subject."""
    module = sys._getframe(1).f_globals
    for name, make in subjects.items():

        def made(self: object, *options: object, make: Callable[..., object] = make) -> object:
            return make(*options)

        attributes = {key: values[name] for key, values in inputs.items() if name in values}
        title = "Test" + "".join(part.capitalize() for part in name.replace("_", "-").split("-"))
        module[title] = type(title, (suite,), {"make": made, "__module__": module["__name__"], **attributes})


def rules_of(suite: type) -> list[str]:
    """Return the names of a suite's tests."""
    return [name for name in vars(suite) if name.startswith("test_")]


def check_rule_is_kept(suite: type, rule: str, make: Callable[..., object], inputs: Mapping[str, Any]) -> None:
    """Run one rule on a subject; a skip is a mistake of the table."""
    subject = type("Subject", (suite,), {"make": lambda self, *options: make(*options), **inputs})()
    try:
        getattr(subject, rule)()
    except pytest.skip.Exception as skipped:
        raise RuntimeError(f"{suite.__name__}.{rule} is not run: {skipped}") from skipped
