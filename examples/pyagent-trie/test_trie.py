from pyagent_trie import Trie

from pyagent.testing import GrammarBackendConformance


class TestTrie(GrammarBackendConformance):
    def make(self) -> Trie:
        return Trie()
