"""The torch runner: the engine's models on a GPU through CUDA, or on torch's CPU device.

Optional (the extra `gpu`), so torch is imported in this folder only, and only once a model is loaded here: `factory` is
imported with the plugins and must do without.
"""
