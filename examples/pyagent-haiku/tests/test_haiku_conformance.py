"""What every agent must do."""

from pyagent_haiku import Haiku

from pyagent.testing import AgentConformance

RIGHT = '{"first": "An old silent pond", "second": "A frog jumps into the pond", "third": "Splash! Silent again."}'


class TestHaiku(AgentConformance):
    """Each method of the suite is a test of the agent."""

    tasks = ("rain", "snow")
    model = (RIGHT,)

    def make(self) -> Haiku:
        """Return the agent under test."""
        return Haiku()
