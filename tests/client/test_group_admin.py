"""The admin client's calls about groups: each broker answers for its own, and one that does not answer is marked."""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.client import Admin, GroupResult, OffsetAndMetadata, PartitionLag, TopicPartition
from strandline.client.admin.classic_assignment import decode_assignment
from strandline.client.errors import ClientError, RequestFailed, RequestTimeout, UnknownTopic, UsageError
from strandline.protocol import apis
from strandline.protocol.errors import ErrorCode
from strandline.protocol.messages import groups as messages
from strandline.protocol.messages.common import Message
from strandline.protocol.rpc.server import ServerRequest

from .group_world import P0, P1, P2, scripted
from .scripted import ScriptedBroker, ScriptedCluster
from .scripted_groups import ScriptedGroups

C = ErrorCode


class Described:
    """The descriptions that the brokers of a cluster return for their groups. A group belongs to the broker whose number is the
    last character of its id."""

    def __init__(self, cluster: ScriptedCluster, groups: ScriptedGroups) -> None:
        self.cluster = cluster
        self.groups = groups
        self.newer: dict[str, messages.DescribedConsumerGroup] = {}
        self.classic: dict[str, messages.DescribedGroup] = {}
        self.codes: dict[int, ErrorCode] = {}
        """The error of ListGroups, by broker."""
        self.left: list[messages.LeaveGroupRequest] = []
        self.deleted: list[str] = []
        self.lost_responses = 0
        """The number of changes to carry out without a response."""
        self.unknown: dict[str, int] = {}
        """How often the coordinator of a group is still looked up without success."""
        self.loading = 0
        """The number of deletions that coordinators reject because they are loading."""
        self.finds = 0

    def handlers(self, broker: ScriptedBroker) -> dict[int, object]:
        served = {
            apis.LIST_GROUPS: self.list_groups,
            apis.CONSUMER_GROUP_DESCRIBE: self.describe_newer,
            apis.DESCRIBE_GROUPS: self.describe_classic,
            apis.DELETE_GROUPS: self.delete,
            apis.LEAVE_GROUP: self.leave,
            apis.OFFSET_DELETE: self.delete_offsets,
            apis.OFFSET_FETCH: lambda _, request: self.groups._fetch(request),
            apis.OFFSET_COMMIT: lambda _, request: self.groups._commit(request),
            apis.FIND_COORDINATOR: self.find,
        }

        def handler(serve: object) -> object:
            def handle(request: ServerRequest) -> None:
                answer = serve(broker, request)  # type: ignore[operator]
                if self.lost_responses and request.api_key in (apis.DELETE_GROUPS, apis.LEAVE_GROUP, apis.OFFSET_DELETE):
                    self.lost_responses -= 1
                    request.connection.close()
                else:
                    request.reply(answer)

            return handle

        return {key: handler(serve) for key, serve in served.items()}

    def find(self, _: ScriptedBroker, request: ServerRequest) -> Message:
        body = request.body
        assert isinstance(body, messages.FindCoordinatorRequest)
        self.finds += 1
        found = []
        for key in body.keys:
            broker = self.cluster.brokers.get(int(key[-1]))
            if self.unknown.get(key, 0):
                self.unknown[key] -= 1
                broker = None
            if broker is None:
                found.append(messages.Coordinator(key, error_code=C.COORDINATOR_NOT_AVAILABLE))
            else:
                found.append(messages.Coordinator(key, broker.broker_id, "127.0.0.1", broker.port))
        return messages.FindCoordinatorResponse(found)

    def list_groups(self, broker: ScriptedBroker, request: ServerRequest) -> Message:
        body = request.body
        assert isinstance(body, messages.ListGroupsRequest)
        listed = [messages.ListedGroup(g, "consumer", d.group_state, "consumer") for g, d in self.newer.items()]
        listed += [messages.ListedGroup(g, "consumer", d.group_state, "classic") for g, d in self.classic.items()]
        mine = [g for g in listed if g.group_id[-1] == str(broker.broker_id)]
        wanted = [
            g
            for g in mine
            if g.group_state in (body.states or [g.group_state]) and g.group_type in (body.types or [g.group_type])
        ]
        return messages.ListGroupsResponse(self.codes.get(broker.broker_id, C.NONE), wanted)

    def describe_newer(self, _: ScriptedBroker, request: ServerRequest) -> Message:
        body = request.body
        assert isinstance(body, messages.ConsumerGroupDescribeRequest)
        missing = messages.DescribedConsumerGroup("", C.GROUP_ID_NOT_FOUND)
        found = [
            self.newer.get(g) or messages.DescribedConsumerGroup(g, missing.error_code, "no such group") for g in body.group_ids
        ]
        return messages.ConsumerGroupDescribeResponse(found)

    def describe_classic(self, _: ScriptedBroker, request: ServerRequest) -> Message:
        body = request.body
        assert isinstance(body, messages.DescribeGroupsRequest)
        found = [self.classic.get(g) or messages.DescribedGroup(g, C.GROUP_ID_NOT_FOUND, "no such group") for g in body.groups]
        return messages.DescribeGroupsResponse(found)

    def delete(self, _: ScriptedBroker, request: ServerRequest) -> Message:
        body = request.body
        assert isinstance(body, messages.DeleteGroupsRequest)
        results = []
        if self.is_loading():
            return messages.DeleteGroupsResponse([messages.DeletedGroup(g, C.COORDINATOR_LOAD_IN_PROGRESS) for g in body.groups])
        for group_id in body.groups:
            group = self.newer.get(group_id)
            code = C.GROUP_ID_NOT_FOUND if group is None else C.NON_EMPTY_GROUP if group.members else C.NONE
            if code == C.NONE:
                del self.newer[group_id]
                self.deleted.append(group_id)
            results.append(messages.DeletedGroup(group_id, code))
        return messages.DeleteGroupsResponse(results)

    def is_loading(self) -> bool:
        self.loading -= 1
        return self.loading >= 0

    def leave(self, _: ScriptedBroker, request: ServerRequest) -> Message:
        body = request.body
        assert isinstance(body, messages.LeaveGroupRequest)
        self.left.append(body)
        known = {m.member_id for m in self.newer[body.group_id].members}
        answers = [
            messages.LeftMember(m.member_id, m.group_instance_id, C.NONE if m.member_id in known else C.UNKNOWN_MEMBER_ID)
            for m in body.members
        ]
        self.newer[body.group_id].members = []
        return messages.LeaveGroupResponse(0, answers)

    def delete_offsets(self, _: ScriptedBroker, request: ServerRequest) -> Message:
        body = request.body
        assert isinstance(body, messages.OffsetDeleteRequest)
        if self.is_loading():
            return messages.OffsetDeleteResponse(C.COORDINATOR_LOAD_IN_PROGRESS)
        stored = self.groups.committed.get(body.group_id)
        if stored is None:
            return messages.OffsetDeleteResponse(C.GROUP_ID_NOT_FOUND)
        keys = [(t.topic_id, index) for t in body.topics for index in t.partitions]
        answers = []
        for key in keys:
            is_read = key[1] == 2
            if not is_read:
                stored.pop(key, None)
            answers.append(messages.OffsetDeletePartition(*key, C.GROUP_SUBSCRIBED_TO_TOPIC if is_read else C.NONE))
        if not stored:
            del self.groups.committed[body.group_id]
        return messages.OffsetDeleteResponse(partitions=answers)


@asynccontextmanager
async def described() -> AsyncIterator[tuple[ScriptedCluster, Described, Admin]]:
    cluster = ScriptedCluster()
    groups = ScriptedGroups(cluster)
    found = Described(cluster, groups)
    cluster.more_handlers = found.handlers  # type: ignore[assignment]
    async with cluster:
        cluster.create("orders", 3)
        async with Admin(bootstrap_servers=cluster.bootstrap) as admin:
            yield cluster, found, admin


def newer(
    group_id: str, *members: messages.ConsumerGroupMemberDescription, state: str = "Stable"
) -> messages.DescribedConsumerGroup:
    return messages.DescribedConsumerGroup(group_id, 0, None, state, 7, 6, "uniform", list(members))


def newer_member(member_id: str, *indexes: int) -> messages.ConsumerGroupMemberDescription:
    owned = [messages.NamedTopicPartitions(bytes(16), "orders", list(indexes))]
    return messages.ConsumerGroupMemberDescription(
        member_id,
        None,
        "rack",
        5,
        "client",
        "host",
        ["orders"],
        "",
        owned,
        [messages.NamedTopicPartitions(bytes(16), "orders", [0])],
        1,
    )


def classic_assignment(*tps: tuple[str, int], user_data: bytes | None = None) -> bytes:
    topics = sorted({topic for topic, _ in tps})
    out = struct.pack(">hi", 1, len(topics))
    for topic in topics:
        indexes = [index for name, index in tps if name == topic]
        out += struct.pack(">h", len(topic.encode())) + topic.encode() + struct.pack(f">i{len(indexes)}i", len(indexes), *indexes)
    return out + (struct.pack(">i", -1) if user_data is None else struct.pack(">i", len(user_data)) + user_data)


# -- listing and describing -------------------------------------------------------------------------------------------


async def test_groups_of_all_brokers_are_listed() -> None:
    async with described() as (_, there, admin):
        there.newer = {"b1": newer("b1"), "a2": newer("a2", state="Empty")}
        there.classic = {"c3": messages.DescribedGroup("c3", 0, None, "Stable", "consumer", "range")}
        listing = await admin.list_groups()
        assert [(g.group_id, g.state, g.group_type) for g in listing.groups] == [
            ("a2", "Empty", "consumer"),
            ("b1", "Stable", "consumer"),
            ("c3", "Stable", "classic"),
        ]
        assert listing.errors == {}
        assert [g.group_id for g in (await admin.list_groups(states=["Empty"])).groups] == ["a2"]
        assert [g.group_id for g in (await admin.list_groups(types=["classic"])).groups] == ["c3"]


@pytest.mark.parametrize("way", ["silent", "stopped"])
async def test_broker_that_does_not_answer_is_marked_in_a_list(way: str) -> None:
    async with described() as (cluster, there, admin):
        there.newer = {"b1": newer("b1"), "a2": newer("a2")}
        await admin.list_groups()
        await (cluster.brokers[2].stop() if way == "stopped" else asyncio.sleep(0))
        cluster.brokers[2].hanging = way == "silent"
        listing = await admin.list_groups(timeout_ms=600)
        assert [g.group_id for g in listing.groups] == ["b1"]
        assert list(listing.errors) == [2]
        assert isinstance(listing.errors[2], ClientError)
        cluster.brokers[2].answer_late()


async def test_broker_that_loads_groups_has_listed_some() -> None:
    async with described() as (_, there, admin):
        there.newer, there.codes = {"b1": newer("b1"), "a2": newer("a2")}, {2: C.COORDINATOR_LOAD_IN_PROGRESS}
        listing = await admin.list_groups(timeout_ms=300)
        assert [g.group_id for g in listing.groups] == ["a2", "b1"]
        assert listing.errors[2].code == C.COORDINATOR_LOAD_IN_PROGRESS


async def test_groups_of_both_protocols_are_described() -> None:
    async with described() as (_, there, admin):
        there.newer = {"b1": newer("b1", newer_member("m", 1, 0))}
        member = messages.DescribedMember("c", "static", "client", "host", b"", classic_assignment(("orders", 2), ("orders", 0)))
        there.classic = {"c3": messages.DescribedGroup("c3", 0, None, "Stable", "consumer", "range", [member])}
        found = await admin.describe_groups(["b1", "c3", "none2"])
        group = found["b1"]
        assert (group.state, group.group_type, group.coordinator, group.protocol) == ("Stable", "consumer", 1, "uniform")
        assert (group.group_epoch, group.assignment_epoch, group.error) == (7, 6, None)
        (m,) = group.members
        assert (m.member_id, m.rack_id, m.member_epoch, m.assignment, m.is_classic) == ("m", "rack", 5, [P0, P1], False)
        assert (m.subscribed_topics, m.pattern, m.target_assignment) == (("orders",), None, [P0])
        group = found["c3"]
        assert (group.group_type, group.coordinator, group.protocol) == ("classic", 3, "range")
        assert [(m.instance_id, m.assignment, m.is_classic) for m in group.members] == [("static", [P0, P2], True)]
        error = found["none2"].error
        assert isinstance(error, RequestFailed)
        assert error.code == C.GROUP_ID_NOT_FOUND


async def test_unreachable_coordinator_is_an_error_of_its_groups_alone() -> None:
    async with described() as (cluster, there, admin):
        there.newer = {"b1": newer("b1"), "a2": newer("a2")}
        cluster.brokers[2].hanging = True
        found = await admin.describe_groups(["b1", "a2", "lost9"], timeout_ms=2000)
        assert found["b1"].state == "Stable"
        assert isinstance(found["a2"].error, ClientError)
        assert "no coordinator now" in str(found["lost9"].error)
        cluster.brokers[2].answer_late()


async def test_no_groups_ask_no_broker() -> None:
    async with described() as (_, there, admin):
        assert await admin.describe_groups([]) == {}
        assert there.finds == 0


@pytest.mark.parametrize("wrong", ["b1", [""], [5], ["\ud800"]])
async def test_wrong_names_of_groups_are_refused(wrong: object) -> None:
    async with described() as (_, _, admin):
        with pytest.raises(UsageError):
            await admin.describe_groups(wrong)  # type: ignore[arg-type]


# -- the assignments of classic members --------------------------------------------------------------------------------


@given(
    st.lists(
        st.tuples(st.text(st.characters(codec="utf-8"), min_size=1, max_size=20), st.integers(0, 2**31 - 1)),
        unique=True,
        max_size=20,
    ),
    st.none() | st.binary(max_size=20),
)
def test_classic_assignments_are_decoded(tps: list[tuple[str, int]], user_data: bytes | None) -> None:
    assert decode_assignment(classic_assignment(*tps, user_data=user_data)) == sorted(TopicPartition(*tp) for tp in tps)


@given(st.binary(max_size=64))
def test_any_bytes_are_an_assignment_or_none(data: bytes) -> None:
    """A member writes what it likes."""
    assert isinstance(decode_assignment(data), list)


def test_counts_that_lie_cost_nothing() -> None:
    claim = struct.pack(">hi", 1, 2**31 - 1) + struct.pack(">h", 1) + b"a" + struct.pack(">i", 2**31 - 1)
    started = time.process_time()
    assert decode_assignment(claim) == []
    assert time.process_time() - started < 0.5


# -- changing ----------------------------------------------------------------------------------------------------------


async def test_groups_are_deleted_each_with_a_result() -> None:
    async with described() as (_, there, admin):
        there.newer = {"b1": newer("b1"), "a2": newer("a2", newer_member("m"))}
        results = await admin.delete_groups(["b1", "a2", "none3"])
        assert results["b1"] == GroupResult()
        assert [results[name].code for name in ("a2", "none3")] == [C.NON_EMPTY_GROUP, C.GROUP_ID_NOT_FOUND]
        assert results["a2"].message is not None
        assert there.deleted == ["b1"]


async def test_deletion_whose_response_was_lost_has_succeeded() -> None:
    async with described() as (_, there, admin):
        there.newer, there.lost_responses = {"b1": newer("b1")}, 1
        assert await admin.delete_groups(["b1"]) == {"b1": GroupResult()}


async def test_group_that_was_not_asked_for_is_not_counted_as_deleted() -> None:
    """A repeated request may contain a group whose coordinator was not known before."""
    async with described() as (_, there, admin):
        there.newer, there.lost_responses, there.unknown = {"b1": newer("b1")}, 1, {"none1": 1}
        results = await admin.delete_groups(["b1", "none1"])
        assert (results["b1"], results["none1"].code) == (GroupResult(), C.GROUP_ID_NOT_FOUND)


async def test_group_that_a_loading_coordinator_was_asked_to_delete_is_not_counted_as_deleted() -> None:
    """It rejects the request before it looks for the group, so the group never existed: its name is misspelled, for example."""
    async with described() as (_, there, admin):
        there.loading = 1
        assert (await admin.delete_groups(["none1"]))["none1"].code == C.GROUP_ID_NOT_FOUND
        there.loading = 1
        with pytest.raises(RequestFailed) as raised:
            await admin.delete_group_offsets("none1", [P0])
        assert raised.value.code == C.GROUP_ID_NOT_FOUND


async def test_members_are_removed() -> None:
    async with described() as (_, there, admin):
        there.newer = {"b1": newer("b1", newer_member("m"), newer_member("n"))}
        results = await admin.remove_group_members("b1", ["m", "x"], instance_ids=["static"])
        assert [(r.member_id, r.instance_id, r.code) for r in results] == [
            ("m", None, C.NONE),
            ("x", None, C.UNKNOWN_MEMBER_ID),
            ("", "static", C.UNKNOWN_MEMBER_ID),
        ]
        there.newer = {"b1": newer("b1", newer_member("m"), newer_member("n"))}
        assert [r.member_id for r in await admin.remove_group_members("b1")] == ["m", "n"]
        assert await admin.remove_group_members("b1") == []
        with pytest.raises(RequestFailed, match="no such group"):
            await admin.remove_group_members("none2")


# -- offsets -----------------------------------------------------------------------------------------------------------


async def test_offsets_of_a_group_are_listed() -> None:
    async with described() as (cluster, there, admin):
        there.groups.store("orders", 0, 5, "b1", epoch=3)
        there.groups.store("orders", 2, 9, "b1")
        everything = {P0: OffsetAndMetadata(5, "", 3), P2: OffsetAndMetadata(9)}
        assert await admin.list_group_offsets("b1") == everything
        assert await admin.list_group_offsets("b1", [P1, P2]) == {P2: OffsetAndMetadata(9)}
        there.groups.committed["b1"][b"x" * 16, 0] = there.groups.committed["b1"][cluster.topics["orders"], 0]
        assert await admin.list_group_offsets("b1") == everything, "a deleted topic has no name"
        assert await admin.list_group_offsets("none2") == {}
        with pytest.raises(UnknownTopic):
            await admin.list_group_offsets("b1", [("teas", 0)])


async def test_offsets_of_an_empty_group_are_altered() -> None:
    async with described() as (_, there, admin):
        results = await admin.alter_group_offsets("b1", {P0: 7, P1: (8, "note")})
        assert {tp: result.code for tp, result in results.items()} == {P0: C.NONE, P1: C.NONE}
        assert (there.groups.offset("orders", 0, "b1"), there.groups.offset("orders", 1, "b1")) == (7, 8)
        request = there.groups.commits[-1]
        assert (request.member_id, request.generation_id_or_member_epoch) == ("", -1)
        with pytest.raises(UnknownTopic, match="3 partitions"):
            await admin.alter_group_offsets("b1", {("orders", 3): 7})


async def test_offsets_of_a_group_with_members_are_left_alone() -> None:
    async with described() as (_, there, admin):
        group = there.groups.group("b1")
        join = messages.ConsumerGroupHeartbeatRequest("b1", "m", 0, None, None, 5, ["orders"], None, None, [])
        assert group.heartbeat(join).error_code == 0
        with pytest.raises(RequestFailed, match="the group has members: stop them first") as raised:
            await admin.alter_group_offsets("b1", {P0: 7})
        assert raised.value.code == C.NON_EMPTY_GROUP
        assert there.groups.offset("orders", 0, "b1") is None


async def test_offsets_are_deleted_each_with_a_result() -> None:
    async with described() as (_, there, admin):
        for index in range(3):
            there.groups.store("orders", index, 5, "b1")
        results = await admin.delete_group_offsets("b1", [P0, P2])
        assert {tp: result.code for tp, result in results.items()} == {P0: C.NONE, P2: C.GROUP_SUBSCRIBED_TO_TOPIC}
        assert results[P2].message is not None
        assert list(await admin.list_group_offsets("b1")) == [P1, P2]
        with pytest.raises(RequestFailed) as raised:
            await admin.delete_group_offsets("none2", [P0])
        assert raised.value.code == C.GROUP_ID_NOT_FOUND


async def test_deletion_of_the_last_offset_whose_response_was_lost_has_succeeded() -> None:
    """A group without members does not exist after its last offset is deleted."""
    async with described() as (_, there, admin):
        there.groups.store("orders", 0, 5, "b1")
        there.lost_responses = 1
        results = await admin.delete_group_offsets("b1", [P0])
        assert {tp: result.code for tp, result in results.items()} == {P0: C.NONE}


async def test_call_about_one_group_ends_at_its_time_limit() -> None:
    async with described() as (cluster, _, admin):
        cluster.brokers[1].hanging = True
        with pytest.raises(RequestTimeout, match="the coordinator has not answered"):
            await admin.list_group_offsets("b1", timeout_ms=400)
        cluster.brokers[1].answer_late()


# -- lag ---------------------------------------------------------------------------------------------------------------


async def test_lag_is_counted_to_the_end_of_each_log() -> None:
    async with scripted(partitions=3, records=20) as (cluster, groups):
        groups.store("orders", 0, 5, "b1")
        groups.store("orders", 1, 20, "b1")
        groups.store("orders", 2, 25, "b1")
        async with Admin(bootstrap_servers=cluster.bootstrap) as admin:
            found = (await admin.group_lag(["b1"]))["b1"]
        assert found.partitions == {
            P0: PartitionLag(OffsetAndMetadata(5), 20, 15),
            P1: PartitionLag(OffsetAndMetadata(20), 20, 0),
            P2: PartitionLag(OffsetAndMetadata(25), 20, 0),
        }
        assert (found.total, found.error) == (15, None)


async def test_lag_of_what_does_not_answer_is_marked() -> None:
    """One leader and one coordinator are silent. The result has the others' part, and arrives within the time limit."""
    async with described() as (cluster, there, admin):
        for index in range(3):
            there.groups.store("orders", index, 0, "b1")
        there.groups.store("orders", 0, 0, "a2")
        await admin.group_lag(["b1", "a2"])
        cluster.brokers[2].hanging = True  # Leads partition 1, and coordinates a2.
        found = await admin.group_lag(["b1", "a2"], timeout_ms=1000)
        assert {tp: lag.lag for tp, lag in found["b1"].partitions.items()} == {P0: 0, P1: None, P2: 0}
        assert isinstance(found["a2"].error, ClientError)
        assert found["a2"].partitions == {}
        cluster.brokers[2].answer_late()
