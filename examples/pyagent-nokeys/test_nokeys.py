from pyagent_nokeys import NoKeys

from pyagent.testing import GuardrailConformance


class TestNoKeys(GuardrailConformance):
    passes = ("What is the time?", "The risk-assessment of sk-1 is done.")
    refuses = ("Use the key sk-abcdefghijklmnop1234.", "AKIAABCDEFGHIJKLMNOP")

    def make(self) -> NoKeys:
        return NoKeys()
