import sys
from pathlib import Path

from pyagent_toolserver import ToolServer

from pyagent.testing import ToolProviderConformance


class TestToolServer(ToolProviderConformance):
    def make(self) -> ToolServer:
        return ToolServer("dice", [sys.executable, str(Path(__file__).with_name("dice_server.py"))])
