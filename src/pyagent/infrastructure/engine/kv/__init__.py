"""What the engine's KV memory is ruled by."""
