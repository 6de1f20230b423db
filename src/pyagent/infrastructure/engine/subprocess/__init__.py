"""The engine in a process of its own: client, wire protocol, supervisor and the child's main loop."""
