"""The built-in agents, one file each (a folder when it needs more). Each registers itself by its module's hooks."""
