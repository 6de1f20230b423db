"""The command line: `pyagent` and its commands, as people read them in a terminal."""
