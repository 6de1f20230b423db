"""How values cross between processes: frames of msgpack, a hello with a version, errors that stay themselves.

Knows no engine, no socket and no address: a protocol (`engine/subprocess/protocol.py`) defines its messages on top.
"""
