"""Models in memory: loading, unloading, memory estimates, and turning a chat request into prepared requests."""
