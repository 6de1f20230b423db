from collections.abc import Mapping

from pyagent_shortest import make_shortest

from pyagent.plugin import QueuePolicy
from pyagent.testing import QueuePolicyConformance


class TestShortest(QueuePolicyConformance):
    def make(self, options: Mapping[str, object]) -> QueuePolicy:
        return make_shortest(options)
