"""What touches the world: the engine, servers and clients, storage, the cluster."""
