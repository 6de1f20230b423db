from pyagent_mpt import Mpt

from pyagent.testing import ArchitectureConformance


class TestMpt(ArchitectureConformance):
    config = {
        "model_type": "mpt",
        "vocab_size": 320,
        "d_model": 64,
        "n_heads": 4,
        "n_layers": 2,
        "expansion_ratio": 4,
        "max_seq_len": 128,
        "layer_norm_epsilon": 1e-5,
    }

    def make(self) -> Mpt:
        return Mpt()
