from pyagent_script import KeepScript

from pyagent.testing import LogitsProcessorConformance


class TestKeepScript(LogitsProcessorConformance):
    args = ({"script": "latin"}, {"script": "cyrillic"})

    def make(self) -> KeepScript:
        return KeepScript()
