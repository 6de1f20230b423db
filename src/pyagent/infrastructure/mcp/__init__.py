"""MCP, the Model Context Protocol, by the official package: servers' tools for our agents, our agents for others.

The package `mcp` is an extra and takes a second to import: modules here that need it are imported by the first server
that is opened. What a server sends is hostile input: bounded before it is parsed, and data afterwards.
"""
