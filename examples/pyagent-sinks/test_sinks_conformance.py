from pyagent_sinks import pyagent_register_attention_backends

from pyagent.plugin import AttentionBackend
from pyagent.testing import AttentionBackendConformance


class TestSinks(AttentionBackendConformance):
    def make(self) -> AttentionBackend:
        return pyagent_register_attention_backends()[0]
