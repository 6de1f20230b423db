from pathlib import Path

from pyagent_bytes import ByteModels

from pyagent.testing import TokenizerConformance


class TestBytes(TokenizerConformance):
    def make(self) -> ByteModels:
        return ByteModels()

    def model(self) -> Path:
        return Path("small.bytes.gguf")
