"""An agent in another process than its run: what it asks of the run, and what the run does for it.

The two ends know no transport: an executor carries an `AgentCall` one way and what comes of it the other. Between them
the events and the journal are those of an agent beside its run, since the run's own `Context` makes every call.
"""
