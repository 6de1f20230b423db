from pyagent_notes import Notes

from pyagent.testing import AgentConformance


class TestNotes(AgentConformance):
    tasks = ("What is on the list?", "Where is the key?")

    def make(self) -> Notes:
        return Notes()
