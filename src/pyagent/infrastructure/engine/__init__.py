"""The embedded engine: models, runners, the scheduler and the caches."""
