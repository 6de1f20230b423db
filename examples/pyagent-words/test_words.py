import asyncio

import pytest
from pyagent_words import pyagent_register_tools

from pyagent.plugin import RequestError


def test_words_are_counted():
    """The tool counts what white space parts."""
    (tool,) = pyagent_register_tools()
    assert asyncio.run(tool.call({"text": "three small words"})) == 3


def test_wrong_arguments_are_refused():
    """Arguments that do not fit are refused before the function runs."""
    (tool,) = pyagent_register_tools()
    with pytest.raises(RequestError, match="count-words cannot take"):
        asyncio.run(tool.call({"words": 3}))
