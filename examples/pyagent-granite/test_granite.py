import pytest
from pyagent_granite import Granite

CONFIG = {
    "model_type": "granite",
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "attention_multiplier": 0.1,
    "rope_theta": 100.0,
}


def test_shape_is_what_the_configuration_says():
    """Scores have the configuration's factor; a head is rotated whole."""
    shape = Granite().shape(CONFIG)
    assert (shape.num_kv_heads, shape.head_dim, shape.attention_scale) == (2, 16, 0.1)
    assert shape.rope_frequencies == pytest.approx([100 ** (-place / 8) for place in range(8)])
