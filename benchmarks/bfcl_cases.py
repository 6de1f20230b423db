"""Cases of the Berkeley Function Calling Leaderboard: read from the wheel of `bfcl-eval`, checked by its own checker.

The wheel (Apache 2.0) is used where it was installed; nothing of it is copied. Its package imports clients of many
services, of which the checker needs none: it is loaded by its path, with a stand-in for the list of models.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

CATEGORIES = ("simple_python", "multiple", "parallel", "parallel_multiple", "irrelevance")
_MODEL = "any"
"""The checker asks by a model's name whether dots in functions' names are written as underscores."""


@dataclass(frozen=True, slots=True)
class Case:
    """One question with its functions; `answers` are the calls that are right, none where no function helps."""

    id: str
    category: str
    messages: list[dict[str, str]]
    functions: list[dict[str, Any]]
    answers: list[dict[str, Any]]
    tools: list[dict[str, Any]]

    def schemas(self) -> dict[str, dict[str, Any]]:
        """The JSON schema of each tool's arguments."""
        return {tool["function"]["name"]: tool["function"]["parameters"] for tool in self.tools}


class Leaderboard:
    """The installed package `bfcl_eval`."""

    def __init__(self, folder: Path) -> None:
        """`folder` is the package's. Raises `SystemExit` where it is not there."""
        if not (folder / "data").is_dir():
            raise SystemExit(f"{folder}: no bfcl_eval there; `make function-calls` installs it, --bfcl FOLDER names it")
        self._data = folder / "data"
        _load_package(folder)
        checker = importlib.import_module("bfcl_eval.eval_checker.ast_eval.ast_checker")
        self._check: Callable[..., dict[str, Any]] = checker.ast_checker
        self._language = importlib.import_module("bfcl_eval.constants.enums").Language.PYTHON
        self._types: Mapping[str, str] = importlib.import_module("bfcl_eval.constants.type_mappings").GORILLA_TO_OPENAPI

    def cases(self, num_each: int) -> list[Case]:
        """So many cases of each category, evenly spaced over its file: always the same ones."""
        return [case for category in CATEGORIES for case in self._of(category, num_each)]

    def is_right(self, case: Case, calls: list[tuple[str, dict[str, Any]]]) -> bool:
        """Whether calls are those that the case asks for, by the leaderboard's checker; none for irrelevance."""
        if not case.answers:
            return not calls
        said = [{name: arguments} for name, arguments in calls]
        try:
            return bool(self._check(case.functions, said, case.answers, self._language, case.category, _MODEL)["valid"])
        except (KeyError, TypeError, AttributeError, IndexError):  # of values that its types do not foresee
            return False

    def _of(self, category: str, num_cases: int) -> Iterator[Case]:
        rows = _rows(self._data / f"BFCL_v4_{category}.json")
        path = self._data / "possible_answer" / f"BFCL_v4_{category}.json"
        answers = {row["id"]: row["ground_truth"] for row in _rows(path)} if path.is_file() else {}
        for at in range(num_cases):
            row = rows[at * len(rows) // num_cases]
            tools = [self._tool(function) for function in row["function"]]
            yield Case(row["id"], category, row["question"][0], row["function"], answers.get(row["id"], []), tools)

    def _tool(self, function: Mapping[str, Any]) -> dict[str, Any]:
        """A function as OpenAI's API has it: names without dots, JSON schema's types."""
        parameters = self._schema(function["parameters"]) | {"type": "object"}
        name = function["name"].replace(".", "_")
        return {
            "type": "function",
            "function": {"name": name, "description": function["description"], "parameters": parameters},
        }

    def _schema(self, kind: Mapping[str, Any]) -> dict[str, Any]:
        """A description of a value as a JSON schema, as the leaderboard does it."""
        said = kind.get("type", "string")
        schema = {**kind, "type": self._types.get(said, "string")}
        if said == "float":
            schema["format"] = "float"
            schema["description"] = kind.get("description", "") + " This is a float type value."
        if "properties" in kind:
            schema["properties"] = {key: self._schema(value) for key, value in kind["properties"].items()}
        if "items" in kind:
            schema["items"] = self._schema(kind["items"])
        return schema


def _rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines() if line.strip()]


def _load_package(folder: Path) -> None:
    """Make `bfcl_eval` importable from its folder alone."""
    spec = importlib.util.spec_from_file_location(
        "bfcl_eval", folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    assert spec
    assert spec.loader
    package = importlib.util.module_from_spec(spec)
    sys.modules["bfcl_eval"] = package
    spec.loader.exec_module(package)
    models = ModuleType("bfcl_eval.constants.model_config")
    models.MODEL_CONFIG_MAPPING = {_MODEL: SimpleNamespace(underscore_to_dot=True)}  # pyright: ignore[reportAttributeAccessIssue]
    sys.modules[models.__name__] = models
