"""Reading other people's files and pages as text, in a process of its own with bounded time and memory."""
