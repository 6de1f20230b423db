"""Equal nodes as one cluster: a door where they prove that they belong together, and what they say to each other then.

Each module knows only those below it: the transport no membership, the membership no request of a user.
"""
