"""Work that takes hostile input, in processes of its own with bounded time and memory: who asks, and what serves."""
