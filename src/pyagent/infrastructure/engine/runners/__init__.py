"""Runners: one per kind of device, all behind `batch.Runner`."""
