"""What the parts agree on: messages, settings, plugins, the chain and the fleet; no network, no engine."""
