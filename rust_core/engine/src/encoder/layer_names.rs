//! What files call the parts of a layer, family by family.

use super::bert_config::EncoderArchitecture;

/// A part of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    Query,
    Key,
    Value,
    AttentionOutput,
    AttentionNorm,
    Gate,
    Up,
    Down,
    FfnNorm,
    QueryNorm,
    KeyNorm,
    SecondNorm,
}

pub(super) const PARTS: [Part; 12] = [
    Part::Query,
    Part::Key,
    Part::Value,
    Part::AttentionOutput,
    Part::AttentionNorm,
    Part::Gate,
    Part::Up,
    Part::Down,
    Part::FfnNorm,
    Part::QueryNorm,
    Part::KeyNorm,
    Part::SecondNorm,
];

/// Those that are matrices.
pub(super) const MATRICES: [Part; 7] = [
    Part::Query,
    Part::Key,
    Part::Value,
    Part::AttentionOutput,
    Part::Gate,
    Part::Up,
    Part::Down,
];

/// The names of a layer's tensors, in the order of the parts; those that end a list may be left out. A number behind one says
/// which share of its rows it is.
pub(super) type LayerNames = &'static [&'static str];

const BERT: LayerNames = &[
    "attention.self.query",
    "attention.self.key",
    "attention.self.value",
    "attention.output.dense",
    "attention.output.LayerNorm",
    "",
    "intermediate.dense",
    "output.dense",
    "output.LayerNorm",
];
const MODERN_BERT: LayerNames = &[
    "attn.Wqkv 0",
    "attn.Wqkv 1",
    "attn.Wqkv 2",
    "attn.Wo",
    "attn_norm",
    "mlp.Wi 0",
    "mlp.Wi 1",
    "mlp.Wo",
    "mlp_norm",
];
const NOMIC_BERT: LayerNames = &[
    "attn.Wqkv 0",
    "attn.Wqkv 1",
    "attn.Wqkv 2",
    "attn.out_proj",
    "norm1",
    "mlp.fc12",
    "mlp.fc11",
    "mlp.fc2",
    "norm2",
];
const NOMIC_BERT_MOE: LayerNames = &[
    "attn.Wqkv 0",
    "attn.Wqkv 1",
    "attn.Wqkv 2",
    "attn.out_proj",
    "norm1",
    "",
    "mlp.fc1",
    "mlp.fc2",
    "norm2",
];
const GTE: LayerNames = &[
    "attention.qkv_proj 0",
    "attention.qkv_proj 1",
    "attention.qkv_proj 2",
    "attention.o_proj",
    "attn_ln",
    "mlp.up_gate_proj 1",
    "mlp.up_gate_proj 0",
    "mlp.down_proj",
    "mlp_ln",
];
const GGUF: LayerNames = &[
    "attn_q",
    "attn_k",
    "attn_v",
    "attn_output",
    "attn_output_norm",
    "",
    "ffn_up",
    "ffn_down",
    "layer_output_norm",
];
const GGUF_NOMIC_BERT: LayerNames = &[
    "attn_qkv 0",
    "attn_qkv 1",
    "attn_qkv 2",
    "attn_output",
    "attn_output_norm",
    "ffn_gate",
    "ffn_up",
    "ffn_down",
    "layer_output_norm",
];
const GGUF_MODERN_BERT: LayerNames = &[
    "attn_qkv 0",
    "attn_qkv 1",
    "attn_qkv 2",
    "attn_output",
    "attn_norm",
    "ffn_up 0",
    "ffn_up 1",
    "ffn_down",
    "ffn_norm",
];
const JINA_BERT: LayerNames = &[
    "attention.self.query",
    "attention.self.key",
    "attention.self.value",
    "attention.output.dense",
    "attention.output.LayerNorm",
    "mlp.gated_layers 0",
    "mlp.gated_layers 1",
    "mlp.wo",
    "mlp.layernorm",
    "attention.self.layer_norm_q",
    "attention.self.layer_norm_k",
];
const JINA_CODE_BERT: LayerNames = &[
    "attention.self.query",
    "attention.self.key",
    "attention.self.value",
    "attention.output.dense",
    "attention.output.LayerNorm",
    "mlp.up_gated_layer 1",
    "mlp.up_gated_layer 0",
    "mlp.down_layer",
    "layer_norm_2",
    "attention.self.layer_norm_q",
    "attention.self.layer_norm_k",
    "layer_norm_1",
];
const JINA_BERT_V3: LayerNames = &[
    "mixer.Wqkv 0",
    "mixer.Wqkv 1",
    "mixer.Wqkv 2",
    "mixer.out_proj",
    "norm1",
    "",
    "mlp.fc1",
    "mlp.fc2",
    "norm2",
];
/// And of nomic-embed-text-v2-moe.
const GGUF_JINA_BERT_V3: LayerNames = &[
    "attn_qkv 0",
    "attn_qkv 1",
    "attn_qkv 2",
    "attn_output",
    "attn_output_norm",
    "",
    "ffn_up",
    "ffn_down",
    "layer_output_norm",
];
const MPNET: LayerNames = &[
    "attention.attn.q",
    "attention.attn.k",
    "attention.attn.v",
    "attention.attn.o",
    "attention.LayerNorm",
    "",
    "intermediate.dense",
    "output.dense",
    "output.LayerNorm",
];
const DISTIL_BERT: LayerNames = &[
    "attention.q_lin",
    "attention.k_lin",
    "attention.v_lin",
    "attention.out_lin",
    "sa_layer_norm",
    "",
    "ffn.lin1",
    "ffn.lin2",
    "output_layer_norm",
];
const GGUF_JINA_BERT: LayerNames = &[
    "attn_q",
    "attn_k",
    "attn_v",
    "attn_output",
    "attn_output_norm",
    "ffn_up 0",
    "ffn_up 1",
    "ffn_down",
    "layer_output_norm",
    "attn_q_norm",
    "attn_k_norm",
];
const GGUF_JINA_CODE_BERT: LayerNames = &[
    "attn_q",
    "attn_k",
    "attn_v",
    "attn_output",
    "attn_output_norm",
    "ffn_up 1",
    "ffn_up 0",
    "ffn_down",
    "layer_output_norm",
    "attn_q_norm",
    "attn_k_norm",
    "attn_norm_2",
];
/// As llama.cpp's converter wrote it until 2025.
const GGUF_JINA_SPLIT: LayerNames = &[
    "attn_q",
    "attn_k",
    "attn_v",
    "attn_output",
    "attn_output_norm",
    "ffn_gate",
    "ffn_up",
    "ffn_down",
    "layer_output_norm",
    "attn_q_norm",
    "attn_k_norm",
    "attn_norm_2",
];

/// The names of a family's layers, and where in a folder's file they are.
pub(super) fn layer_names(
    architecture: EncoderArchitecture,
    is_gguf: bool,
    is_gate_apart: bool,
) -> (LayerNames, &'static str) {
    match (architecture, is_gguf) {
        (EncoderArchitecture::NomicBert, true) => (GGUF_NOMIC_BERT, "blk"),
        (EncoderArchitecture::ModernBert, true) => (GGUF_MODERN_BERT, "blk"),
        (EncoderArchitecture::JinaBert | EncoderArchitecture::JinaCodeBert, true) if is_gate_apart => {
            (GGUF_JINA_SPLIT, "blk")
        }
        (EncoderArchitecture::JinaBertV3 | EncoderArchitecture::NomicBertMoe, true) => (GGUF_JINA_BERT_V3, "blk"),
        (EncoderArchitecture::JinaBert, true) => (GGUF_JINA_BERT, "blk"),
        (EncoderArchitecture::JinaCodeBert, true) => (GGUF_JINA_CODE_BERT, "blk"),
        (_, true) => (GGUF, "blk"),
        (EncoderArchitecture::ModernBert, _) => (MODERN_BERT, "layers"),
        (EncoderArchitecture::NomicBert, _) => (NOMIC_BERT, "encoder.layers"),
        (EncoderArchitecture::NomicBertMoe, _) => (NOMIC_BERT_MOE, "encoder.layers"),
        (EncoderArchitecture::Gte, _) => (GTE, "encoder.layer"),
        (EncoderArchitecture::JinaBert, _) => (JINA_BERT, "encoder.layer"),
        (EncoderArchitecture::JinaCodeBert, _) => (JINA_CODE_BERT, "encoder.layer"),
        (EncoderArchitecture::JinaBertV3, _) => (JINA_BERT_V3, "encoder.layers"),
        (EncoderArchitecture::Mpnet, _) => (MPNET, "encoder.layer"),
        (EncoderArchitecture::DistilBert, _) => (DISTIL_BERT, "transformer.layer"),
        (EncoderArchitecture::Bert | EncoderArchitecture::Roberta, _) => (BERT, "encoder.layer"),
    }
}
