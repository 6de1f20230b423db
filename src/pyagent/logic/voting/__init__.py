"""Elections: ballots as they come, counted exactly by the usual methods. Knows no model."""
