"""A node's keys, the file of its cluster, and the files that both lie in."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import stat
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.pretty import pretty_repr
from support.doors import some_id

from pyagent.core.cluster.cluster_state import ClusterState, EpochSecret, KnownMember, clean_name, decode_key
from pyagent.core.cluster.messages import MAX_REVOKED, Revocation
from pyagent.core.cluster.revoked_list import MAX_UNKNOWN_OF_ONE
from pyagent.core.errors import ClusterError
from pyagent.infrastructure.cluster.cluster_file import ClusterFile, leave
from pyagent.infrastructure.cluster.join import Handover, Newcomer
from pyagent.infrastructure.cluster.keys import NodeKeys, _StoredKeys, load_or_make_keys, node_id_of
from pyagent.infrastructure.cluster.protocol import Epoch
from pyagent.infrastructure.cluster.signatures import is_signed, sign

PLACE = '{"machine": "", "folder": "", "inode": 0}'
X, Y = "x" * 13, "y" * 13


def mode_of(file: Path) -> int:
    return stat.S_IMODE(file.stat().st_mode)


def test_keys_stay_the_same_and_private(tmp_path: Path) -> None:
    """A folder has one key pair, in a file that only its owner reads, and no text shows the secret."""
    keys = load_or_make_keys(tmp_path / "cluster")
    again = load_or_make_keys(tmp_path / "cluster")
    assert keys == again
    assert keys.node_id == node_id_of(keys.public)
    assert len(keys.node_id) == 13
    assert keys.secret not in repr(keys)
    assert mode_of(tmp_path / "cluster" / "node.json") == 0o600
    assert mode_of(tmp_path / "cluster") == 0o700


def test_no_repr_shows_a_secret(tmp_path: Path) -> None:
    """Whatever holds a secret hides it in its repr, and in the one that `rich` makes of it for tracebacks."""
    keys, state = NodeKeys.make(), ClusterFile(tmp_path).init("home")
    handover = Handover(state.cluster_id, state.name, state.current, (), Newcomer(keys.public, "desk"))
    told = Epoch(state.secrets, ())
    for holder in (_StoredKeys(keys.public, keys.secret, "here"), keys, state.current, state, handover, told):
        for shown in (repr(holder), pretty_repr(holder)):
            assert keys.secret not in shown
            assert repr(state.current.secret)[2:-1] not in shown


def test_keys_are_those_of_curve(tmp_path: Path) -> None:
    """The pair is one of ZMQ's CURVE, and two pairs share what only their holders compute."""
    zmq = pytest.importorskip("zmq")
    keys, other = NodeKeys.make(), NodeKeys.make()
    assert zmq.curve_public(keys.secret.encode()) == keys.public.encode()
    assert keys.shared_with(other.public) == other.shared_with(keys.public)
    assert keys.shared_with(other.public) != keys.shared_with(NodeKeys.make().public)


def test_keys_of_a_copied_folder_are_made_anew(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A copy of a node's folder is another node: it gets its own pair, and says so once."""
    keys = load_or_make_keys(tmp_path / "one")
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    with caplog.at_level(logging.WARNING):
        copied = load_or_make_keys(tmp_path / "two")
    assert copied.node_id != keys.node_id
    assert copied.former_id == keys.node_id
    assert keys.node_id in caplog.text
    assert copied.secret not in caplog.text
    assert load_or_make_keys(tmp_path / "two").former_id == ""
    assert load_or_make_keys(tmp_path / "one") == keys


def test_keys_of_a_folder_that_was_restored_or_moved_stay(tmp_path: Path) -> None:
    """A backup that takes the place of what was lost, and a folder that was moved, are the node that they were."""
    keys = load_or_make_keys(tmp_path / "one")
    shutil.copytree(tmp_path / "one", tmp_path / "backup")
    shutil.rmtree(tmp_path / "one")
    (tmp_path / "taken").mkdir()  # the inode, which the file system may give again
    shutil.copytree(tmp_path / "backup", tmp_path / "one")
    assert load_or_make_keys(tmp_path / "one") == keys
    (tmp_path / "one").rename(tmp_path / "moved")
    assert load_or_make_keys(tmp_path / "moved") == keys
    shutil.copytree(tmp_path / "moved", tmp_path / "copy")
    assert load_or_make_keys(tmp_path / "copy") != keys
    assert load_or_make_keys(tmp_path / "moved") == keys


def test_keys_of_another_machine_are_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A home folder that was restored on a second machine, or where machines cannot be told apart, is another node."""
    keys = load_or_make_keys(tmp_path / "one")
    for machine in ("another machine", ""):
        monkeypatch.setattr("pyagent.infrastructure.cluster.keys._machine_id", lambda machine=machine: machine)
        (tmp_path / "one").rename(tmp_path / "two")
        assert load_or_make_keys(tmp_path / "two") != keys
        keys = load_or_make_keys(tmp_path / "two")
        (tmp_path / "two").rename(tmp_path / "one")


def test_keys_others_can_read_are_closed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A file of keys that was opened to other users is closed again, and that is told."""
    load_or_make_keys(tmp_path)
    (tmp_path / "node.json").chmod(0o644)
    load_or_make_keys(tmp_path)
    assert mode_of(tmp_path / "node.json") == 0o600
    assert "other users" in caplog.text


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"public": 1}', b"\xff\xfe", b"[" * 100_000])
def test_keys_that_cannot_be_read_are_named(tmp_path: Path, content: bytes) -> None:
    """A damaged file of keys ends in an error that names the file and says what to do."""
    (tmp_path / "node.json").write_bytes(content)
    with pytest.raises(ClusterError, match=r"node\.json cannot be read.*move it away"):
        load_or_make_keys(tmp_path)


def test_keys_that_do_not_belong_together_are_refused(tmp_path: Path) -> None:
    """A public key of another pair is noticed, and neither key is in the error."""
    one, two = NodeKeys.make(), NodeKeys.make()
    (tmp_path / "node.json").write_text(
        f'{{"public": {_json(one.public)}, "secret": {_json(two.secret)}, "place": {PLACE}}}'
    )
    with pytest.raises(ClusterError, match="not that of its secret key") as caught:
        load_or_make_keys(tmp_path)
    assert two.secret not in str(caught.value)


def _json(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


@given(st.text(max_size=50))
def test_key_texts_are_read_or_refused(text: str) -> None:
    """Any text is a key of 32 bytes or a `ValueError`."""
    with contextlib.suppress(ValueError):
        assert len(decode_key(text)) == 32


@given(st.binary(min_size=32, max_size=32))
def test_key_is_decoded_as_zmq_does(raw: bytes) -> None:
    """Each key that ZMQ writes is read as the bytes it stands for."""
    z85 = pytest.importorskip("zmq.utils.z85")
    assert decode_key(z85.encode(raw).decode()) == raw


@pytest.mark.parametrize("public", [" " * 40, "#" * 40, "~" * 40, "a" * 39, "a" * 41, "a" * 40 + "\n", "é" * 40])
def test_member_has_a_key(public: str) -> None:
    """A text that no key is written as makes no member: no node could start with it in its file."""
    with pytest.raises(ValueError, match="key of 40 characters of Z85"):
        KnownMember(public)
    with pytest.raises(ValueError, match="key of 40 characters of Z85"):
        Newcomer(public, "desk")


def test_cluster_file_keeps_a_cluster(tmp_path: Path) -> None:
    """A cluster that is made is there for the next process, in a private file, its secret in no text."""
    cluster = ClusterFile(tmp_path)
    assert not cluster.exists()
    state = cluster.init("home")
    assert mode_of(cluster.file) == 0o600  # before it is read, which would close it
    assert ClusterFile(tmp_path).load() == state
    assert state.epoch == 1
    assert repr(state.current.secret) not in repr(state)
    with pytest.raises(
        ClusterError, match=r"in a cluster already \(\S+cluster\.json\); `pyagent cluster leave`.*cluster join"
    ):
        cluster.init("again")


def test_cluster_file_that_is_absent_says_what_to_do(tmp_path: Path) -> None:
    """Without a cluster, the error names both commands that end that."""
    with pytest.raises(ClusterError, match=r"pyagent cluster init.*pyagent cluster join"):
        ClusterFile(tmp_path).load()


def test_cluster_file_sees_what_another_process_wrote(tmp_path: Path) -> None:
    """A running node sees a revocation by the command line, and knows the old secrets still."""
    mine, theirs = ClusterFile(tmp_path), ClusterFile(tmp_path)
    keys = NodeKeys.make()
    mine.init("home")
    mine.add_member(keys.node_id, keys.public, "desk")
    before = mine.load()
    theirs.revoke(Revocation(keys.node_id))
    state = mine.load()
    assert state.epoch == 2
    assert state.secrets[1] == before.current
    assert keys.node_id in state.revoked
    assert not state.is_member(keys.node_id, keys.public)
    assert not state.needs_rotation
    with pytest.raises(ClusterError, match="is revoked"):
        mine.add_member(keys.node_id, keys.public, "desk")


def test_cluster_file_revokes_known_nodes_only(tmp_path: Path) -> None:
    """Revoking an id that no member has is an error, and changes nothing."""
    cluster = ClusterFile(tmp_path)
    state = cluster.init("home")
    with pytest.raises(ClusterError, match="no member has the id"):
        cluster.revoke(Revocation("nosuchnode"))
    assert cluster.load() == state


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[: len(text) // 2],
        lambda text: text.replace('"epoch":1', '"epoch":-1'),
        lambda text: text.replace('"secrets":[', '"secrets":['.replace("[", "[[],")),
        lambda text: text.replace('"secret":"', '"secret":"AAAA'),
        lambda _: '{"cluster_id":"x","name":"y","secrets":[]}',
    ],
)
def test_cluster_file_that_is_damaged_is_named(tmp_path: Path, damage: object) -> None:
    """Half-written or hostile content is an error that says what to do, without the secret."""
    cluster = ClusterFile(tmp_path)
    cluster.init("home")
    text = cluster.file.read_text()
    assert callable(damage)
    cluster.file.write_text(str(damage(text)))
    with pytest.raises(ClusterError, match=r"cluster\.json cannot be read.*pyagent cluster join"):
        cluster.load()


def test_cluster_file_leaves_no_partial_files(tmp_path: Path) -> None:
    """Writing leaves the file and its lock, nothing else."""
    cluster = ClusterFile(tmp_path)
    cluster.init("home")
    for _ in range(3):
        cluster.rotate()
    assert sorted(os.listdir(tmp_path)) == [".lock", "cluster.json"]


def _state(*secrets: EpochSecret) -> ClusterState:
    return ClusterState("id", "home", tuple(secrets))


def test_views_of_a_partition_merge_to_one() -> None:
    """Two sides that each revoked a node and began an epoch agree on one secret, and see that it must change again."""
    first = _state(EpochSecret(1, b"0" * 32))
    left = first.with_revoked([Revocation(X)]).rotated(b"1" * 32)
    right = first.with_revoked([Revocation(Y)]).rotated(b"2" * 32)
    one = left.with_revoked(right.revoked.values()).with_secrets(right.secrets)
    two = right.with_revoked(left.revoked.values()).with_secrets(left.secrets)
    assert one == two
    assert one.needs_rotation
    assert not one.rotated(b"3" * 32).needs_rotation


@given(st.lists(st.tuples(st.integers(1, 12), st.binary(min_size=32, max_size=32)), max_size=12), st.randoms())
def test_secrets_merge_in_any_order(told: list[tuple[int, bytes]], random: object) -> None:
    """Whatever the order in which secrets are heard, every node ends with the same ones."""
    secrets = [EpochSecret(epoch, secret) for epoch, secret in told]
    first = _state(EpochSecret(1, b"0" * 32))
    forward = first
    for one in secrets:
        forward = forward.with_secrets([one])
    shuffled = list(secrets)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert first.with_secrets(shuffled) == forward
    assert forward.epoch == max([1, *(one.epoch for one in secrets)])


def test_epoch_that_is_far_ahead_is_not_taken(tmp_path: Path) -> None:
    """A member that makes up the last epoch there is keeps nobody from revoking it."""
    cluster, evil = ClusterFile(tmp_path), NodeKeys.make()
    before = cluster.init("home").current
    cluster.add_member(evil.node_id, evil.public, "evil")
    near = EpochSecret(1_001, b"n" * 32)
    state = cluster.merge([EpochSecret(2**53, b"x" * 32), EpochSecret(1_002, b"y" * 32), near])
    assert state.secrets == (near, before)
    state = cluster.revoke(Revocation(evil.node_id))
    assert state.epoch == 1_002
    assert evil.node_id in state.revoked


@pytest.mark.parametrize("made_up", [(2**53,), (2**53, 2**53 - 1), (2**53, 2**53 - 2_000, 2**53 - 2_001)])
def test_cluster_at_the_last_epoch_still_revokes(made_up: tuple[int, ...]) -> None:
    """Where an epoch was made up before that was noticed, each node goes on before it, and they agree."""
    bad = tuple(EpochSecret(epoch, b"x" * 32) for epoch in made_up)
    state = _state(*bad, EpochSecret(3, b"3" * 32), EpochSecret(2, b"2" * 32)).with_revoked([Revocation(X)])
    assert state.needs_rotation
    one, two = state.rotated(b"a" * 32), state.rotated(b"b" * 32)
    assert [secret.epoch for secret in one.secrets] == [4, 3, 2]
    assert not one.needs_rotation
    assert one.with_secrets(two.secrets) == two.with_secrets(one.secrets)
    assert one.with_secrets(state.secrets).epoch == 4
    assert _state(bad[0]).rotated(b"c" * 32).epoch == 1


def test_invented_ids_leave_room_to_revoke(tmp_path: Path) -> None:
    """Members that tell of a thousand revoked nodes each keep nobody from revoking them, here or at another member."""
    files = ClusterFile(tmp_path / "a"), ClusterFile(tmp_path / "b")
    evil = NodeKeys.make()
    files[1].join(files[0].init("home"))
    for file in files:
        file.add_member(evil.node_id, evil.public, "evil")
        assert file.merge(revoked=[Revocation(f"id{number}") for number in range(1_000)]).revoked == {}
        file.merge(revoked=[Revocation(some_id(number), "evil") for number in range(1_000)])
        assert len(file.load().revoked) == MAX_UNKNOWN_OF_ONE
        file.merge(revoked=[Revocation(some_id(1_000 + by), f"evil {by}") for by in range(1, 1_000)])
        assert len(file.load().revoked) == 768
    state = files[0].revoke(Revocation(evil.node_id, "good"))
    told = [Revocation(some_id(number), "worse") for number in range(2_000, 3_000)]
    other = files[1].merge(state.secrets, [*told, *state.revoked.values()])
    assert evil.node_id in state.revoked.keys() & other.revoked.keys()
    assert other.current == state.current
    assert len(other.revoked) == 769


def test_full_list_forgets_nobody_and_still_puts_members_out(tmp_path: Path) -> None:
    """With 1,024 revoked, none of them comes back, a member that is revoked is one no more, and a new epoch begins."""
    cluster, evil = ClusterFile(tmp_path), NodeKeys.make()
    listed = {name: Revocation(name) for name in map(some_id, range(MAX_REVOKED))}
    cluster.join(ClusterState("id", "home", (EpochSecret(1, b"0" * 32),), revoked=listed))
    cluster.add_member(evil.node_id, evil.public, "evil")
    state = cluster.revoke(Revocation(evil.node_id))
    assert state.revoked == listed
    assert state.members == {}
    assert state.epoch == 2
    assert state.is_closed
    with pytest.raises(ClusterError, match="is revoked"):
        cluster.add_member(some_id(0), evil.public, "back")


def test_own_revocation_is_told_after_a_restart(tmp_path: Path) -> None:
    """A node that was put out knows by whom, in every process, until it leaves; the next keys are others."""
    cluster, keys, by = ClusterFile(tmp_path), load_or_make_keys(tmp_path), NodeKeys.make()
    cluster.init("home")
    cluster.add_member(by.node_id, by.public, "desk")
    cluster.put_out(Revocation(keys.node_id, by.public))
    cluster.put_out(Revocation(keys.node_id, NodeKeys.make().public))
    with pytest.raises(ClusterError, match=rf"from the cluster 'home' by desk \({by.node_id}\).*pyagent cluster leave"):
        ClusterFile(tmp_path).standing()
    assert leave(tmp_path)
    assert not leave(tmp_path)
    assert load_or_make_keys(tmp_path) != keys
    assert not cluster.exists()


@given(st.binary(max_size=100), st.integers(0, 511))
@settings(max_examples=20, deadline=None)
def test_signature_is_of_its_key_and_message(message: bytes, changed: int) -> None:
    """What a node signs by its CURVE key is known by its public key, and nothing else passes for it."""
    keys = NodeKeys.make()
    signature = sign(keys, message)
    assert is_signed(keys.public, message, signature)
    assert not is_signed(keys.public, message + b"x", signature)
    assert not is_signed(NodeKeys.make().public, message, signature)
    broken = bytearray(signature)
    broken[changed // 8] ^= 1 << changed % 8
    assert not is_signed(keys.public, message, bytes(broken))


@pytest.mark.parametrize("public", ["", "x", "0" * 40, "~" * 40])
def test_text_that_is_no_key_has_signed_nothing(public: str) -> None:
    """Any text for a key, and any bytes for a signature, are refused without an error."""
    for signature in (b"", bytes(64), b"x" * 100):
        assert not is_signed(public, b"message", signature)


def test_secret_excludes_ids_only() -> None:
    """What a member sends with a secret cannot fill the file until it is too long to read."""
    with pytest.raises(ValueError, match="ids of at most 32"):
        EpochSecret(1, b"0" * 32, ("x" * 1_000,))


@pytest.mark.parametrize(
    ("given_name", "shown"), [("desk", "desk"), ("a\x1b[31m\nb", "a [31m b"), ("x" * 300, "x" * 64), ("\u202e", "")]
)
def test_names_are_shown_on_one_line(given_name: str, shown: str) -> None:
    """A node's name cannot write to a terminal, nor fill it."""
    assert clean_name(given_name) == shown


def test_secret_file_is_neither_a_link_nor_a_pipe(tmp_path: Path) -> None:
    """A link is not followed, whose target would be closed to others, and a pipe is not waited for."""
    target = tmp_path / "target"
    target.write_text("{}")
    target.chmod(0o644)
    folder = tmp_path / "cluster"
    folder.mkdir()
    (folder / "cluster.json").symlink_to(target)
    with pytest.raises(ClusterError, match=r"cluster\.json"):
        ClusterFile(folder).load()
    assert target.stat().st_mode & 0o777 == 0o644
    (folder / "cluster.json").unlink()
    os.mkfifo(folder / "cluster.json")
    with pytest.raises(ClusterError, match="no regular file"):
        ClusterFile(folder).load()
