from pyagent_atcall import ATCALL

from pyagent.plugin import FunctionDefinition, Tool

NOW = Tool(FunctionDefinition("now", "Tell the time."))


def test_call_is_read_as_it_comes():
    """Reasoning, text and a call come apart, whatever pieces they come in."""
    parser = ATCALL.parser([NOW])
    parsed = [parser.push(letter) for letter in '@think hm @answer Yes. @call now {"zone": "UTC"}@end'] + [
        parser.finish()
    ]
    calls = [delta for one in parsed for delta in one.tool_calls]
    assert "".join(one.reasoning for one in parsed) == "hm"
    assert "".join(one.content for one in parsed) == "Yes."
    assert calls[0].name == "now"
    assert "".join(call.arguments for call in calls) == '{"zone": "UTC"}'


def test_grammar_names_the_functions():
    """A model under the grammar can call what is offered."""
    assert '"@call"' in ATCALL.grammar([NOW], is_required=True, is_parallel=False)
