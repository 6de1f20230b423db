"""What stands in source files: names with their lines and texts, and what a file imports. Knows no agent."""
