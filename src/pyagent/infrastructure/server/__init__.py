"""The HTTP server: OpenAI's API over any backend."""
