"""Decide what the next step computes: queues, admission, preemption and the batch. Computes nothing itself."""
