"""The core of a group member: every transition, every error of the coordinator, and lost responses."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from strandline.client.consumer.group.membership import (
    EARLY_MAX,
    FIND_AGAIN,
    REMOVED,
    SESSION_INTERVALS,
    TRANSITIONS,
    WAIT_MS_MAX,
    Identity,
    Membership,
    MemberState,
    Topics,
)
from strandline.client.errors import GroupMembershipFailed, NoBrokersAvailable, RequestFailed
from strandline.protocol.errors import ERRORS, BrokerError, ErrorCode
from strandline.protocol.messages.groups import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    GroupTopicPartitions,
)

from .model_group import NONE, Keys, ModelGroup

S = MemberState
TOPIC = bytes(15) + b"\1"
ORDERS = Topics(("orders",))


def keys(*indexes: int) -> Keys:
    return frozenset((TOPIC, index) for index in indexes)


def ok(epoch: int, assigned: Keys | None = None) -> ConsumerGroupHeartbeatResponse:
    listed = None if assigned is None else [GroupTopicPartitions(TOPIC, sorted(index for _, index in assigned))]
    return ConsumerGroupHeartbeatResponse(0, None, "m", epoch, 3000, listed)


def refusal(code: ErrorCode, message: str | None = None) -> ConsumerGroupHeartbeatResponse:
    return ConsumerGroupHeartbeatResponse(code, message)


def member(**identity: object) -> Membership:
    return Membership(Identity("group", "m", **identity), Random(1))


def beat(m: Membership, response: ConsumerGroupHeartbeatResponse, now: float = 0.0) -> ConsumerGroupHeartbeatRequest:
    """Send the heartbeat that is due, and answer it."""
    assert m.due_at <= now, f"no heartbeat is due in {m.state}"
    request = m.next_request(now)
    m.on_response(response, now)
    return request


TWO = keys(0, 1)


def stable(owned: Keys = TWO, epoch: int = 5, **identity: object) -> Membership:
    """A member in the group, which owns these partitions and has reported it."""
    m = member(**identity)
    m.subscribe(ORDERS, 0.0)
    beat(m, ok(epoch, owned))
    m.beat_now(0.0)
    beat(m, ok(epoch))
    assert (m.state, m.owned_keys) == (S.STABLE, owned)
    return m


# -- joining, reconciling ---------------------------------------------------------------------------------------------


def test_heartbeat_that_joins_has_every_field() -> None:
    m = member(rack_id="a", assignor="range", rebalance_timeout_ms=7)
    assert (m.state, m.due_at) == (S.UNSUBSCRIBED, float("inf"))
    m.subscribe(ORDERS, 4.0)
    assert (m.state, m.due_at) == (S.JOINING, 4.0)
    request = m.next_request(4.0)
    assert request == ConsumerGroupHeartbeatRequest(
        "group", "m", 0, None, "a", 7, ["orders"], None, "range", [], returns_at_once=True, max_wait_ms=WAIT_MS_MAX
    )


def test_later_heartbeats_have_only_what_changed() -> None:
    m = stable(keys(0))
    request = beat(m, ok(5), m.due_at)
    assert request == ConsumerGroupHeartbeatRequest("group", "m", 5, returns_at_once=True, max_wait_ms=WAIT_MS_MAX)
    m.subscribe(Topics(("orders", "teas")), 4.0)
    request = beat(m, ok(5), 4.0)
    assert (request.subscribed_topic_names, request.topic_partitions, request.rebalance_timeout_ms) == (
        ["orders", "teas"],
        None,
        -1,
    )


def test_the_coordinator_names_the_interval() -> None:
    m = member()
    m.subscribe(ORDERS, 0.0)
    m.next_request(0.0)
    m.on_response(ConsumerGroupHeartbeatResponse(0, None, "m", 1, 700, []), 0.2)
    assert m.due_at == pytest.approx(0.7), "counted from when it was sent"


def test_assigned_partitions_are_owned_before_the_program_has_taken_them() -> None:
    """The coordinator gives them to no other member, whatever the program does with the target, and when."""
    m = member()
    m.subscribe(ORDERS, 0.0)
    beat(m, ok(1, keys(0, 1)))
    assert (m.state, m.target_keys, m.owned_keys) == (S.STABLE, keys(0, 1), keys(0, 1))
    request = beat(m, ok(1), m.due_at)
    assert request.topic_partitions == [GroupTopicPartitions(TOPIC, [0, 1])]
    assert beat(m, ok(1), m.due_at).topic_partitions is None


def test_revocation_is_reported_before_new_partitions_come() -> None:
    m = stable(keys(0, 1))
    beat(m, ok(5, keys(0)), m.due_at)
    assert (m.state, m.owned_keys) == (S.RECONCILING, keys(0, 1)), "it still owns what it has not given up"
    m.on_given_up(m.tenure, keys(1), 9.0)
    assert (m.state, m.due_at) == (S.ACKNOWLEDGING, 9.0)
    assert beat(m, ok(6, keys(0, 2)), 9.0).topic_partitions == [GroupTopicPartitions(TOPIC, [0])]
    assert (m.state, m.epoch, m.owned_keys) == (S.STABLE, 6, keys(0, 2))


def test_heartbeats_go_on_while_the_program_gives_up_partitions() -> None:
    m = stable(keys(0, 1))
    beat(m, ok(5, keys(0)), m.due_at)
    request = beat(m, ok(5), m.due_at)
    assert request.topic_partitions == [GroupTopicPartitions(TOPIC, [0, 1])], "a new target asks for a report"
    assert beat(m, ok(5), m.due_at).topic_partitions is None
    assert m.state is S.RECONCILING


def test_partition_that_goes_before_it_was_taken_has_to_be_given_up() -> None:
    """The program may have begun to take it. The coordinator waits until the member reports that it does not own it."""
    m = stable(keys(0))
    beat(m, ok(5, keys(0, 1)), m.due_at)
    beat(m, ok(5, keys(0)), m.due_at)
    assert (m.state, m.owned_keys) == (S.RECONCILING, keys(0, 1))
    m.on_given_up(m.tenure, keys(1), 9.0)
    assert beat(m, ok(6), 9.0).topic_partitions == [GroupTopicPartitions(TOPIC, [0])]
    assert m.state is S.STABLE


def test_partition_that_is_assigned_again_is_still_owned() -> None:
    """The program has given it up for an older target, and will take it again for the newer one."""
    m = stable(keys(0, 1))
    beat(m, ok(5, keys(0)), m.due_at)
    beat(m, ok(6, keys(0, 1)), m.due_at)
    m.on_given_up(m.tenure, keys(1), 9.0)
    assert (m.state, m.owned_keys) == (S.STABLE, keys(0, 1))


def test_what_changes_while_a_heartbeat_is_in_flight_follows_at_once() -> None:
    m = stable(keys(0, 1))
    beat(m, ok(5, keys(0)), m.due_at)
    now = m.due_at
    m.next_request(now)
    m.on_given_up(m.tenure, keys(1), now + 0.1)
    m.on_response(ok(5), now + 0.2)
    assert m.state is S.ACKNOWLEDGING
    assert beat(m, ok(6), now + 0.2).topic_partitions == [GroupTopicPartitions(TOPIC, [0])]


def test_pattern_replaces_names_and_is_taken_back() -> None:
    m = member()
    m.subscribe(Topics(pattern="orders-.*"), 0.0)
    request = beat(m, ok(1, NONE))
    assert (request.subscribed_topic_names, request.subscribed_topic_regex) == ([], "orders-.*")
    m.subscribe(ORDERS, 1.0)
    request = beat(m, ok(1), 1.0)
    assert (request.subscribed_topic_names, request.subscribed_topic_regex) == (["orders"], "")


def test_pattern_is_taken_back_when_the_member_joins_again() -> None:
    """Without the empty pattern, a coordinator that still has the member would keep the old one."""
    m = member()
    m.subscribe(Topics(pattern="orders-.*"), 0.0)
    beat(m, ok(1, NONE))
    m.subscribe(ORDERS, 1.0)
    m.next_request(1.0)
    m.on_failure(BrokerError(ErrorCode.NETWORK_EXCEPTION), 1.0)
    assert m.next_request(m.due_at).subscribed_topic_regex == ""


# -- lost responses ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error", [BrokerError(ErrorCode.NETWORK_EXCEPTION), BrokerError(ErrorCode.REQUEST_TIMED_OUT), NoBrokersAvailable("x")]
)
def test_lost_response_is_repeated_with_the_same_epoch_and_every_field(error) -> None:
    m = stable(keys(0, 1))
    now = m.due_at
    m.next_request(now)
    m.on_failure(error, now)
    assert now < m.due_at <= now + 0.2
    request = m.next_request(m.due_at)
    assert (request.member_epoch, request.subscribed_topic_names) == (5, ["orders"])
    assert request.topic_partitions == [GroupTopicPartitions(TOPIC, [0, 1])]
    assert (m.state, m.last_error) == (S.STABLE, error)
    m.on_response(ok(6, keys(0, 1)), now + 1)
    assert (m.epoch, m.failures, m.last_error) == (6, 0, None)


def test_pauses_between_failures_double_up_to_a_second() -> None:
    m = stable()
    pauses = []
    for _ in range(8):
        now = m.due_at
        m.next_request(now)
        m.on_failure(BrokerError(ErrorCode.NETWORK_EXCEPTION), now)
        pauses.append(m.due_at - now)
    assert all(0.8 * p <= pause <= 1.2 * p for p, pause in zip([0.1, 0.2, 0.4, 0.8, 1.0, 1.0, 1.0, 1.0], pauses, strict=True))


# -- heartbeats that wait ---------------------------------------------------------------------------------------------


def waiting(now: float = 10.0) -> Membership:
    """A stable member whose heartbeat waits for news since `now`."""
    m = stable()
    m.beat_now(now)
    assert m.next_request(now).max_wait_ms == WAIT_MS_MAX
    assert m.is_waiting
    return m


def woken(epoch: int = 5, assignment: Keys | None = None) -> ConsumerGroupHeartbeatResponse:
    response = ok(epoch, assignment)
    response.next_at_once = True
    return response


def test_heartbeat_with_something_to_say_does_not_wait() -> None:
    m = member()
    m.subscribe(ORDERS, 0.0)
    m.next_request(0.0)
    assert not m.is_waiting


def test_answer_to_a_waiting_heartbeat_is_followed_at_once() -> None:
    """The next one waits again, or brings the news."""
    m = waiting()
    m.on_response(woken(), 13.0)
    assert m.due_at == 13.0
    assert m.confirmed_at == 10.0


def test_coordinator_that_does_not_keep_the_answer_back_is_asked_at_the_interval() -> None:
    """A broker of an older version answers at once."""
    m = waiting()
    m.on_response(ok(5), 10.01)
    assert m.due_at == 13.0


def test_given_up_partitions_do_not_wait_behind_a_heartbeat() -> None:
    m = waiting()
    m.on_response(woken(5, keys(0)), 11.0)
    m.next_request(11.0)
    m.on_response(woken(5), 11.1)
    m.next_request(11.1)
    assert m.is_waiting
    m.on_given_up(m.tenure, keys(1), 12.0)
    assert m.due_at == 12.0
    m.give_up_waiting()
    request = m.next_request(12.0)
    assert request.topic_partitions == [GroupTopicPartitions(TOPIC, [0])]
    assert request.subscribed_topic_names == ["orders"], "nothing is known of what the coordinator has"


def test_coordinator_that_answers_at_once_for_ever_does_not_make_the_member_busy() -> None:
    m = waiting()
    now = 10.0
    for _ in range(EARLY_MAX - 1):
        m.on_response(woken(), now)
        assert m.due_at == now
        m.next_request(now)
    m.on_response(woken(), now)
    assert m.due_at == now + m.interval_s


def test_member_leaves_although_its_heartbeat_waits() -> None:
    m = waiting()
    m.leave(12.0, 5.0)
    assert m.due_at == 12.0
    m.give_up_waiting()
    assert m.next_request(12.0).member_epoch == -1


# -- every error of the coordinator ------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", sorted(code for code in ErrorCode if ERRORS[code].retriable and code not in REMOVED))
def test_retriable_error_keeps_the_partitions(code: ErrorCode) -> None:
    m = stable(keys(0))
    now = m.due_at
    beat(m, refusal(code), now)
    assert (m.state, m.owned_keys, m.epoch) == (S.STABLE, keys(0), 5)
    assert m.last_error is not None
    assert m.last_error.code == code
    assert (m.due_at == now) == (code in FIND_AGAIN), "another coordinator is asked at once"
    beat(m, refusal(code), m.due_at)
    assert m.due_at > now, "but not again and again"


@pytest.mark.parametrize("code", sorted(REMOVED))
def test_removed_member_joins_again_when_the_program_has_let_go(code: ErrorCode) -> None:
    m = stable(keys(0))
    tenure, now = m.tenure, m.due_at
    beat(m, refusal(code), now)
    assert (m.state, m.owned_keys, m.epoch, m.tenure, m.due_at) == (S.FENCED, NONE, 0, tenure + 1, float("inf"))
    m.on_given_up(tenure, keys(0), now)
    m.on_released(tenure, now)
    assert m.state is S.FENCED
    m.on_released(m.tenure, now)
    assert (m.state, m.due_at) == (S.JOINING, now)
    request = beat(m, ok(9, NONE), now)
    assert (request.member_epoch, request.topic_partitions, request.subscribed_topic_names) == (0, [], ["orders"])


def test_member_that_is_removed_again_and_again_pauses_before_it_joins() -> None:
    m = stable(keys(0))
    beat(m, refusal(ErrorCode.UNKNOWN_MEMBER_ID), m.due_at)
    for _ in range(3):
        m.on_released(m.tenure, 9.0)
        now = m.due_at
        beat(m, refusal(ErrorCode.UNKNOWN_MEMBER_ID), now)
    m.on_released(m.tenure, now)
    assert m.due_at > now + 0.1


FATAL = sorted(code for code in ErrorCode if not ERRORS[code].retriable and code not in REMOVED and code != ErrorCode.NONE)


@pytest.mark.parametrize("code", FATAL)
def test_other_errors_end_the_membership(code: ErrorCode) -> None:
    m = stable(keys(0))
    beat(m, refusal(code, "because"), m.due_at)
    assert (m.state, m.owned_keys) == (S.FAILED, NONE)
    assert isinstance(m.error, GroupMembershipFailed)
    assert (m.error.code, m.error.retriable) == (code, False)
    assert str(m.error).startswith("the coordinator of group 'group' refuses the member: because")


@pytest.mark.parametrize("code", FATAL)
def test_refusal_of_the_whole_request_counts_alike(code: ErrorCode) -> None:
    """A broker that does not know the request, or cannot decide it, answers without a response of its kind."""
    m = stable(keys(0))
    m.next_request(m.due_at)
    m.on_failure(RequestFailed("because", code=code), m.due_at)
    assert isinstance(m.error, GroupMembershipFailed)
    assert (m.state, m.error.code) == (S.FAILED, code)


def test_failed_member_leaves_if_it_is_counted() -> None:
    """Its partitions would wait for the end of its session."""
    m = stable(keys(0))
    beat(m, refusal(ErrorCode.INVALID_REGULAR_EXPRESSION), m.due_at)
    assert beat(m, ok(-1), m.due_at).member_epoch == -1
    assert (m.state, m.due_at) == (S.FAILED, float("inf"))


@pytest.mark.parametrize(
    "code", [ErrorCode.GROUP_MAX_SIZE_REACHED, ErrorCode.UNRELEASED_INSTANCE_ID, ErrorCode.UNSUPPORTED_ASSIGNOR]
)
def test_member_that_was_never_accepted_sends_nothing_more(code: ErrorCode) -> None:
    m = member(instance_id="i")
    m.subscribe(ORDERS, 0.0)
    beat(m, refusal(code))
    assert (m.state, m.due_at) == (S.FAILED, float("inf"))


def test_failed_member_tries_again_with_another_subscription() -> None:
    m = member()
    m.subscribe(Topics(pattern="("), 0.0)
    beat(m, refusal(ErrorCode.INVALID_REGULAR_EXPRESSION))
    m.on_released(m.tenure, 1.0)
    m.subscribe(ORDERS, 1.0)
    assert (m.state, m.error) == (S.JOINING, None)
    assert beat(m, ok(1, NONE), 1.0).member_epoch == 0


# -- leaving -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("instance_id", "epoch"), [(None, -1), ("i", -2)])
def test_leaving_tells_the_coordinator(instance_id: str | None, epoch: int) -> None:
    m = stable(keys(0), instance_id=instance_id)
    m.leave(9.0, 5.0)
    assert (m.state, m.owned_keys) == (S.LEAVING, NONE)
    request = beat(m, ok(epoch), 9.0)
    assert (request.member_epoch, request.instance_id, request.topic_partitions) == (epoch, instance_id, None)
    assert (m.state, m.due_at) == (S.UNSUBSCRIBED, float("inf"))


def test_leaving_is_repeated_for_a_bounded_time() -> None:
    m = stable(keys(0))
    m.leave(10.0, 2.0)
    now = 10.0
    while m.state is S.LEAVING:
        now = max(now, m.due_at)
        beat(m, refusal(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS), now)
    assert 12.0 <= now < 13.2


@pytest.mark.parametrize("code", [ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID, ErrorCode.UNKNOWN_SERVER_ERROR])
def test_final_answer_to_a_leave_ends_it(code: ErrorCode) -> None:
    m = stable(keys(0))
    m.leave(9.0, 5.0)
    beat(m, refusal(code), 9.0)
    assert (m.state, m.error) == (S.UNSUBSCRIBED, None)


def test_member_that_never_asked_to_join_leaves_without_a_request() -> None:
    m = member()
    m.subscribe(ORDERS, 0.0)
    m.leave(0.0, 5.0)
    assert (m.state, m.due_at) == (S.UNSUBSCRIBED, float("inf"))


def test_leave_follows_the_heartbeat_in_flight() -> None:
    """The program leaves while the joining heartbeat is in flight; the response to that arrives afterwards."""
    m = member()
    m.subscribe(ORDERS, 0.0)
    m.next_request(0.0)
    m.leave(0.1, 5.0)
    m.on_response(ok(1, keys(0)), 0.2)
    assert (m.state, m.target_keys) == (S.LEAVING, None)
    assert beat(m, ok(-1), 0.2).member_epoch == -1


def test_subscribing_while_leaving_joins_after_it() -> None:
    m = stable(keys(0))
    m.leave(9.0, 5.0)
    m.subscribe(Topics(("teas",)), 9.0)
    beat(m, ok(-1), 9.0)
    assert m.state is S.JOINING
    assert beat(m, ok(7, NONE), m.due_at).subscribed_topic_names == ["teas"]


@pytest.mark.parametrize("state", [S.FENCED, S.STALE, S.FAILED])
def test_member_outside_the_group_leaves_at_once(state: MemberState) -> None:
    m = stable(keys(0))
    if state is S.STALE:
        m.on_poll_expired(301.0, 4.0)
        beat(m, ok(-1), 4.0)
    else:
        beat(m, refusal(ErrorCode.FENCED_MEMBER_EPOCH if state is S.FENCED else ErrorCode.INVALID_REQUEST), m.due_at)
        if m.due_at < 9.0:
            beat(m, ok(-1), m.due_at)
    assert m.state is state
    m.leave(9.0, 5.0)
    assert (m.state, m.due_at) == (S.UNSUBSCRIBED, float("inf"))


# -- a program that stops calling ------------------------------------------------------------------------------------------


def test_program_that_does_not_poll_leaves_and_joins_again_when_it_does() -> None:
    m = stable(keys(0))
    m.on_poll_expired(301.5, 302.0)
    assert (m.state, m.owned_keys, m.poll_gap_s) == (S.STALE, NONE, 301.5)
    assert beat(m, ok(-1), 302.0).member_epoch == -1
    m.on_released(m.tenure, 303.0)
    assert (m.state, m.due_at) == (S.STALE, float("inf"))
    m.on_poll(304.0)
    assert m.state is S.JOINING
    beat(m, ok(1, NONE), 304.0)
    assert (m.state, m.poll_gap_s) == (S.STABLE, None)


def test_program_that_returns_before_the_leave_was_sent_joins_after_it() -> None:
    m = stable(keys(0))
    m.on_poll_expired(301.5, 302.0)
    m.on_poll(302.0)
    m.on_released(m.tenure, 302.0)
    assert m.state is S.STALE
    assert beat(m, ok(-1), 302.0).member_epoch == -1
    assert beat(m, ok(1, NONE), m.due_at).member_epoch == 0


def test_program_that_still_holds_partitions_does_not_join() -> None:
    m = stable(keys(0))
    m.on_poll_expired(301.5, 302.0)
    beat(m, ok(-1), 302.0)
    m.on_poll(303.0)
    assert m.state is S.STALE
    m.on_released(m.tenure, 304.0)
    assert m.state is S.JOINING


# -- validity ----------------------------------------------------------------------------------------------------------


def test_partitions_are_relied_on_for_three_intervals() -> None:
    m = stable(keys(0))
    assert m.valid_until == SESSION_INTERVALS * 3.0
    now = m.due_at
    m.next_request(now)
    m.on_response(ok(5), now + 0.5)
    assert m.valid_until == now + SESSION_INTERVALS * 3.0, "counted from when the heartbeat was sent"
    m.next_request(m.due_at)
    m.on_failure(BrokerError(ErrorCode.NETWORK_EXCEPTION), m.due_at)
    assert m.valid_until == now + SESSION_INTERVALS * 3.0
    beat(m, refusal(ErrorCode.FENCED_MEMBER_EPOCH), m.due_at)
    assert m.valid_until == float("-inf")


def bounded(session_timeout_ms: int = 9000, grace_ms: int = 1000) -> ConsumerGroupHeartbeatResponse:
    response = ok(5)
    response.session_timeout_ms, response.connection_loss_grace_ms = session_timeout_ms, grace_ms
    return response


def test_partitions_are_relied_on_for_the_session_that_the_coordinator_names() -> None:
    m = stable(keys(0))
    beat(m, bounded(20_000), 10.0)
    assert m.valid_until == 30.0


def test_lost_connection_shortens_the_trust() -> None:
    """The coordinator soon removes a member that has closed the connection and does not return."""
    m = stable(keys(0))
    beat(m, bounded(), 10.0)
    m.on_connection_lost(12.0)
    assert (m.due_at, m.valid_until) == (12.0, 13.0)
    m.next_request(12.0)
    m.on_failure(BrokerError(ErrorCode.NETWORK_EXCEPTION), 12.1)
    m.on_connection_lost(12.5)
    assert m.valid_until == 13.0, "counted from the first loss"
    beat(m, bounded(), m.due_at)
    assert m.valid_until > 20.0


def test_coordinator_without_a_grace_keeps_the_session_after_a_lost_connection() -> None:
    """A coordinator grants no grace to a static member, and one of an older version grants none at all."""
    m = stable(keys(0))
    beat(m, bounded(grace_ms=0), 10.0)
    m.on_connection_lost(12.0)
    assert m.valid_until == 19.0


def test_every_state_has_its_transitions() -> None:
    assert set(TRANSITIONS) == set(MemberState)
    assert set().union(*TRANSITIONS.values()) == set(MemberState)


# -- many members ------------------------------------------------------------------------------------------------------

PARTITIONS = [(TOPIC, index) for index in range(4)]


class Program:
    """A consumer around the core, on another thread: it takes and gives up partitions by a view that is older than the core, and
    its reports arrive late."""

    def __init__(self, number: int) -> None:
        self.membership = Membership(Identity("group", f"m{number}"), Random(number))
        self.owned: set[tuple[bytes, int]] = set()
        """The partitions that it reads."""
        self.tenure = 0
        self.view: tuple[int, Keys | None, Keys] = (0, None, NONE)
        """The tenure, target and owned partitions of the membership when the program last looked."""
        self.said: list[Callable[[float], None]] = []
        """The program's reports that the membership has not received yet."""
        self.request: ConsumerGroupHeartbeatRequest | None = None
        """The request that the coordinator has not received yet."""
        self.response: ConsumerGroupHeartbeatResponse | None = None
        """The response that the member has not received yet."""

    def reads(self, now: float) -> set[tuple[bytes, int]]:
        """The partitions whose records the program may get now. A call that returns records looks at the core's newest state."""
        m = self.membership
        return self.owned if self.tenure == m.tenure and now < m.valid_until else set()

    def look(self) -> None:
        m = self.membership
        self.view = m.tenure, m.target_keys, m.owned_keys

    def step(self) -> None:
        """One step, based on the view."""
        m, (tenure, target, owned) = self.membership, self.view
        if self.tenure != tenure:
            self.owned, self.tenure = set(), tenure
            self.said.append(lambda now: m.on_released(tenure, now))
        elif target is not None and owned - target:
            gone = owned - target
            self.owned -= gone
            self.said.append(lambda now: m.on_given_up(tenure, gone, now))
        elif target is not None and target - self.owned:
            self.owned.add(min(target - self.owned))

    def be_heard(self, now: float) -> None:
        if self.said:
            self.said.pop(0)(now)


NUMBERS = st.integers(0, 1)
FATES = st.sampled_from(["answered", "answered", "request lost", "response lost"])


class Group(RuleBasedStateMachine):
    """Members that join, leave, stall and lose messages; a coordinator that fails over and removes those that are silent."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.group = ModelGroup(list(PARTITIONS))
        self.programs = [Program(number) for number in range(2)]

    @rule(number=NUMBERS)
    def subscribe(self, number: int) -> None:
        self.programs[number].membership.subscribe(ORDERS, self.now)

    @rule(number=NUMBERS)
    def unsubscribe(self, number: int) -> None:
        program = self.programs[number]
        program.owned = set()
        program.membership.leave(self.now, 5.0)
        program.look()
        program.tenure = program.membership.tenure

    @rule(number=NUMBERS)
    def let_the_program_look(self, number: int) -> None:
        self.programs[number].look()

    @rule(number=NUMBERS)
    def let_the_program_run(self, number: int) -> None:
        self.programs[number].step()

    @rule(number=NUMBERS)
    def let_the_membership_hear(self, number: int) -> None:
        self.programs[number].be_heard(self.now)

    @rule(number=NUMBERS)
    def stall(self, number: int) -> None:
        self.programs[number].membership.on_poll_expired(301.0, self.now)

    @rule(number=NUMBERS)
    def poll(self, number: int) -> None:
        self.programs[number].membership.on_poll(self.now)

    @rule(number=NUMBERS, fate=FATES)
    def send(self, number: int, fate: str) -> None:
        program = self.programs[number]
        if program.request is None and program.membership.due_at <= self.now:
            program.request = program.membership.next_request(self.now)
            program.response = None if fate == "request lost" else self.group.heartbeat(program.request, self.now)

    @rule(number=NUMBERS, fate=FATES)
    def answer(self, number: int, fate: str) -> None:
        program = self.programs[number]
        if program.request is None:
            return
        program.request, response = None, program.response
        if response is not None and fate == "answered":
            program.membership.on_response(response, self.now)
        else:
            program.membership.on_failure(BrokerError(ErrorCode.NETWORK_EXCEPTION), self.now)

    @rule(seconds=st.sampled_from([0.05, 0.5, 3.0]))
    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.group.expire(self.now)
        self.no_partition_is_read_twice()

    @rule()
    def fail_over(self) -> None:
        self.group.fail_over(self.now)

    @rule(silent=st.sampled_from([None, 0, 1]), seconds=st.integers(1, 12))
    def live(self, silent: int | None, seconds: int) -> None:
        """Let time pass without faults for all but one member, which sends nothing."""
        for _ in range(2 * seconds):
            for number, program in enumerate(self.programs):
                if number != silent:
                    self._run(number, program)
            self.pass_time(0.5)

    def _run(self, number: int, program: Program) -> None:
        program.membership.on_poll(self.now)
        program.look()
        program.step()
        while program.said:
            program.be_heard(self.now)
        self.answer(number, "answered")
        self.send(number, "answered")
        self.answer(number, "answered")

    @invariant()
    def no_partition_is_read_twice(self) -> None:
        read = [program.reads(self.now) for program in self.programs]
        assert sum(map(len, read)) == len(set().union(*read)), read

    @invariant()
    def what_is_read_is_owned(self) -> None:
        for program in self.programs:
            assert program.reads(self.now) <= program.membership.owned_keys

    @rule()
    def a_calm_time_settles_everything(self) -> None:
        """Without faults, each member reaches the state that its subscription asks for, and together they own all partitions."""
        self.live(None, 25)
        for program in self.programs:
            wants = program.membership.topics is not None
            assert program.membership.state is (S.STABLE if wants else S.UNSUBSCRIBED)
        in_group = [program for program in self.programs if program.membership.topics is not None]
        assert not in_group or set().union(*(program.owned for program in in_group)) == set(PARTITIONS)


TestGroup = Group.TestCase
TestGroup.settings = settings(max_examples=250, stateful_step_count=40, deadline=None)
