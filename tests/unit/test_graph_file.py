"""Runs given as TOML: what becomes of a file, and what is wrong with one."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyagent.core.errors import RequestError
from pyagent.core.fleet.graph_file import read_graph

_FOLDER = Path("/given")


def test_graph_becomes_steps() -> None:
    """Items make steps of their own, what is after them is after all, and places are filled in texts and arguments."""
    text = """
    [[steps]]
    name = "read"
    agent = "summarize"
    for_each = ["a.txt", "b {task}.txt"]
    files = ["{item}"]
    arguments = { num_sentences = 2, note = ["of {item}"] }

    [[steps]]
    name = "join"
    after = ["read"]
    task = "{task} about {item}?"
    """
    first, second, join = read_graph(text, "why {item}", _FOLDER)
    assert (first.name, second.name, join.name) == ("read-1", "read-2", "join")
    assert first.task.files == ("/given/a.txt",)
    assert second.task.files == ("/given/b {task}.txt",)
    assert second.task.arguments == {"num_sentences": 2, "note": ["of b {task}.txt"]}
    assert join.after == ("read-1", "read-2")
    assert join.task.text == "why {item} about {item}?"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("steps = ", "is no TOML"),
        ("", "steps"),
        ("steps = []", "at least one step"),
        ('[[steps]]\nname = "a"\nafter = ["b"]', "'b', which does not exist"),
        ('[[steps]]\nname = "a"\nafter = ["a"]', "wait for each other"),
        ('[[steps]]\nname = "a"\n[[steps]]\nname = "a"', "different names"),
        ('[[steps]]\nname = "a"\nfor_each = []', "1 to 1000 items"),
        ('[[steps]]\nname = "a"\nagnet = "math"', "agnet"),
        ('[[steps]]\nname = "a/b"', "without a slash"),
    ],
)
def test_wrong_graph_is_named(text: str, told: str) -> None:
    """The error names what is wrong and where."""
    with pytest.raises(RequestError, match=told):
        read_graph(text, "go", _FOLDER)


def test_example_is_a_graph() -> None:
    """The example's steps name files that are there."""
    file = Path(__file__).parents[2] / "examples" / "compare.toml"
    steps = read_graph(file.read_text(), "Is this fair to the tenant?", file.parent)
    assert [step.name for step in steps] == ["read-1", "read-2", "sum", "answer"]
    assert all(Path(name).is_file() for step in steps for name in step.task.files)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (f"a = {'[' * 20_000}", "hundreds deep"),
        (f"[[steps]]\nname = 'a'\npriority = {'9' * 5_000}", "the graph cannot be read"),
        (f"[[steps]]\nname = 'a'\npriority = {'9' * 400}", "priority is a number from"),
        (f"[[steps]]\nname = 'a'\n[steps.arguments{'.a' * 20_000}]\nb = 1", "hundreds deep"),
        (
            "".join(
                f"[[steps]]\nname = 's{number}'\nfor_each = {['x'] * 1000}\n"
                f"after = {[f's{before}' for before in range(number)]}\n"
                for number in range(3)
            ),
            "at most 1,000,000 waits",
        ),
        (
            "".join(f"[[steps]]\nname = 's{number}'\nfor_each = {['x'] * 1000}\n" for number in range(11)),
            "10,000 steps",
        ),
    ],
)
def test_graph_that_is_a_bomb_is_refused(text: str, told: str) -> None:
    """What is too deep or becomes too much is an error in words, before anything of that size is made."""
    with pytest.raises(RequestError, match=told):
        read_graph(text, "", Path())
