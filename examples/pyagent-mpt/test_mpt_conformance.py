from pyagent_mpt import Mpt

from pyagent.testing import ArchitectureConformance

HIDDEN = 64
LAYER = {
    "norm_1": (HIDDEN,),
    "attn.Wqkv": (3 * HIDDEN, HIDDEN),
    "attn.out_proj": (HIDDEN, HIDDEN),
    "norm_2": (HIDDEN,),
    "ffn.up_proj": (4 * HIDDEN, HIDDEN),
    "ffn.down_proj": (HIDDEN, 4 * HIDDEN),
}


class TestMpt(ArchitectureConformance):
    config = {
        "model_type": "mpt",
        "vocab_size": 320,
        "d_model": HIDDEN,
        "n_heads": 4,
        "n_layers": 2,
        "expansion_ratio": 4,
        "max_seq_len": 128,
        "layer_norm_epsilon": 1e-5,
    }
    tensors = {
        "transformer.wte.weight": (320, HIDDEN),
        "transformer.norm_f.weight": (HIDDEN,),
        **{f"transformer.blocks.{layer}.{name}.weight": shape for layer in range(2) for name, shape in LAYER.items()},
    }

    def make(self) -> Mpt:
        return Mpt()
