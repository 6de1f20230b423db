"""A PyAgent plugin with one command: `pyagent count FILE` counts the words of a file."""

from collections.abc import Callable, Mapping
from pathlib import Path

from pyagent.plugin import RequestError, hookimpl


def count(file: Path, longest: bool = False) -> None:
    """Count the words of a file."""
    try:
        words = file.read_text(encoding="utf-8").split()
    except OSError as error:
        raise RequestError(f"{file} cannot be read: {error.strerror}", param="file") from error
    print(len(words))
    if longest and words:
        print(max(words, key=len))


@hookimpl
def pyagent_register_commands() -> Mapping[str, Callable[..., object]]:
    """The command `count`."""
    return {"count": count}
