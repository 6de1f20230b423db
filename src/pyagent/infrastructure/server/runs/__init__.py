"""Runs of the fleet over HTTP: started, looked at, followed, gone on with. The run outlives the request."""
