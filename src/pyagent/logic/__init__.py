"""What the built-in agents do. Imports the core and nothing of the infrastructure."""
