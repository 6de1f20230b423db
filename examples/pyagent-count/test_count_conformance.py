from collections.abc import Callable, Mapping
from pathlib import Path

from pyagent_count import pyagent_register_commands

from pyagent.testing import CommandConformance


class TestCount(CommandConformance):
    calls = ([__file__], [__file__, "--longest"], [str(Path(__file__).with_name("test_count.py"))])

    def make(self) -> Mapping[str, Callable[..., object]]:
        return pyagent_register_commands()
