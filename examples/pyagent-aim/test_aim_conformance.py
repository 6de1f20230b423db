from pyagent_aim import AimFactory

from pyagent.testing import LogitsProcessorConformance


class TestAim(LogitsProcessorConformance):
    args = ({"tokens": 8}, {"tokens": 100})

    def make(self) -> AimFactory:
        return AimFactory()
