from types import SimpleNamespace

import pytest
from pyagent_shortest import make_shortest, pyagent_register_queue_policies

from pyagent.plugin import ConfigError


def test_short_requests_pass_long_ones_that_came_just_before():
    """A short request passes a long one, but not one that has waited for long."""
    policy = make_shortest({})
    policy.add(SimpleNamespace(id=1, num_left=2000, arrived=0.0), now=0.0)
    policy.add(SimpleNamespace(id=2, num_left=10, arrived=5.0), now=5.0)
    policy.add(SimpleNamespace(id=3, num_left=10, arrived=60.0), now=60.0)
    assert [request.id for request in policy.ordered(now=60.0)] == [2, 1, 3]


def test_options_are_refused():
    """An option nobody reads is a mistake."""
    with pytest.raises(ConfigError, match="no options, got speed"):
        pyagent_register_queue_policies()["shortest"]({"speed": 3})
