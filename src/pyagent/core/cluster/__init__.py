"""The cluster's rules, without a socket or a clock: who is a member, what a node tells, which node answers.

`infrastructure/cluster` carries them out: what happens to a node becomes an event, `membership` answers with effects.
Hops of a request: the chain asks its router (`core/chain/router.py`), which orders this node's links and the peers by
`routing`; a peer's link sends the request over the transport; the peer answers with its own links alone.
"""
