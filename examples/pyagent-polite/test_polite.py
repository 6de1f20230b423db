from pyagent_polite import PoliteRanks

from pyagent.testing import RankExecutorConformance


class TestPolite(RankExecutorConformance):
    def make(self) -> PoliteRanks:
        return PoliteRanks()
