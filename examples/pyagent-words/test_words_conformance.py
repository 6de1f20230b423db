from pyagent_words import pyagent_register_tools

from pyagent.plugin import FleetTool
from pyagent.testing import ToolConformance


class TestWords(ToolConformance):
    examples = ({"text": "three small words"}, {"text": ""})

    def make(self) -> FleetTool:
        return pyagent_register_tools()[0]
