"""Essays of what web pages say: queries, sources, statements, their check against each other, and styles. Pure."""
