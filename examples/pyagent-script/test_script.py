from array import array

from pyagent_script import KeepScript


class Words:
    size = 6
    end_ids = control_ids = frozenset({5})

    def tokens(self):
        return [b" the", "да".encode(), b", 12", "д".encode()[:1], "naïve".encode(), b"<|end|>"]


def test_letters_of_other_scripts_are_excluded():
    """What has no letters, and what is no text, stays."""
    keep = KeepScript().make({"script": "Latin"}, Words())
    logits = memoryview(array("f", range(6)))
    keep([], [], logits)
    assert list(logits) == [0.0, float("-inf"), 2.0, float("-inf"), 4.0, 5.0]
