//! Model files, the decoder's forward pass and KV memory: the CPU model runner. And encoders, which embed texts.

pub mod adapters;
pub mod config;
pub mod encoder;
pub mod family;
pub mod forward;
pub mod gguf;
pub mod kv;
mod logit_lens;
pub mod model;
pub mod prompt_scores;
pub mod pytorch;
pub mod quantised;
pub mod runner;
pub mod safetensors;
pub mod tensorizer;
pub mod vocabulary;
pub mod weights;
pub mod workspace;
