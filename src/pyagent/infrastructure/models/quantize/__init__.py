"""Models with weights of fewer bits: from safetensors or GGUF to GGUF."""
