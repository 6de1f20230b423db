"""The obsidian-describer agent: a folder as linked notes, with front matter and a map of content."""
