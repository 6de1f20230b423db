"""What keeps a call alive when something else is not: deadlines, breakers, retries. Pure rules on an injected clock."""
