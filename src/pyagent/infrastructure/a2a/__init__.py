"""A2A, the Agent2Agent protocol, by the official package: agents of other programs give tasks to ours, and are given.

The package `a2a-sdk` is an extra, and imported by the first request or task; the server has the routes only where
`server.a2a` is set.
"""
