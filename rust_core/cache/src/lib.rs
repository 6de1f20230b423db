//! Block pool and prefix index of the paged KV cache.
