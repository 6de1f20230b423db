"""Who holds how many bytes: the ledger, the system's and this process's memory, KV slabs and eviction policies."""
