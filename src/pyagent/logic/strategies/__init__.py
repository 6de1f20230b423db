"""Ways of reasoning that agents share."""
