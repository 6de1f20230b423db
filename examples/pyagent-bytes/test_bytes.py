from pathlib import Path

from pyagent_bytes import CONTROLS, ByteModels, Bytes


def test_texts_are_their_bytes():
    """A text comes back as it was, and names of control tokens are these."""
    ids = Bytes().encode("é<|end|>z")
    assert ids == [*"é".encode(), CONTROLS["<|end|>"], ord("z")]
    assert b"".join(map(Bytes().token_bytes, ids)).decode() == "éz"


def test_models_are_known_by_their_names():
    """Other files are left to other readers."""
    assert ByteModels().matches(Path("small.bytes.gguf"))
    assert not ByteModels().matches(Path("small.gguf"))
