"""Several answers to one prompt: samples and beams, which share the prompt's KV memory by forking."""
