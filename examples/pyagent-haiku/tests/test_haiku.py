"""The agent over a model that follows a script."""

from pyagent_haiku import Haiku, Poem

from pyagent.testing import play

LONG = '{"first": "Rain", "second": "rain", "third": "rain"}'
RIGHT = '{"first": "An old silent pond", "second": "A frog jumps into the pond", "third": "Splash! Silent again."}'


def test_poem_with_right_counts_is_kept() -> None:
    """A poem of 5, 7 and 5 syllables is the result, and the model was asked once."""
    run = play("rain", agents=[Haiku()], model=[RIGHT])
    assert isinstance(run.result, Poem)
    assert run.result.syllables == [5, 7, 5]
    assert len(run.prompts) == 1


def test_poem_with_wrong_counts_is_asked_for_again() -> None:
    """Wrong counts lead to one more question, and its answer is the result."""
    run = play("rain", agents=[Haiku()], model=[LONG, RIGHT])
    assert str(run.result).startswith("An old silent pond")
    assert "They need 5, 7 and 5" in run.prompts[1]
