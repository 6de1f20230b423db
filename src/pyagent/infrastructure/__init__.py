"""infrastructure."""
