"""Statistics on columns of numbers: least squares, trends, components, clusters, and their pictures."""
