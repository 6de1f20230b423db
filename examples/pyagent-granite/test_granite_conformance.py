from pyagent_granite import Granite

from pyagent.testing import ArchitectureConformance


class TestGranite(ArchitectureConformance):
    config = {
        "model_type": "granite",
        "vocab_size": 320,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 128,
        "attention_multiplier": 0.1,
        "embedding_multiplier": 3.0,
        "residual_multiplier": 0.4,
        "logits_scaling": 2.0,
        "rms_norm_eps": 1e-5,
        "rope_theta": 100.0,
        "hidden_act": "silu",
        "tie_word_embeddings": True,
    }

    def make(self) -> Granite:
        return Granite()
