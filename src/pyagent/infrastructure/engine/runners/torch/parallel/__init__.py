"""A model on several devices: each rank, a process of its own, holds and computes a part (tensor, pipeline parallel).

`shard` says which part, `ranks` what ranks exchange; `workers` starts the ranks beside the engine's, which is rank 0,
and `worker` is what each of them runs.
"""
