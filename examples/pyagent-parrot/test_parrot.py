from pyagent_parrot import follower


def test_what_followed_last_time_comes_next():
    """The last token's latest follower is repeated; a token that is new begins again."""
    assert follower([1, 2, 3, 1, 4, 1]) == 4
    assert follower([1, 2, 3]) == 1
