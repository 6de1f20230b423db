"""Batch-invariant computing (`engine.batch_invariant`): a token's logits are the same bits in any batch and chunk.

Every sum's order follows from the model's shape and from positions in a sequence, never from how many rows a step has:
`products` of blocks with a fixed number of rows, `attention` over blocks of keys counted from a sequence's start,
`stages` that compute each number alone. When a model is loaded, a trial compares bits; what is found otherwise is
refused by name.
"""
