"""Searching the web and reading its pages: connections, robots.txt, search providers, and the tools made of them."""
