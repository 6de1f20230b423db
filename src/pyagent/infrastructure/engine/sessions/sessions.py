"""Conversations as append-only token logs: a follow-up request adds its new turn to what was computed before.

For each answered request a `Turn` holds the tokens of prompt and answer, after those of its parent turn. A request
whose messages begin with those of a turn, the answer as it was sent included, reuses the turn's tokens and renders only
the new messages. So a prompt is a token prefix of the next one by construction: also where tokenising the answer's text
again would give other ids, and where the chat template rewrites history.

New messages are rendered in one of two ways. When the template's text of the whole conversation begins with the turn's
text, the rest of it is new. Else the template renders the new messages after a stand-in for the conversation. Where
neither is sound, the conversation is rendered whole, and `Prompt.note` says so.

Knows tokenizers and messages, no KV memory. Invariants: a turn is evicted before its ancestors; a request finds turns
of its own tenant only (`Origin.tenant`).
"""

from __future__ import annotations

import json
import threading
from array import array
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from pyagent.core.errors import ModelError, RequestError
from pyagent.core.messages import Message, Tool
from pyagent.infrastructure.engine.sessions.prompt_normalization import NOTHING, NormalizedPrompt, with_moved
from pyagent.infrastructure.engine.sessions.turns import RenderedText, Turn, conversation_keys, next_key

if TYPE_CHECKING:
    from pyagent.infrastructure.engine.memory.ledger import Reservation
    from pyagent.infrastructure.engine.options import SessionScope
    from pyagent.infrastructure.engine.tokens import Detokenizer, ModelTokenizer

DEFAULT_MAX_BYTES = 32 << 20
_NUM_RECENT = 32
"""Turns that a prompt is compared with to explain a cache miss."""
_ANSWER = "\ue100\ue101"
"""The answer of the stand-in conversation: private-use characters that texts do not have."""
_UNSOUND = "the template does not render new messages apart from the conversation"
_Render = Callable[[Sequence[Message]], str]
"""Writes a conversation as the chat template does, with the request's tools."""
_SHORTENED = "the conversation's log comes near the model's context, and its text anew is shorter"


@dataclass(frozen=True, slots=True)
class Prompt:
    """A request's tokens, `num_log_tokens` of them from its conversation's log, those of `turn`.

    `note` says why a conversation with a log was rendered whole. `own` is the session's last turn, `recent` are the
    tenant's last recorded turns. A prompt without `key` is no conversation.
    """

    tokens: list[int]
    num_log_tokens: int = 0
    note: str = ""
    key: bytes = b""
    session: str = ""
    tenant: str = ""
    normalized: NormalizedPrompt = NOTHING
    tools_key: bytes = b""
    turn: Turn | None = None
    text: RenderedText | None = None
    own: Turn | None = None
    recent: tuple[Turn, ...] = ()


NO_PROMPT = Prompt([])


class Sessions:
    """The token logs of one model's conversations, within `max_bytes`; the least recently used are evicted first.

    With `memory`, their bytes are reserved first; where the reservation cannot grow, older logs are evicted for new
    ones. `context_length` is the most tokens of a prompt. `scope` decides which conversations are continued: all
    (`auto`), those with a name, or none. Safe from any thread.
    """

    def __init__(
        self,
        tokenizer: ModelTokenizer,
        context_length: int,
        *,
        scope: SessionScope = "auto",
        max_bytes: int = DEFAULT_MAX_BYTES,
        memory: Reservation | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        self._context_length = context_length
        self._scope = scope
        self._max_bytes = max_bytes
        self._memory = memory
        self._lock = threading.Lock()
        self._turns: OrderedDict[Turn, None] = OrderedDict()
        self._key_to_turn: dict[bytes, Turn] = {}
        self._session_to_turn: dict[tuple[str, str], Turn] = {}
        self._recent: defaultdict[str, OrderedDict[Turn, None]] = defaultdict(OrderedDict)
        self.num_bytes = 0

    def prompt(
        self,
        normalized: NormalizedPrompt,
        tools: Sequence[Tool] = (),
        session: str = "",
        tenant: str = "",
        template_kwargs: Mapping[str, object] | None = None,
    ) -> Prompt:
        """Return the prompt of a tenant's request. Raises `RequestError` when the template refuses the conversation."""
        keys = conversation_keys(normalized.messages, tools, tenant, template_kwargs)
        render = partial(self._tokenizer.render_chat, tools=tools, template_kwargs=template_kwargs)
        turn, own, recent = self._look_up(keys, session, tenant)
        empty = Prompt(
            [],
            key=keys[-1],
            session=session,
            tenant=tenant,
            normalized=normalized,
            tools_key=keys[0],
            own=own,
            recent=recent,
        )
        messages = with_moved(normalized)
        if turn is None:
            return self._rendered_whole(render, messages, empty)
        continued = self._continued(render, turn, messages, empty)
        if continued is None:
            return self._rendered_whole(render, messages, replace(empty, note=_UNSOUND))
        limit, num_tokens = self._context_length, len(continued.tokens)
        if num_tokens <= limit * 3 // 4 or (continued.text is not None and continued.text.is_whole):
            return continued
        shorter = self._rendered_whole(render, messages, replace(empty, note=_SHORTENED))
        is_needed = len(shorter.tokens) < limit <= num_tokens
        return shorter if is_needed or num_tokens - len(shorter.tokens) >= limit // 8 else continued

    def record(
        self,
        prompt: Prompt,
        answer: str,
        sampled: Sequence[int],
        message: Message | None = None,
        stream: Detokenizer | None = None,
    ) -> None:
        """Record an answer: its text as the client got it, and all tokens sampled for it but the end token.

        `message` is what the client sends back of an answer that was parsed; `answer` then is as the model wrote it.
        `stream` writes the tokens as they were written in `answer`, without control tokens where it is not given.
        What a stop string left of a token is text: only tokens that were sampled are control tokens of the log.
        """
        if prompt.text is None or self._scope == "off" or (self._scope == "named" and not prompt.session):
            return
        whole, rest = self._as_sent(answer, sampled, stream.copy() if stream else self._tokenizer.detokenizer())
        tokens = array("I", [*prompt.tokens[prompt.num_log_tokens :], *whole])
        tokens.extend(self._tokenizer.encode_continuation(self._tokenizer.markers.parted(rest)) if rest else ())
        key = next_key(prompt.key, message or Message("assistant", answer))
        text = prompt.text.plus(self._tokenizer.markers.parted_answer(answer) if message is None else answer)
        turn = Turn(
            key, prompt.turn, tokens, len(prompt.normalized.messages) + 1, prompt.tools_key, text, prompt.tenant
        )
        self._store(turn, prompt.session)

    def tokens_of(self, session: str, tenant: str = "") -> list[int]:
        """Return all tokens of a session's last turn; none for an unknown session."""
        with self._lock:
            turn = self._session_to_turn.get((tenant, session))
        return turn.all_tokens() if turn else []

    def names(self, beginning: str, tenant: str = "") -> list[str]:
        """Return the tenant's sessions whose names begin with `beginning`."""
        with self._lock:
            return [name for owner, name in self._session_to_turn if owner == tenant and name.startswith(beginning)]

    def names_of(self, tokens: Sequence[int], tenant: str = "") -> list[str]:
        """Return the tenant's sessions whose last turns begin with `tokens`."""
        wanted = array("I", tokens)
        with self._lock:
            turns = [(name, turn) for (owner, name), turn in self._session_to_turn.items() if owner == tenant]
        return sorted(name for name, turn in turns if turn.num_common(wanted) == len(wanted))

    # -- rendering ----------------------------------------------------------------------------------------------------

    def _rendered_whole(self, render: _Render, messages: Sequence[Message], empty: Prompt) -> Prompt:
        text = render(messages)
        tokens = self._tokenizer.encode_rendered(text, empty.tenant)
        return replace(empty, tokens=tokens, text=RenderedText.of(text))

    def _continued(self, render: _Render, turn: Turn, messages: Sequence[Message], empty: Prompt) -> Prompt | None:
        """Return the turn's tokens and those of the new messages; None when neither way to render them is sound."""
        whole = render(messages) if turn.text.is_whole else ""
        if whole and turn.text.begins(whole):
            added, text = whole[turn.text.num_chars :], RenderedText.of(whole)
        else:
            added = self._after_stand_in(render, messages[turn.num_messages - 1], messages[turn.num_messages :])
            text = turn.text.plus(added, is_whole=False)
        if not added:
            return None
        log = turn.all_tokens()
        tokens = log + self._tokenizer.encode_continuation(added)
        return replace(empty, tokens=tokens, num_log_tokens=len(log), turn=turn, text=text)

    def _after_stand_in(self, render: _Render, answer: Message, messages: Sequence[Message]) -> str:
        """Return what the template renders for messages after an answer; nothing when that cannot be found out.

        What it writes may depend on the answer's calls: gpt-oss' tells with a result the function that was called.
        """
        question, said = Message("user", "."), Message("assistant", _ANSWER)
        try:
            text = render([question, said, *messages])
            _, _, added = text.partition(_ANSWER)
            if answer.tool_calls and not render([question, answer, *messages]).endswith(added):
                return ""
        except (RequestError, ModelError):
            return ""
        texts = (self._tokenizer.markers.parted(message.text) for message in messages if message.role != "assistant")
        return added if _ANSWER not in added and _are_in(added, texts) else ""

    def _as_sent(self, answer: str, sampled: Sequence[int], stream: Detokenizer) -> tuple[Sequence[int], str]:
        """Return the sampled tokens that are whole in the text sent, and its rest, where a stop string cut a token."""
        num_chars = num_whole = num_kept = 0
        for index, token in enumerate(sampled):
            text = stream.push(token)
            if not answer.startswith(text, num_chars):
                return sampled[:num_whole], answer[num_kept:]
            num_chars += len(text)
            if not stream.is_inside_character:
                num_whole, num_kept = index + 1, num_chars
        if answer[num_chars:] == stream.flush():
            return sampled, ""
        return sampled[:num_whole], answer[num_kept:]

    # -- storage -----------------------------------------------------------------------------------------------------

    def _look_up(
        self, keys: Sequence[bytes], session: str, tenant: str
    ) -> tuple[Turn | None, Turn | None, tuple[Turn, ...]]:
        """Return the longest turn a conversation continues, the session's last turn, and the tenant's last turns."""
        with self._lock:
            own = self._session_to_turn.get((tenant, session))
            turn = self._longest(keys, own)
            if turn is not None:
                self._touch(turn)
            return turn, own, tuple(reversed(self._recent.get(tenant, ())))

    def _longest(self, keys: Sequence[bytes], own: Turn | None) -> Turn | None:
        """Return the longest of the session's own turns and of those with equal messages; of equal ones, its own."""
        turns = own.lineage() if own is not None else ()
        named = next((t for t in turns if t.num_messages < len(keys) - 1 and keys[t.num_messages] == t.key), None)
        if self._scope != "auto":
            return named
        known = next((self._key_to_turn[key] for key in reversed(keys[:-1]) if key in self._key_to_turn), None)
        return named if known is None or (named and named.num_messages >= known.num_messages) else known

    def _store(self, turn: Turn, session: str) -> None:
        with self._lock:
            known = self._key_to_turn.get(turn.key)
            if known is not None and known.parent is turn.parent and known.tokens == turn.tokens:
                turn = known
            else:
                self._key_to_turn[turn.key] = turn
                for stored in turn.lineage():
                    self.num_bytes += 0 if stored in self._turns else stored.num_bytes
                    self._turns[stored] = None
            if session:
                self._name(turn, session)
            self._touch(turn)
            recent = self._recent[turn.tenant]
            if turn.parent is not None:
                recent.pop(turn.parent, None)
            recent[turn] = None
            recent.move_to_end(turn)
            if len(recent) > _NUM_RECENT:
                recent.popitem(last=False)
            while not self._has_room():
                self._drop(self._turns.popitem(last=False)[0])

    def _has_room(self) -> bool:
        """Whether the turns are within the limit, and reserved in the ledger."""
        is_within = self.num_bytes <= self._max_bytes
        return is_within and (self._memory is None or self._memory.try_resize(self.num_bytes))

    def _name(self, turn: Turn, session: str) -> None:
        before = self._session_to_turn.get((turn.tenant, session))
        if before is not None:
            before.sessions.discard(session)
        turn.sessions.add(session)
        self._session_to_turn[turn.tenant, session] = turn

    def _touch(self, turn: Turn) -> None:
        for used in turn.lineage():  # the oldest last, so that it outlives its descendants
            self._turns.move_to_end(used)

    def _drop(self, turn: Turn) -> None:
        self.num_bytes -= turn.num_bytes
        if self._key_to_turn.get(turn.key) is turn:
            del self._key_to_turn[turn.key]
        for session in turn.sessions:
            del self._session_to_turn[turn.tenant, session]
        turn.sessions.clear()
        self._recent[turn.tenant].pop(turn, None)


def _are_in(text: str, parts: Iterable[str]) -> bool:
    """Whether a text has all parts in it in order, as they are or as JSON escapes them."""
    start = 0
    for part in map(str.strip, parts):
        forms = (part, json.dumps(part)[1:-1], json.dumps(part, ensure_ascii=False)[1:-1])
        start, length = next(((at, len(form)) for form in forms if (at := text.find(form, start)) >= 0), (-1, 0))
        if start < 0:
            return False
        start += length
    return True
