"""KV that comes from other engines, or goes to them, by a connector."""
