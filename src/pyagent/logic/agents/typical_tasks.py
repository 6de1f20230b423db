"""What people ask each agent for, in many words: the router compares tasks with these where no rule is sure.

They are the lines of `typical_tasks.tsv`, an agent's name and a task each; none is in tests/data/routing.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

_FILE = Path(__file__).parent / "typical_tasks.tsv"


def typical_tasks_of(agent: str) -> tuple[str, ...]:
    """Return the tasks told as typical of a built-in agent, in the file's order."""
    return _tasks_by_agent()[agent]


@lru_cache(maxsize=1)
def _tasks_by_agent() -> dict[str, tuple[str, ...]]:
    tasks: dict[str, list[str]] = {}
    for line in _FILE.read_text(encoding="utf-8").splitlines():
        agent, task = line.split("\t")
        tasks.setdefault(agent, []).append(task)
    return {agent: tuple(told) for agent, told in tasks.items()}
