"""What a conversation shows over time: who speaks, in what mood, and how far each is to be trusted."""
