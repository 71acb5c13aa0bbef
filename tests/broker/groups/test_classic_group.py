"""One group of the classic protocol: votes, states, what offsets ask of it."""

from __future__ import annotations

import pytest
from classic_world import RecordedAsker, subscription

from strandline.broker.groups.classic.group import ClassicGroup, State
from strandline.broker.groups.classic.member import ClassicMember
from strandline.protocol.errors import BrokerError, ErrorCode, InternalError
from strandline.protocol.messages.groups import DescribedMember


def a_member(name: str, *protocols: str, instance_id: str | None = None, topics: tuple[str, ...] = ("orders",)) -> ClassicMember:
    known = {protocol: subscription(*topics) for protocol in protocols or ("range",)}
    return ClassicMember(name, instance_id, "client", "host", 60_000, 10_000, known)


def a_group(*members: ClassicMember, state: State = State.PREPARING, protocol_type: str = "consumer") -> ClassicGroup:
    group = ClassicGroup("g", lambda *_: None)
    for member in members:
        group.add(member, protocol_type)
    if group.members and state in (State.COMPLETING, State.STABLE):
        group.state = State.PREPARING
        group.begin_generation(0)
    group.state = state
    return group


# -- votes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("members", "chosen"),
    [
        ([("range", "sticky")], "range"),
        ([("range", "sticky"), ("sticky", "range"), ("sticky", "range")], "sticky"),
        ([("range", "sticky"), ("sticky",)], "sticky"),
        ([("range", "sticky", "x"), ("x", "sticky"), ("x", "sticky")], "x"),
        ([("x", "range", "sticky"), ("y", "sticky", "range"), ("z", "range", "sticky")], "range"),
        ([("range", "sticky"), ("sticky", "range")], "range"),
    ],
)
def test_members_vote_among_the_protocols_that_all_know(members: list[tuple[str, ...]], chosen: str) -> None:
    """If several protocols have equally many votes, the first vote counts, so that each run chooses the same protocol."""
    group = a_group(*(a_member(str(i), *protocols) for i, protocols in enumerate(members)))
    assert group.select_protocol() == chosen


@pytest.mark.parametrize(
    ("protocol_type", "protocols", "is_supported"),
    [
        ("consumer", ("range",), True),
        ("consumer", ("sticky",), True),
        ("consumer", ("x", "sticky"), True),
        ("consumer", ("x",), False),
        ("consumer", ("unknown",), False),
        ("consumer", (), False),
        ("connect", ("range",), False),
    ],
)
def test_new_member_must_share_a_protocol_with_all_others(
    protocol_type: str, protocols: tuple[str, ...], is_supported: bool
) -> None:
    group = a_group(a_member("A", "range", "sticky", "x"), a_member("B", "sticky", "range"))
    assert group.supports(protocol_type, dict.fromkeys(protocols, b"")) is is_supported


def test_removed_member_does_not_limit_the_protocols() -> None:
    group = a_group(a_member("A", "range", "sticky"), a_member("B", "range"))
    assert not group.supports("consumer", {"sticky": b""})
    group.remove("B")
    assert group.supports("consumer", {"sticky": b""})


def test_changed_member_votes_with_its_new_protocols() -> None:
    group = a_group(member := a_member("A", "range"), a_member("B", "range", "sticky"))
    group.update(member, {"sticky": b"", "range": b""}, 1, 2)
    assert group.select_protocol() == "sticky"
    assert group.supports("consumer", {"sticky": b""})
    assert (member.rebalance_timeout_ms, member.session_timeout_ms) == (1, 2)


# -- states -----------------------------------------------------------------------------------------------------------

ALLOWED = {
    (State.EMPTY, State.PREPARING),
    (State.PREPARING, State.COMPLETING),
    (State.PREPARING, State.EMPTY),
    (State.COMPLETING, State.STABLE),
    (State.COMPLETING, State.PREPARING),
    (State.STABLE, State.STABLE),
    (State.STABLE, State.PREPARING),
}


@pytest.mark.parametrize("before", [state for state in State if state is not State.DEAD])
@pytest.mark.parametrize("after", list(State))
def test_group_changes_state_only_as_in_kafkas_diagram(before: State, after: State) -> None:
    group = a_group(state=before)
    if (before, after) in ALLOWED:
        group.become(after, 7)
        assert (group.state, group.state_since_ms) == (after, 7)
    else:
        with pytest.raises(InternalError, match=after):
            group.become(after, 7)


def test_a_generation_begins_with_a_leader_and_a_protocol() -> None:
    group = a_group(a_member("A"), a_member("B"))
    group.begin_generation(5)
    assert (group.generation, group.leader, group.protocol, group.state) == (1, "A", "range", State.COMPLETING)
    assert list(group.unsynced) == ["A", "B"]


# -- members ----------------------------------------------------------------------------------------------------------


def test_the_eldest_member_follows_a_leader_that_leaves() -> None:
    group = a_group(a_member("A"), a_member("B"), a_member("C"))
    group.remove("A")
    assert group.leader == "B"
    group.remove("C")
    assert group.leader == "B"
    group.remove("B")
    assert group.leader is None


@pytest.mark.parametrize(("joined", "leader"), [(("A", "B"), "A"), (("C", "B"), "B"), (("C",), "C"), ((), None)])
def test_only_a_member_that_has_joined_leads(joined: tuple[str, ...], leader: str | None) -> None:
    group = a_group(a_member("A"), a_member("B"), a_member("C"))
    for name in joined:
        group.joining[name] = RecordedAsker()
    assert group.ensure_leader() is (leader is not None)
    assert group.leader == (leader or "A")


def test_a_member_that_is_removed_leaves_no_trace() -> None:
    group = a_group(a_member("A", instance_id="i"), state=State.COMPLETING)
    group.syncing["A"] = asker = RecordedAsker()
    assert group.remove("A") is asker
    assert not group.members
    assert not group.static_members
    assert not group.syncing
    assert not group.unsynced
    assert group.remove("A") is None


def test_a_member_that_is_replaced_keeps_its_place() -> None:
    """The order of members decides who leads next."""
    group = a_group(a_member("A", instance_id="a"), a_member("B"), state=State.COMPLETING)
    group.syncing["A"] = asker = RecordedAsker()
    assert group.replace("A", a_member("X", instance_id="a")) is asker
    assert (list(group.members), group.leader, group.static_members) == (["X", "B"], "X", {"a": "X"})
    assert list(group.unsynced) == ["B", "X"]


@pytest.mark.parametrize("state", [State.STABLE, State.COMPLETING, State.PREPARING])
def test_full_group_refuses_new_members(state: State) -> None:
    """During a rebalance only the members that have joined count against the limit."""
    group = a_group(a_member("A"), a_member("B"), a_member("C"), state=state)
    group.joining = {"A": RecordedAsker(), "C": RecordedAsker()} if state is State.PREPARING else {}
    assert group.accepts("A", 2)
    assert group.accepts("B", 2) is (state is not State.PREPARING)
    assert not group.accepts("D", 2)
    assert group.accepts("D", 3) is (state is State.PREPARING)
    assert group.accepts("D", 4)


# -- commits ----------------------------------------------------------------------------------------------------------

_OK = None


@pytest.mark.parametrize(
    ("state", "member_id", "instance_id", "epoch", "code"),
    [
        (State.EMPTY, "", None, -1, _OK),
        (State.EMPTY, "A", None, -1, _OK),
        (State.EMPTY, "A", None, 1, ErrorCode.UNKNOWN_MEMBER_ID),
        (State.STABLE, "", None, -1, ErrorCode.UNKNOWN_MEMBER_ID),
        (State.STABLE, "", None, 1, ErrorCode.UNKNOWN_MEMBER_ID),
        (State.STABLE, "A", None, -1, ErrorCode.ILLEGAL_GENERATION),
        (State.STABLE, "A", None, 0, ErrorCode.ILLEGAL_GENERATION),
        (State.STABLE, "A", None, 2, ErrorCode.ILLEGAL_GENERATION),
        (State.STABLE, "X", None, 1, ErrorCode.UNKNOWN_MEMBER_ID),
        (State.STABLE, "A", "x", 1, ErrorCode.UNKNOWN_MEMBER_ID),
        (State.STABLE, "X", "a", 1, ErrorCode.FENCED_INSTANCE_ID),
        (State.STABLE, "A", None, 1, _OK),
        (State.STABLE, "A", "a", 1, _OK),
        (State.PREPARING, "A", "a", 1, _OK),
        (State.COMPLETING, "A", "a", 1, ErrorCode.REBALANCE_IN_PROGRESS),
        (State.COMPLETING, "A", "a", 0, ErrorCode.ILLEGAL_GENERATION),
    ],
)
def test_commit_needs_a_present_member_or_an_empty_group(
    state: State, member_id: str, instance_id: str | None, epoch: int, code: ErrorCode | None
) -> None:
    members = () if state is State.EMPTY else (a_member("A", instance_id="a"),)
    group = a_group(*members, state=State.STABLE if members else State.EMPTY)
    group.state = state
    if code is None:
        assert group.check_offset_commit(member_id, instance_id, epoch, [(b"t", 0), (b"t", 1)], 0.0) == [0, 0]
    else:
        with pytest.raises(BrokerError) as raised:
            group.check_offset_commit(member_id, instance_id, epoch, [(b"t", 0)], 0.0)
        assert raised.value.code == code


def test_commit_in_a_transaction_does_not_wait_for_assignments() -> None:
    """As in Kafka: producers treat REBALANCE_IN_PROGRESS as a fatal error."""
    group = a_group(a_member("A", instance_id="a"), state=State.STABLE)
    group.state = State.COMPLETING
    assert group.check_offset_commit("A", "a", 1, [(b"t", 0)], 0.0, is_transactional=True) == [0]
    with pytest.raises(BrokerError) as raised:
        group.check_offset_commit("A", "a", 0, [(b"t", 0)], 0.0, is_transactional=True)
    assert raised.value.code == ErrorCode.ILLEGAL_GENERATION


def test_members_of_the_classic_protocol_do_not_name_themselves_when_they_fetch() -> None:
    a_group(a_member("A"), state=State.COMPLETING).check_offset_fetch(None, -1)


# -- offsets that expire ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "topic", "may_expire"),
    [
        (State.STABLE, "orders", False),
        (State.STABLE, "payments", True),
        (State.PREPARING, "payments", False),
        (State.COMPLETING, "payments", False),
    ],
)
def test_offsets_of_a_rebalancing_group_do_not_expire(state: State, topic: str, may_expire: bool) -> None:
    """KAFKA-13636: a member that joins may be about to read any topic."""
    group = a_group(a_member("A"), state=State.STABLE)
    group.state = state
    assert group.may_expire_offset(topic) is may_expire


def test_offsets_of_an_empty_group_expire() -> None:
    assert a_group(state=State.EMPTY).may_expire_offset("orders")


@pytest.mark.parametrize(("protocol_type", "metadata"), [("connect", subscription("orders")), ("consumer", b"?")])
def test_what_cannot_be_read_may_be_subscribed_to(protocol_type: str, metadata: bytes) -> None:
    """The group has another program's protocol type, or the member's metadata is malformed."""
    member = a_member("A")
    member.protocols = {"range": metadata}
    group = a_group(member, state=State.STABLE, protocol_type=protocol_type)
    assert group.subscribed_topics is None
    assert group.is_subscribed_to("payments")
    assert not group.may_expire_offset("payments")


def test_the_topics_are_those_of_all_members() -> None:
    group = a_group(a_member("A", topics=("orders",)), a_member("B", topics=("payments", "orders")), state=State.STABLE)
    assert group.subscribed_topics == frozenset({"orders", "payments"})


def test_a_group_without_members_is_subscribed_to_nothing() -> None:
    assert not a_group(state=State.EMPTY).is_subscribed_to("orders")


def test_the_topics_change_with_the_generation() -> None:
    group = a_group(member := a_member("A"), state=State.STABLE)
    assert group.subscribed_topics == frozenset({"orders"})
    group.state = State.PREPARING
    group.update(member, {"range": subscription("payments")}, 1, 1)
    group.begin_generation(0)
    assert group.subscribed_topics == frozenset({"payments"})


def test_a_group_that_never_had_members_is_empty_since_an_unknown_time() -> None:
    """The group got its record when a member id was given out. Its offsets, committed by a program without a membership, expire
    by their own age."""
    group = a_group(state=State.EMPTY)
    group.state_since_ms = 5
    assert group.empty_since_ms == -1
    group.protocol_type = "consumer"
    assert group.empty_since_ms == 5
    assert a_group(a_member("A"), state=State.STABLE).empty_since_ms == -1


# -- descriptions -----------------------------------------------------------------------------------------------------


def test_a_member_is_described_with_metadata_if_there_is_a_protocol() -> None:
    member = a_member("A", instance_id="i")
    member.assignment = b"a"
    assert member.describe("range") == DescribedMember("A", "i", "client", "host", subscription("orders"), b"a")
    assert member.describe(None).member_metadata == b""
