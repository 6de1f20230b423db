"""The reasoning agent and its strategies: steps, answers, votes."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyagent.core.errors import AgentError, RequestError
from pyagent.core.fleet.agent import Task
from pyagent.core.fleet.file_access import short_path
from pyagent.core.fleet.orchestrator import Fleet
from pyagent.core.messages import ChatRequest
from pyagent.logic.agents.documents import Document
from pyagent.logic.agents.passages import find, passages_of
from pyagent.logic.agents.reasoning import Reasoned, ReasoningAgent
from pyagent.logic.agents.reasoning_options import ReasoningArguments
from pyagent.logic.strategies.answers import normal_form
from pyagent.logic.strategies.chain_of_thought import Thought, read_thought
from pyagent.logic.strategies.self_consistency import vote
from pyagent.testing import Reply, ScriptedBackend

_LEASE = Path(__file__).parents[2] / "examples" / "lease.txt"
_ABOUT_PETS = "What does this contract say about pets?"


def _run(backend: ScriptedBackend, task: str | Task, **options: object) -> Reasoned:
    fleet = Fleet(backend, [ReasoningAgent()])
    result = asyncio.run(fleet.run_agent("reasoning", task, **options))  # type: ignore[arg-type]
    assert isinstance(result, Reasoned)
    return result


def test_chain_of_thought_shows_steps_and_answer() -> None:
    """The steps are what stands before the answer's line."""
    backend = ScriptedBackend(["1. 3 * 4 = 12\n2. 12 - 2 = 10\nAnswer: 10"])
    reasoned = _run(backend, "Ann has 3 boxes of 4 pens and loses 2.")
    assert reasoned == Reasoned(answer="10", strategy="chain-of-thought", steps=["1. 3 * 4 = 12", "2. 12 - 2 = 10"])
    assert str(reasoned).endswith("Answer: 10")


def test_missing_answer_is_asked_for() -> None:
    """Steps that come to no answer lead to one short question more."""
    backend = ScriptedBackend(["1. think\n2. think more", "Paris."])
    assert _run(backend, "Capital of France?").answer == "Paris."
    assert backend.requests[1].sampling.max_tokens == 48


def test_answer_without_steps_is_an_answer() -> None:
    """A model that answers in one line is not asked again."""
    reasoned = _run(ScriptedBackend(["Paris is the capital."]), "Capital of France?")
    assert str(reasoned) == "Paris is the capital."


def test_self_consistency_votes_over_seeds() -> None:
    """Samples have seeds of their own and draw; the answer most of them write, however written, wins."""
    answers = {0: "Answer: 7", 1: "Answer: 10 pens", 2: "Answer: ten", 3: "Answer: 10.0", 4: "Answer: 7"}

    def answer(request: ChatRequest) -> str:
        assert request.sampling.temperature > 0
        assert request.sampling.seed is not None
        return answers[request.sampling.seed] if request.sampling.seed != 4 else "so\nAnswer: 10"

    backend = ScriptedBackend(answer)
    task = Task(text="How many?", arguments={"strategy": "self-consistency", "samples": 5})
    reasoned = _run(backend, task)
    assert (reasoned.answer, reasoned.votes) == ("10 pens", {"10": 3, "7": 1, "ten": 1})
    assert "(3 of 5 samples agree)" in str(reasoned)
    assert {request.sampling.seed for request in backend.requests} == set(range(5))


def test_tie_goes_to_the_first_seed() -> None:
    """Equal votes are normalized the same way every time."""
    assert vote([Thought([], "b"), Thought([], "a"), Thought([], "a"), Thought([], "b")]).answer == "b"


@pytest.mark.parametrize(
    ("one", "other"),
    [("4", "4.0"), ("$1,000", "1000"), ("The answer is 12 apples.", "12"), ("Yes.", "yes"), ("a Cat", "the cat")],
)
def test_answers_that_say_the_same_are_one(one: str, other: str) -> None:
    """Numbers and words are compared by what they say."""
    assert normal_form(one) == normal_form(other)


@given(st.text(max_size=50))
def test_any_answer_has_a_normal_form(text: str) -> None:
    """Any text has a normal form, which is its own."""
    assert isinstance(normal_form(text), str)
    thought = read_thought(text)
    assert isinstance(thought.answer, str)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("Answer: 4", "4"),
        ("x\n**Answer:** 4", "4"),
        ("Final answer: four\n", "four"),
        ("Answer: 1\nAnswer: 2", "2"),
        ("4", ""),
    ],
)
def test_answer_line_is_found(text: str, answer: str) -> None:
    """The last line that gives an answer is the answer."""
    assert read_thought(text).answer == answer


@pytest.mark.parametrize(
    "arguments",
    [
        {"strategy": "magic"},
        {"strategy": "self-consistency", "samples": 0},
        {"strategy": "self-consistency", "samples": 65},
    ],
)
def test_bad_options_are_refused(arguments: dict[str, object]) -> None:
    """Unknown strategies and numbers out of range are refused."""
    with pytest.raises(RequestError):
        _run(ScriptedBackend([]), Task(text="x", arguments=arguments))


@pytest.mark.parametrize("arguments", [{"samples": 3}, {"seed": 7}])
def test_samples_choose_self_consistency(arguments: dict[str, object]) -> None:
    """An option of one strategy is not ignored under another: it chooses its own, and is refused with the other."""
    backend = ScriptedBackend(lambda _: "Answer: 4")
    assert _run(backend, Task(text="2+2?", arguments=arguments)).strategy == "self-consistency"
    with pytest.raises(RequestError, match="self-consistency"):
        _run(backend, Task(text="2+2?", arguments=arguments | {"strategy": "chain-of-thought"}))


REFLECTED = [
    "1. 3 * 4\nAnswer: 12",
    '{"faults": ["two are lost"], "score": 3}',
    "Answer: 10",
    '{"faults": [], "score": 9}',
]


def test_reflection_shows_its_drafts_and_why_it_ended() -> None:
    """The answer comes with every draft, the faults found, and the end."""
    reasoned = _run(ScriptedBackend(REFLECTED), Task(text="How many?", arguments={"strategy": "reflection"}))
    assert str(reasoned).splitlines()[:3] == [
        "draft 1: 12  (3 of 10; two are lost)",
        "draft 2: 10  (9 of 10; no faults)",
        "Answer: 10",
    ]
    assert str(reasoned).splitlines()[3].startswith("(ended: no fault was found in draft 2; 4 calls, ")


def test_debate_shows_its_rounds_and_votes() -> None:
    """The rounds come before the answer, and how many debaters agree after it."""
    backend = ScriptedBackend(lambda one: f"Answer: {7 if one.sampling.seed in {0, 4} else 8}")
    reasoned = _run(backend, Task(text="How many?", arguments={"debaters": 3}))
    assert (reasoned.strategy, reasoned.answer, reasoned.votes) == ("debate", "8", {"8": 2, "7": 1})
    assert "round 1: 7 | 8 | 8\nround 2: 8 | 7 | 8\nAnswer: 8  (2 of 3 debaters agree)" in str(reasoned)


def test_tree_of_thoughts_shows_its_thoughts() -> None:
    """Every thought has a line with its score, those that led to the answer a mark."""

    def answer(request: ChatRequest) -> str:
        told = request.messages[-1].text
        if "Propose" in told:
            return '{"thoughts": ["guess", "add them"]}'
        if "How good" in told:
            return '{"score": 9, "is_solved": true}' if "add them" in told else '{"score": 1, "is_solved": false}'
        return "Answer: 8"

    reasoned = _run(ScriptedBackend(answer), Task(text="How many?", arguments={"depth": 2}))
    assert (reasoned.strategy, reasoned.steps) == ("tree-of-thoughts", ["-  1  guess", "*  9  add them"])
    assert reasoned.ended == "thought 2 solves it, by its value"


@pytest.mark.parametrize(
    ("arguments", "strategy"),
    [
        ({"rounds": 2}, None),
        ({"tokens": 500}, None),
        ({"seed": 1, "rounds": 2}, "debate"),
        ({"rounds": 2, "tokens": 500}, None),
        ({"settle": "judge", "rounds": 2, "tokens": 90_000, "seed": 3}, "debate"),
        ({"max_calls": 9, "tokens": 90_000}, "tree-of-thoughts"),
        ({"strategy": "reflection", "rounds": 2}, "reflection"),
    ],
)
def test_option_of_one_strategy_chooses_it(arguments: dict[str, object], strategy: str | None) -> None:
    """What only one strategy has means that one; what several have does not say which."""
    options = msgspec.convert(arguments, ReasoningArguments)
    if strategy is None:
        with pytest.raises(RequestError, match="say which by `strategy`"):
            options.chosen()
    else:
        assert options.chosen() == strategy


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"strategy": "reflection", "samples": 3}, "samples is for the strategy self-consistency"),
        ({"strategy": "debate", "depth": 3}, "depth is for the strategy tree-of-thoughts"),
        ({"strategy": "reflection", "seed": 3}, "seed is for the strategies self-consistency, debate and tree-of-thou"),
        ({"strategy": "tree-of-thoughts", "rounds": 3}, "rounds is for the strategies reflection and debate"),
        ({"strategy": "self-consistency", "tokens": 3}, "tokens is for the strategies reflection, debate and tree-of"),
        ({"strategy": "debate", "tools": ["calculator"]}, "tools is for the strategy chain-of-thought"),
        ({"samples": 3, "tools": ["calculator"]}, "tools is for the strategy chain-of-thought"),
        ({"samples": 3, "debaters": 3}, "debaters is for the strategy debate"),
        ({"debaters": 2, "agents": ["a", "b"]}, "debaters is how often the model debates"),
        ({"search": "depth-first", "beam": 2}, "beam is for search=beam"),
        ({"question": "Why?"}, "the question is given twice"),
        ({"strategy": "reflection", "rounds": 0}, "rounds goes from 1 to 8, got 0"),
        ({"strategy": "tree-of-thoughts", "max_calls": 1}, "max_calls goes from 2 to 200"),
        ({"strategy": "debate", "tokens": 0}, "tokens"),
    ],
)
def test_option_of_another_strategy_is_refused_by_name(arguments: dict[str, object], told: str) -> None:
    """No option is ignored, and nothing is asked."""
    backend = ScriptedBackend([])
    with pytest.raises(RequestError, match=re.escape(told)):
        _run(backend, Task(text="x", arguments=arguments))
    assert backend.requests == []


def test_question_may_be_an_argument() -> None:
    """A task that is JSON, as one over HTTP may be, has the question and the strategy."""
    reasoned = _run(ScriptedBackend(REFLECTED), '{"question": "How many?", "strategy": "reflection", "rounds": 1}')
    assert (reasoned.answer, reasoned.strategy) == ("10", "reflection")
    with pytest.raises(RequestError, match="needs a question"):
        _run(ScriptedBackend([]), '{"strategy": "reflection"}')


def test_question_about_a_file_is_answered_from_its_passages() -> None:
    """The model is shown the clause that matters, and it is quoted with its place under the answer."""
    backend = ScriptedBackend(["The Tenant may keep one cat. Dogs are not allowed."])
    reasoned = _run(backend, _ABOUT_PETS, files=[str(_LEASE)])
    (request,) = backend.requests
    assert "one cat" in request.messages[-1].text
    assert "interest of five percent" not in request.messages[-1].text
    assert reasoned.answer == "The Tenant may keep one cat. Dogs are not allowed."
    assert reasoned.quotes[0].line == 30
    assert f"{short_path(str(_LEASE))}:30\n    5. ANIMALS" in str(reasoned)
    assert "300 dollars" in str(reasoned)


def test_long_file_is_searched_and_not_summarized(tmp_path: Path) -> None:
    """In two million characters the passage is found, and the prompt stays small."""
    clause = "Visitors may bring an umbrella, if it is shorter than ninety centimetres."
    filler = "\n\n".join(f"Section {n}. {'The committee met again. ' * 20}" for n in range(4_000))
    (tmp_path / "long.txt").write_text(f"{filler}\n\n{clause}\n\n{filler}")
    backend = ScriptedBackend([clause])
    reasoned = _run(backend, "How long may an umbrella be?", files=[str(tmp_path / "long.txt")])
    assert [quote.text for quote in reasoned.quotes] == [clause]
    assert reasoned.quotes[0].line == 8_001
    assert len(backend.requests[0].messages[-1].text) < 5_000


@pytest.mark.parametrize(
    ("said", "fault"),
    [
        ("There is a deposit of 500 dollars per month for pets.", "500, which the text has not"),
        ("Lasers display holographic imagery of technology.", "words that are not the text's"),
    ],
)
def test_answer_with_numbers_or_words_of_its_own_is_not_the_text(said: str, fault: str) -> None:
    """What the model invents is told as such; the passage stands in its place."""
    reasoned = _run(ScriptedBackend([said]), _ABOUT_PETS, files=[str(_LEASE)])
    assert reasoned.answer == "The text says:"
    assert "one cat" in reasoned.quotes[0].text
    assert fault in reasoned.note


def test_question_without_a_word_of_the_file_is_not_given_a_quote() -> None:
    """Where nothing is found the answer says that it cannot be checked, or is left out when it is made up."""
    reasoned = _run(ScriptedBackend(["Yes, the Tenant pays rent."]), "Is it fair?", files=[str(_LEASE)])
    assert (reasoned.answer, reasoned.quotes) == ("Yes, the Tenant pays rent.", [])
    assert "nothing can be quoted" in reasoned.note
    reasoned = _run(ScriptedBackend(["Photons enter a hologram."]), "What about lasers?", files=[str(_LEASE)])
    assert reasoned.answer.startswith("The text does not say")


def test_task_on_a_file_gets_its_beginning_and_says_so(tmp_path: Path) -> None:
    """What is no question is done with the text as far as it fits, and what was not read is told."""
    (tmp_path / "a.txt").write_text("\n\n".join(f"Line {n}. {'abc ' * 80}" for n in range(100)))
    backend = ScriptedBackend(["Bonjour"])
    reasoned = _run(backend, "Translate to French", files=[str(tmp_path / "a.txt")])
    assert reasoned.answer == "Bonjour"
    assert "of 100 passages" in reasoned.note
    assert "Line 0." in backend.requests[0].messages[-1].text


@pytest.mark.parametrize(
    ("question", "heading"),
    [
        ("May I smoke on the balcony?", "7. QUIET AND SMOKING"),
        ("How high is the deposit?", "3. DEPOSIT"),
        ("Who pays for repairs?", "6. REPAIRS"),
        ("Is subletting a room allowed?", "4. USE"),
        ("What does it say about dogs and cats?", "5. ANIMALS"),
        ("When may the landlord enter?", "8. ACCESS"),
    ],
)
def test_passage_that_matters_is_found(question: str, heading: str) -> None:
    """Clauses are found by the stems of the question's words."""
    passages = passages_of(Document("lease.txt", _LEASE.read_text()))
    best = find(question, passages, max_weight=4_800).best
    assert best is not None
    assert best.text.startswith(heading)


def test_passages_of_scripts_without_spaces_are_found() -> None:
    """Chinese is compared by pairs of characters."""
    text = "第一条 租金每月九百元。\n\n第二条 可以养一只猫，不可以养狗。\n\n第三条 押金两千元。"
    best = find("可以养狗吗？", passages_of(Document("a.txt", text)), max_weight=4_800).best
    assert best is not None
    assert "第二条" in best.text


@given(st.text(alphabet="ab .\n中", max_size=300))
def test_passages_hold_every_word_and_their_line(text: str) -> None:
    """Passages together hold the document, and each begins on the line it names."""
    found = passages_of(Document("a.txt", text))
    assert "".join("".join(passage.text for passage in found).split()) == "".join(text.split())
    lines = text.split("\n")
    for passage in found:
        assert passage.text.split("\n")[0] in lines[passage.line - 1]


def test_free_text_keeps_its_layout() -> None:
    """A poem is no list of steps: it is the answer as it was written, and nothing is asked again."""
    poem = "Autumn moonlight,\na worm digs silently\n\ninto the chestnut."
    backend = ScriptedBackend([poem])
    assert str(_run(backend, "Write a haiku")) == poem


@pytest.mark.parametrize("text", ["Once upon a time there", "1. think\n2. think more"])
def test_cut_answer_is_told_as_cut(text: str) -> None:
    """An answer that ended at its limit says that there was more."""
    backend = ScriptedBackend([Reply(text=text, finish_reason="length"), "Paris."])
    assert "cut off" in str(_run(backend, "Tell me a story"))


@pytest.mark.parametrize("arguments", [{}, {"samples": 2}])
@pytest.mark.parametrize("files", [[], [str(_LEASE)]])
def test_empty_answer_is_an_error(arguments: dict[str, object], files: list[str]) -> None:
    """A model that says nothing has not answered."""
    with pytest.raises(AgentError):
        _run(ScriptedBackend(lambda _: " "), Task(text="Translate this", arguments=arguments), files=files)
