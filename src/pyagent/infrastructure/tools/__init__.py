"""The built-in tools that touch the world: files below one folder, a shell, HTTP, Python.

What each may do is said by `[tools]`; what is unsafe is off, or asks a person first. Knows no agent and no model.
"""
