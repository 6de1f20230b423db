"""Which node answers: policies over what nodes told, prefixes by key, and the chain's links that come and go."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Sequence
from itertools import count

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyagent.core.backends import Backend, collect
from pyagent.core.capabilities import Capabilities
from pyagent.core.chain import Chain
from pyagent.core.chain.settings import Price
from pyagent.core.cluster.adverts import Load, Offer
from pyagent.core.cluster.peers import ClusterRouter, Peer, answer_for_peer
from pyagent.core.cluster.prefixes import (
    MAX_KEYS,
    MAX_PIECES,
    PIECE_CHARS,
    WarmPrefixes,
    num_matching,
    num_warm_tokens,
    pack,
    prefix_keys,
    unpack,
)
from pyagent.core.cluster.routing import Balancer, Node, Policy, estimated_seconds
from pyagent.core.errors import BackendError, WireError
from pyagent.core.messages import (
    ChatDelta,
    ChatRequest,
    EmbedRequest,
    EmbedResult,
    FunctionCall,
    FunctionDefinition,
    Health,
    Hint,
    ImagePart,
    ImageUrl,
    Message,
    ModelInfo,
    Origin,
    Tool,
    ToolCall,
)
from pyagent.core.token_estimate import estimated_request_tokens
from pyagent.infrastructure.cluster.protocol import load_codec, offer_codec

SYSTEM = "You are a careful reviewer of contracts. " * 50


class Saying:
    """A link that says its name word by word; it breaks off after `num_words` where that is given."""

    def __init__(self, name: str, model: str = "m", num_words: int | None = None) -> None:
        self.name = name
        self.capabilities = Capabilities(assistant_prefix="continued")
        self.model = model
        self.num_words = num_words
        self.asked: list[ChatRequest] = []

    async def prepare(self) -> None:
        return None

    async def models(self) -> list[ModelInfo]:
        return [ModelInfo(id=self.model)]

    async def chat(self, request: ChatRequest) -> AsyncGenerator[ChatDelta, None]:
        self.asked.append(request)
        words = ["one ", "two ", "three ", "four "]
        begun = request.answer_prefix.count(" ")
        for number, word in enumerate(words[begun:]):
            if number == self.num_words:
                raise BackendError("gone", backend=self.name)
            await asyncio.sleep(0.001)
            yield ChatDelta(content=word, backend=self.name)
        yield ChatDelta(finish_reason="stop", backend=self.name)

    async def embed(self, request: EmbedRequest) -> EmbedResult:
        return EmbedResult(vectors=[[1.0] for _ in request.input])

    async def health(self) -> Health:
        return Health(is_ready=True)

    async def close(self) -> None:
        return None


def ask(text: str = "hello", **more: object) -> ChatRequest:
    return ChatRequest(messages=[Message("system", SYSTEM), Message("user", text)], **more)  # type: ignore[arg-type]


def peer_of(backend: Backend, model: str = "m", **load: object) -> Peer:
    peer = Peer(id=backend.name.removeprefix("peer:"), called=backend.name.removeprefix("peer:"), backend=backend)
    backend.absence = peer.absence  # type: ignore[attr-defined]
    peer.connected()
    peer.offer = Offer(models=(ModelInfo(id=model),), continues=True)
    peer.take(Load(sequence=1, **load))  # type: ignore[arg-type]
    return peer


def router_of(*peers: Peer, policy: Policy = "prefix") -> ClusterRouter:
    router = ClusterRouter(
        Balancer(policy, random.Random(1)), engine_names=["native:m"], offered_names=["native:m"], default_model="m"
    )
    for peer in peers:
        router.add(peer)
    return router


# -- prefixes ----------------------------------------------------------------------------------------------------------


def test_prompts_share_the_keys_of_their_common_beginning() -> None:
    """Two prompts that differ in the last message share the keys of all pieces before it, and no more."""
    one, two = prefix_keys(ask("first " * 100)), prefix_keys(ask("second " * 100))
    assert num_matching(one, set(two)) == (len(SYSTEM) + 8) // PIECE_CHARS
    assert len(one) > num_matching(one, set(two))


@pytest.mark.parametrize(
    "other",
    [ask(origin=Origin(tenant="b")), ask(model="other"), ChatRequest(messages=[Message("user", SYSTEM)])],
    ids=["tenant", "model", "role"],
)
def test_prompts_of_others_share_no_key(other: ChatRequest) -> None:
    """Another tenant, model or role gives other keys for the same text."""
    assert num_matching(prefix_keys(ask()), set(prefix_keys(other))) == 0
    assert num_matching(prefix_keys(ask()), set(prefix_keys(ask(), b"another cluster"))) == 0


def test_share_of_a_very_long_prompt_is_of_all_its_text() -> None:
    """Of 700,000 characters whose first 130,000 are the same a fifth is warm, not all: the last pieces are longer."""
    shared = "word " * 26_300
    first, second = (ChatRequest(prompt=shared + f"{number} other words " * 42_000) for number in range(2))
    num_tokens = estimated_request_tokens(second)
    warm = num_warm_tokens(prefix_keys(second), set(prefix_keys(first)), num_tokens)
    assert warm == pytest.approx(num_tokens * len(shared) / len(second.prompt or ""), rel=0.05)


def _with_tool(parameter: str) -> ChatRequest:
    schema = {"type": "object", "properties": {parameter: {"type": "string", "description": "of it " * 50}}}
    tool = Tool(function=FunctionDefinition(name="look", description="up", parameters=schema))
    return ask("question", tools=[tool])


def _with_call(arguments: str) -> ChatRequest:
    call = ToolCall(id="1", function=FunctionCall(name="look", arguments=arguments * 50))
    return ChatRequest(messages=[Message("assistant", tool_calls=[call]), Message("system", SYSTEM)])


def _with_image(url: str) -> ChatRequest:
    image = ImagePart(image_url=ImageUrl(url=url * 50))
    return ChatRequest(messages=[Message("user", [image]), Message("system", SYSTEM)])


@pytest.mark.parametrize("make", [_with_tool, _with_call, _with_image])
def test_what_comes_before_the_text_tells_prompts_apart(make: Callable[[str], ChatRequest]) -> None:
    """Tools' parameters, the arguments of calls and images are parts of a prompt: what follows others is not warm."""
    one, same, other = (set(prefix_keys(make(text))) for text in ("first", "first", "second"))
    assert one == same
    assert one
    assert not one & other


def test_endless_prompts_have_a_bounded_number_of_keys() -> None:
    """A prompt of ten megabytes has as many keys as the bound says, and keys cross whole."""
    keys = prefix_keys(ChatRequest(prompt="x\ud800" * 5_000_000))
    assert len(keys) == MAX_PIECES
    assert unpack(pack(keys)) == keys
    assert unpack(pack(keys) + b"rest") == keys
    assert len(unpack(bytes(8 * MAX_KEYS + 8))) == MAX_KEYS


def test_warm_prefixes_forget_the_least_recently_used() -> None:
    """A node remembers so many keys; those asked for again stay."""
    warm = WarmPrefixes(max_keys=3)
    assert warm.add([1, 2, 3]) == [1, 2, 3]
    assert warm.add([1, 4]) == [4]
    assert list(warm) == [3, 1, 4]


@pytest.mark.parametrize(
    "text", ["You are a careful reviewer of contracts. ", "你是一名细心的合同审查员。", "<|x|>{}();\n"]
)
def test_share_of_a_warm_prompt_is_of_its_own_tokens(text: str) -> None:
    """Of a prompt that was computed but for its last words, a few tokens are left, whatever script it is in."""
    first, second = (
        ChatRequest(messages=[Message("system", text * 300), Message("user", f"question {number}")])
        for number in range(2)
    )
    num_tokens = estimated_request_tokens(second)
    assert 0.9 * num_tokens < num_warm_tokens(prefix_keys(second), set(prefix_keys(first)), num_tokens) < num_tokens
    assert num_warm_tokens(prefix_keys(second), (), num_tokens) == 0
    assert num_warm_tokens([], {1}, num_tokens) == 0


# -- policies ----------------------------------------------------------------------------------------------------------


def test_prefix_policy_weighs_saved_prefill_against_the_queue() -> None:
    """The node that has the prompt is asked, until its queue costs more than computing the prompt elsewhere."""
    cold = Node(id="cold", prefill_tokens_per_second=1000.0, first_token_seconds=0.5)
    for num_waiting, first in ((0, "warm"), (2, "warm"), (5, "cold")):
        warm = Node(
            id="warm",
            prefill_tokens_per_second=1000.0,
            first_token_seconds=0.5,
            num_warm_tokens=2000,
            num_waiting=num_waiting,
        )
        ordered = Balancer("prefix", random.Random(0)).order([cold, warm], 2000)
        assert ordered[0].id == first, num_waiting


def test_nearest_of_equal_nodes_is_asked() -> None:
    """Of nodes as good as each other: this one, then one of this machine, of the network, and far away; else by lot."""
    here, machine, near, other, far = (
        Node(id=name, round_trip_seconds=seconds)
        for name, seconds in (("here", 0.0), ("machine", 0.0004), ("near", 0.003), ("other", 0.004), ("far", 0.03))
    )
    balancer = Balancer("prefix", random.Random(0))
    for nodes, nearest in (
        ([far, near, machine, here], {"here"}),
        ([far, other, near, machine], {"machine"}),
        ([far, other, near], {"near", "other"}),
    ):
        assert {balancer.order(nodes, 1000)[0].id for _ in range(30)} == nearest
    busy = Node(id="busy", num_waiting=3)
    assert balancer.order([far, busy], 1000)[0].id == "far"


def test_estimate_is_the_formula() -> None:
    """Tokens left here and before it over the prefill rate, plus those without room, stretched by all, plus the way."""
    node = Node(
        id="n",
        num_running=5,
        num_waiting=2,
        num_sent=1,
        num_free=1,
        num_prompt_tokens_left=900,
        num_warm_tokens=300,
        prefill_tokens_per_second=200.0,
        first_token_seconds=0.4,
        load_seconds=7.0,
        round_trip_seconds=0.01,
        weight=2.0,
    )
    assert estimated_seconds(node, 1000) == pytest.approx(((700 + 900) / 200 + 2 * 0.4) * 1.8 / 2 + 7.01)
    short = (60 + 512 + 3 * 32) / 200  # it waits for a step, and for other short ones
    assert estimated_seconds(node, 360) == pytest.approx((short + 2 * 0.4) * 1.8 / 2 + 7.01)


def test_node_with_the_model_in_memory_is_asked_until_loading_it_elsewhere_is_sooner() -> None:
    """Two gigabytes take five seconds: so much must be left to compute before another node loads them, too."""
    loaded, absent = peer_of(Saying("peer:loaded")), peer_of(Saying("peer:absent"))
    loaded.offer = Offer(models=(ModelInfo(id="m", size_bytes=2_000_000_000, is_loaded=True),))
    absent.offer = Offer(models=(ModelInfo(id="m", is_loaded=False),))
    router = router_of(loaded, absent)
    request = ChatRequest(model="m", messages=[Message("user", "a question " * 300)])

    sequence = count(2)

    def first(num_left: int) -> str:
        told = Load(sequence=next(sequence), num_prompt_tokens_left=num_left, prefill_tokens_per_second=500.0)
        assert loaded.take(told)
        return router.order(request, ["peer:loaded", "peer:absent"])[0]

    assert [first(num_left) for num_left in (0, 200, 4000)] == ["peer:loaded", "peer:loaded", "peer:absent"]
    absent.offer = Offer(models=(ModelInfo(id="m"),))  # not said: no reason to pass it by
    assert first(200) == "peer:absent"


def test_cold_prompt_goes_past_a_node_that_computes_another() -> None:
    """A node whose engine is at a long prompt is not as good as an idle one, though it is the nearest."""
    here = Node(id="here", num_running=1, num_free=63, num_prompt_tokens_left=1200, prefill_tokens_per_second=800.0)
    idle = Node(id="idle", num_free=64, prefill_tokens_per_second=800.0, round_trip_seconds=0.0004)
    balancer = Balancer("prefix", random.Random(0))
    assert [node.id for node in balancer.order([here, idle], 1500)] == ["idle", "here"]
    warm = msgspec.structs.replace(here, num_warm_tokens=1450)  # it waits for a step there, for 1,500 tokens elsewhere
    assert [node.id for node in balancer.order([warm, idle], 1500)] == ["here", "idle"]


def test_first_tokens_that_were_slow_keep_no_warm_prompt_away() -> None:
    """What a node's first tokens took, cold prompts among them, is no measure of what a short prompt waits there."""
    warm = Node(
        id="warm",
        num_sent=1,
        num_running=1,
        num_free=62,
        num_prompt_tokens_left=64,
        num_warm_tokens=1450,
        prefill_tokens_per_second=800.0,
        first_token_seconds=2.5,
    )
    cold = Node(id="cold", num_free=64, prefill_tokens_per_second=800.0)
    assert Balancer("prefix", random.Random(0)).order([cold, warm], 1500)[0] is warm
    full = msgspec.structs.replace(warm, num_free=0)  # here it does wait for another's end
    assert Balancer("prefix", random.Random(0)).order([cold, full], 1500)[0] is cold


def test_weighted_round_robin_gives_exact_shares() -> None:
    """Weights of 3, 2 and 1 are met exactly over each round, without runs."""
    nodes = [Node(id="a", weight=3.0), Node(id="b", weight=2.0), Node(id="c", weight=1.0)]
    balancer = Balancer("round_robin")
    drawn = [balancer.order(nodes, 1)[0].id for _ in range(12)]
    assert Counter(drawn) == {"a": 6, "b": 4, "c": 2}
    assert drawn[:6] == drawn[6:]
    assert "".join(drawn[:6]) not in {"aaabbc", "aabbca"}


def test_power_of_two_spreads_far_better_than_chance() -> None:
    """The longest of 100 queues after 10,000 requests is within 3 of the mean; drawn by chance it is 20 above."""
    rng, queues = random.Random(3), dict.fromkeys(map(str, range(100)), 0)
    balancer = Balancer("power_of_two", rng)
    for _ in range(10_000):
        nodes = [Node(id=name, num_running=count) for name, count in queues.items()]
        queues[balancer.order(nodes, 1)[0].id] += 1
    assert max(queues.values()) <= 103


@given(
    st.lists(
        st.builds(
            Node,
            id=st.uuids().map(str),
            num_running=st.integers(0, 50),
            num_waiting=st.integers(0, 50),
            weight=st.floats(0.1, 10),
            price=st.none() | st.builds(Price, input=st.floats(0, 10), output=st.floats(0, 10)),
        ),
        max_size=8,
        unique_by=lambda node: node.id,
    ),
    st.sampled_from(["prefix", "power_of_two", "least_requests", "round_robin", "cost"]),
)
def test_every_policy_orders_every_node_once(nodes: list[Node], policy: Policy) -> None:
    """No policy loses a node or asks one twice; the cheapest is first by cost, the least busy by requests."""
    ordered = Balancer(policy, random.Random(0)).order(nodes, 100)
    assert sorted(node.id for node in ordered) == sorted(node.id for node in nodes)
    if nodes and policy == "least_requests":
        loads = [node.num_requests / node.weight for node in nodes]
        assert ordered[0].num_requests / ordered[0].weight <= min(loads) * 1.1 + 1e-6


# -- the chain's router ------------------------------------------------------------------------------------------------


WILD = [float("nan"), float("inf"), float("-inf"), -1e9, -1.0, 0.0, 1e308]


@pytest.mark.parametrize("policy", ["prefix", "power_of_two", "least_requests", "round_robin", "cost"])
@pytest.mark.parametrize("wild", WILD)
def test_numbers_without_sense_still_give_an_order(policy: Policy, wild: float) -> None:
    """What a node says of itself may be nonsense: all nodes are ordered, that one among them."""
    odd = Node(
        id="odd",
        num_waiting=-100,
        prefill_tokens_per_second=wild,
        first_token_seconds=wild,
        round_trip_seconds=wild,
        price=Price(input=wild, output=wild),
        weight=wild,
    )
    for nodes in ([odd, Node(id="plain")], [Node(id="plain"), odd]):
        ordered = Balancer(policy, random.Random(1)).order(nodes, 100)
        assert sorted(node.id for node in ordered) == sorted(node.id for node in nodes)


@pytest.mark.parametrize("wild", [float("nan"), float("inf"), -1.0])
def test_numbers_of_a_peer_are_bounded(wild: float) -> None:
    """A load that counts less than nothing, or no number, is refused; such a price or weight counts as not told."""
    for load in (
        Load(sequence=1, first_token_seconds=wild),
        Load(sequence=1, prefill_tokens_per_second=wild),
        Load(sequence=1, num_running=-1),
        Load(sequence=1, num_waiting=-1),
    ):
        with pytest.raises(WireError):
            load_codec.decode(load_codec.encode(load))
    told = offer_codec.encode(Offer(price=Price(input=1.0, output=wild), weight=wild))
    offer = offer_codec.decode(told).bounded()
    assert offer.price is None
    assert 0 < offer.weight <= 1
    assert Offer(price=Price(input=1.0)).bounded().price == Price(input=1.0)


def chain_of(router: ClusterRouter, *links: Backend) -> Chain:
    return Chain(list(links) or [Saying("native:m")], router=router)


def answered_by(chain: Chain, request: ChatRequest) -> str:
    return asyncio.run(collect(chain.chat(request))).last.backend


def test_peers_come_and_go_as_links() -> None:
    """A peer is a link while it is connected, offers something and does not drain; its counters stay with it."""
    desk = peer_of(Saying("peer:desk"))
    router = router_of(desk)
    chain = chain_of(router)
    assert chain.names == ["native:m", "peer:desk"]
    desk.is_up = False
    assert chain.names == ["native:m"]
    desk.connected()
    desk.take(Load(sequence=1, is_draining=True))
    assert chain.names == ["native:m"]
    desk.take(Load(sequence=2))
    assert chain.names == ["native:m", "peer:desk"]
    router.remove("desk")
    assert chain.names == ["native:m"]


def test_request_goes_where_its_prompt_is_warm() -> None:
    """The second question about one system prompt goes to the node that computed the first."""
    desk, box = peer_of(Saying("peer:desk"), num_running=1), peer_of(Saying("peer:box"))
    router = router_of(desk, box)
    desk.warm.add(prefix_keys(ask("another question", model="m")))
    assert answered_by(chain_of(router), ask()) == "peer:desk"
    assert answered_by(chain_of(router), ask(origin=Origin(tenant="other"))) != "peer:desk"


def test_second_request_follows_a_first_one_that_computes_its_prompt() -> None:
    """Of two at once that begin alike, both go to one node: the second finds there what the first one computes."""

    async def work(router: ClusterRouter, text: str) -> set[str]:
        chain = chain_of(router)
        answers = await asyncio.gather(*(collect(chain.chat(ask(text * n))) for n in (1, 2)))
        return {answer.last.backend for answer in answers}

    router = router_of(*(peer_of(Saying(f"peer:{number}"), num_free=8) for number in range(3)))
    router.own.tell(Load(sequence=1, num_free=8, num_waiting=20))
    assert len(asyncio.run(work(router, "hello "))) == 1
    assert not len(router.own.warm)


def test_prompts_sent_to_a_node_are_forgotten_with_its_start() -> None:
    """A node that was started anew has computed nothing of what it was sent."""
    desk = peer_of(Saying("peer:desk"))
    router = router_of(desk)
    router.asked(ask(), "peer:desk")
    keys, num_tokens = prefix_keys(ask(model="m")), estimated_request_tokens(ask())
    node = desk.as_node("peer:desk", keys, num_tokens)
    assert (node.num_sent, node.num_prompt_tokens_left) == (1, num_tokens)
    assert node.num_warm_tokens > 0.8 * num_tokens
    desk.take(Load(sequence=2, num_prompt_tokens_left=70))
    told = desk.as_node("peer:desk", keys, num_tokens)
    assert (told.num_sent, told.num_prompt_tokens_left, told.num_warm_tokens) == (0, 70, node.num_warm_tokens)
    desk.connected()
    assert desk.as_node("peer:desk", keys, num_tokens).num_warm_tokens == 0


def test_burst_spreads_before_any_load_is_told() -> None:
    """Of forty requests at once no node gets more than its share, though none has given a first token yet."""
    peers = [peer_of(Saying(f"peer:{number}")) for number in range(3)]
    chain = chain_of(router_of(*peers))

    async def work() -> list[str]:
        asked = [ChatRequest(messages=[Message("user", str(number))]) for number in range(40)]
        answers = await asyncio.gather(*(collect(chain.chat(one)) for one in asked))
        return [answer.last.backend for answer in answers]

    assert max(Counter(asyncio.run(work())).values()) <= 14


def test_prompt_of_a_private_request_is_told_to_nobody() -> None:
    """Not even as keys: who has the text's pattern could try which text it is."""
    router = router_of()
    router.computed(ask(private=True))
    assert not router.take_new_prefixes(100)
    assert not len(router.own.warm)
    router.computed(ask())
    assert router.take_new_prefixes(100)


def test_hint_goes_to_the_node_of_its_conversation_alone() -> None:
    """Private hints stay here, and a peer's own hints go no further."""
    desk, box = peer_of(Saying("peer:desk")), peer_of(Saying("peer:box"))
    router = router_of(desk, box)
    first = answered_by(chain_of(router), ask("1", session="s", origin=Origin(tenant="t")))
    hint = Hint(kind="retain", tenant="t", session="s")
    assert list(router.hinted(hint)) == [first]
    assert not router.hinted(Hint(kind="retain", tenant="t", session="s", private=True))
    assert not router.hinted(Hint(kind="retain", tenant="other", session="s"))

    async def of_a_peer() -> int:
        answer_for_peer()
        return len(router.hinted(hint))

    assert asyncio.run(of_a_peer()) == 0


def test_peer_without_the_model_is_tried_last() -> None:
    """A request that names a model goes to nodes that have it, however busy they are."""
    busy, idle = peer_of(Saying("peer:busy", "big"), "big", num_waiting=50), peer_of(Saying("peer:idle"))
    router = router_of(busy, idle)
    router.own.offer = Offer(models=(ModelInfo(id="m"),))
    chain = chain_of(router)
    assert answered_by(chain, ask(model="big")) == "peer:busy"


def test_answer_of_a_dying_peer_is_continued_by_another() -> None:
    """A peer that breaks off in mid-answer is replaced from the text already sent; the caller reads one answer."""
    dying, other = Saying("peer:dying", num_words=2), Saying("peer:other")
    router = router_of(peer_of(dying), peer_of(other, num_waiting=5))
    answer = asyncio.run(collect(chain_of(router, Saying("native:m", num_words=0)).chat(ask())))
    assert answer.text == "one two three four "
    assert other.asked[0].answer_prefix == "one two "


def test_conversation_stays_with_its_node_and_moves_when_it_is_gone() -> None:
    """Requests of one session go to one node, though others are idle; a node that left is replaced."""
    desk, box = peer_of(Saying("peer:desk")), peer_of(Saying("peer:box"))
    router = router_of(desk, box)
    chain = chain_of(router)
    first = answered_by(chain, ask("1", session="s"))
    home = router.get(first.removeprefix("peer:"))
    if home is not None:
        home.take(Load(sequence=9, num_waiting=9))
    assert {answered_by(chain, ask(str(number), session="s")) for number in range(5)} == {first}
    assert answered_by(chain, ask("1", session="s", origin=Origin(tenant="b"))) != first or home is None
    if home is not None:
        router.remove(home.id)
        assert answered_by(chain, ask("6", session="s")) != first


def test_private_requests_stay_on_this_machine() -> None:
    """A private request is never sent to a peer, unless the rules name peers."""
    desk = Saying("peer:desk")
    router = router_of(peer_of(desk))
    own = Saying("native:m")
    router.own.tell(Load(sequence=1, num_waiting=100))
    chain = Chain([own], router=router, private=["native"])
    assert answered_by(chain, ask(private=True)) == "native:m"
    chain = Chain([own], router=router, private=["native", "peer"])
    assert answered_by(chain, ask(private=True)) == "peer:desk"


def test_requests_of_peers_are_answered_by_own_offered_links() -> None:
    """What a peer asks goes to no third node, and to no link that peers may not use."""
    paid, own, desk = Saying("openai:http://far/v1"), Saying("native:m"), Saying("peer:desk")
    chain = Chain([paid, own], router=router_of(peer_of(desk)))

    async def work() -> str:
        answer_for_peer()
        return (await collect(chain.chat(ask()))).last.backend

    assert asyncio.run(work()) == "native:m"
    assert not paid.asked
    assert not desk.asked


def test_links_that_the_user_put_first_stay_first() -> None:
    """A server before the engine is asked before any peer; one behind it is what is left when all fail."""
    names = _order([Saying("openai:http://gpu/v1"), Saying("native:m"), Saying("ollama")], peer_of(Saying("peer:desk")))
    assert names[0] == "openai:http://gpu/v1"
    assert set(names[1:3]) == {"native:m", "peer:desk"}
    assert names[3] == "ollama"


def _order(links: Sequence[Backend], *peers: Peer) -> Sequence[str]:
    router = router_of(*peers)
    return router.order(ask(), Chain(links, router=router).names)


def test_old_loads_are_dropped_and_a_new_connection_begins_anew() -> None:
    """Loads that arrive out of order do not undo newer ones; after a restart the first load counts again."""
    desk = peer_of(Saying("peer:desk"))
    assert desk.take(Load(sequence=5, num_running=5))
    assert not desk.take(Load(sequence=4, num_running=4))
    assert desk.load.num_running == 5
    desk.connected()
    assert desk.take(Load(sequence=1, num_running=1))
