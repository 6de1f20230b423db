"""What a runner is: it owns a model's weights and KV memory on one device, and computes the engine's batches.

`batch` is what crosses between the engine's loop and a runner, `runner` what the engine asks of one with a model in
memory, `factory` how one comes to be. Built-in and plugins' runners are the same here; no device is known.
"""
