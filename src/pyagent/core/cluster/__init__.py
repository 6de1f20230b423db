"""What a cluster is, as values and functions: no socket, no clock, no event loop.

`membership` says which nodes there are, from events to effects; `messages` is what members say to each other, `events`
what the node says to `membership` and what it asks of the node. The node's own code (`infrastructure/cluster`) and a
simulator of thousands of nodes run the same lines.
"""
