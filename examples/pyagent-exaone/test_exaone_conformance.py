from pyagent_exaone import Exaone

from pyagent.testing import ArchitectureConformance

HIDDEN, FFN, KV = 64, 96, 32
LAYER = {
    "ln_1": (HIDDEN,),
    "ln_2": (HIDDEN,),
    "attn.attention.q_proj": (HIDDEN, HIDDEN),
    "attn.attention.k_proj": (KV, HIDDEN),
    "attn.attention.v_proj": (KV, HIDDEN),
    "attn.attention.out_proj": (HIDDEN, HIDDEN),
    "mlp.c_fc_0": (FFN, HIDDEN),
    "mlp.c_fc_1": (FFN, HIDDEN),
    "mlp.c_proj": (HIDDEN, FFN),
}


class TestExaone(ArchitectureConformance):
    config = {
        "model_type": "exaone",
        "vocab_size": 320,
        "hidden_size": HIDDEN,
        "intermediate_size": FFN,
        "num_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 128,
        "layer_norm_epsilon": 1e-5,
        "rope_theta": 100.0,
        "activation_function": "silu",
        "tie_word_embeddings": True,
    }
    tensors = {
        "transformer.wte.weight": (320, HIDDEN),
        "transformer.ln_f.weight": (HIDDEN,),
        **{f"transformer.h.{layer}.{name}.weight": shape for layer in range(2) for name, shape in LAYER.items()},
    }

    def make(self) -> Exaone:
        return Exaone()
