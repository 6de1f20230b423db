//! Model files, the decoder's forward pass and KV memory: the CPU model runner.
