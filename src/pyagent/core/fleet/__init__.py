"""The fleet: agents, the graph of their steps, budgets, events and the journal's interface."""
