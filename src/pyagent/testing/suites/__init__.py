"""What an implementer of each hook must do, as pytest classes: derive from one, and define what it asks for.

Each test is one rule, its docstring. The suites of backends and runners are `testing.conformance` and
`testing.runner_conformance`.
"""
