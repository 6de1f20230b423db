"""Writes random weights in the shape of Llama 3.2 1B as int4 models of OpenVINO GenAI and onnxruntime-genai.

    python -m venv $PEERS_HOME/int4
    $PEERS_HOME/int4/bin/pip install openvino-genai optimum-intel nncf onnxruntime-genai onnx onnx_ir torch
    $PEERS_HOME/int4/bin/python benchmarks/int4_export.py $PEERS_HOME/models/llama-1b-int4

Takes three minutes on two cores, 6 GB of memory and 4 GB of room. Both formats have symmetric groups of 32 and
accumulate in int8 where they can, the quickest that each has on a CPU. The same shape for llama.cpp and for us is
`random_shapes.py llama-1b`.
"""

import subprocess
import sys
from pathlib import Path

import openvino
import torch
from openvino_tokenizers import convert_tokenizer
from optimum.intel import OVModelForCausalLM, OVWeightQuantizationConfig
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

VOCAB = 32_768
"""As `random_shapes.py` has it."""


def tokenizer() -> PreTrainedTokenizerFast:
    """Bytes, and tokens that no text has."""
    alphabet = ["<pad>", "<s>", "</s>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    tokens = [*alphabet, *(f"<unused{index}>" for index in range(len(alphabet), VOCAB))]
    by_bytes = Tokenizer(models.BPE({token: index for index, token in enumerate(tokens)}, []))
    by_bytes.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    by_bytes.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=by_bytes, bos_token="<s>", eos_token="</s>", pad_token="<pad>")


def write_weights(folder: Path) -> None:
    """Write the model in bfloat16, as transformers does."""
    config = LlamaConfig(
        hidden_size=2048,
        intermediate_size=8192,
        num_hidden_layers=16,
        num_attention_heads=32,
        num_key_value_heads=8,
        head_dim=64,
        vocab_size=VOCAB,
        tie_word_embeddings=True,
        max_position_embeddings=16_384,
        rope_theta=5e5,
    )
    torch.manual_seed(1234)
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
    tokenizer().save_pretrained(folder)


def export_openvino(folder: Path, target: Path) -> None:
    """Write OpenVINO's files."""
    int4 = OVWeightQuantizationConfig(bits=4, sym=True, group_size=32, ratio=1.0)
    OVModelForCausalLM.from_pretrained(folder, export=True, compile=False, quantization_config=int4).save_pretrained(
        target
    )
    for model, name in zip(
        convert_tokenizer(tokenizer(), with_detokenizer=True), ("tokenizer", "detokenizer"), strict=True
    ):
        openvino.save_model(model, target / f"openvino_{name}.xml")


def export_onnxruntime(folder: Path, target: Path) -> None:
    """Write onnxruntime-genai's files, by its own builder."""
    options = ("--extra_options", "int4_accuracy_level=4", "int4_block_size=32")
    words = (
        "-m",
        folder,
        "-i",
        folder,
        "-o",
        target,
        "-p",
        "int4",
        "-e",
        "cpu",
        "-c",
        target.with_name("cache"),
        *options,
    )
    subprocess.run([sys.executable, "-m", "onnxruntime_genai.models.builder", *words], check=True)


def main() -> None:
    folder = Path(sys.argv[1])
    write_weights(folder / "weights")
    export_openvino(folder / "weights", folder / "openvino")
    export_onnxruntime(folder / "weights", folder / "onnxruntime")


if __name__ == "__main__":
    main()
