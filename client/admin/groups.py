"""The admin client's calls about consumer groups: list, describe and delete them, their members, their offsets, and their lag.

Each group belongs to a coordinator, and a call about several groups asks all of their coordinators at once. No call fails as a
whole because one broker does not answer: the groups for which only that broker could answer have its error.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from strandline.client.admin.classic_assignment import CONSUMER_PROTOCOL, decode_assignment
from strandline.client.admin.coordinator_fan_out import Asked, CoordinatorFanOut, or_raise
from strandline.client.admin.every_broker import ask_every_broker
from strandline.client.admin.leader_offsets import OffsetQuestions
from strandline.client.admin.requests import error_in
from strandline.client.admin.topic_descriptions import TopicDescriptions
from strandline.client.admin_types import (
    GroupDescription,
    GroupLag,
    GroupListing,
    GroupMemberDescription,
    GroupMemberResult,
    GroupOffsetResult,
    GroupResult,
    GroupSummary,
    PartitionLag,
)
from strandline.client.arguments import check_encodes, checked_commits, checked_list, checked_partitions
from strandline.client.consumer.group.membership import by_topic_id
from strandline.client.consumer.records import OffsetAndMetadata, TopicPartition
from strandline.client.errors import RequestFailed, UnknownTopic, UsageError, describe, no_such_partition
from strandline.protocol import apis
from strandline.protocol.errors import ErrorCode, StrandlineError, to_code
from strandline.protocol.messages import admin as metadata
from strandline.protocol.messages import groups as messages
from strandline.protocol.messages.data import LATEST_TIMESTAMP
from strandline.protocol.partitions import TopicIdPartition

NO_MEMBER = ""
REASON = "removed by an administrator"

Committed = dict[TopicPartition, OffsetAndMetadata]


class GroupCalls(TopicDescriptions):
    """Lists, describes, changes and deletes consumer groups."""

    async def list_groups(
        self, *, states: Iterable[str] = (), types: Iterable[str] = (), timeout_ms: float = 30_000
    ) -> GroupListing:
        """The groups of the cluster, sorted; those in these states ("Stable", "Empty", ...) and of these types ("consumer",
        "classic") only, if some are given. Each broker lists the groups that it coordinates; `errors` of the result has the
        brokers that have not answered within `timeout_ms`, with their errors."""
        request = messages.ListGroupsRequest(checked_list("states", states), checked_list("types", types))
        found, errors = await ask_every_broker(self._running(), partial(self._list_groups_of, request), timeout_ms)
        return GroupListing(sorted(found, key=lambda group: group.group_id), errors)

    async def _list_groups_of(
        self, request: messages.ListGroupsRequest, broker_id: int, timeout_ms: float
    ) -> tuple[list[GroupSummary], StrandlineError | None]:
        """The groups of one broker, and an error if there may be more. A broker that is still loading groups lists those that are
        loaded."""
        timeout_ms = min(timeout_ms, self.options.request_timeout_ms)
        response = await self._running().connections.request(broker_id, apis.LIST_GROUPS, request, timeout_ms)
        assert isinstance(response, messages.ListGroupsResponse)
        found = [GroupSummary(g.group_id, g.group_state, g.group_type, g.protocol_type) for g in response.groups]
        return found, error_in(response.error_code, None, "ListGroups")

    # -- describing ---------------------------------------------------------------------------------------------------

    async def describe_groups(self, group_ids: Iterable[str], *, timeout_ms: float = 30_000) -> dict[str, GroupDescription]:
        """The state of each group, and its members with their partitions, for groups of both protocols (KIP-848 and classic). A
        group that does not exist, or whose coordinator has not answered within `timeout_ms`, has an `error`."""
        ids = _checked_groups(group_ids)
        answers = await self._fan_out(self._describe_newer, ids, timeout_ms)
        classic = [group_id for group_id, answer in answers.items() if _code_of(answer) == ErrorCode.GROUP_ID_NOT_FOUND]
        if classic:
            answers |= await self._fan_out(self._describe_classic, classic, timeout_ms)
        return {
            group_id: GroupDescription(group_id, error=answer) if isinstance(answer, StrandlineError) else answer
            for group_id, answer in answers.items()
        }

    async def _fan_out(self, ask: Any, group_ids: Sequence[str], timeout_ms: float) -> dict[str, Any]:
        return await CoordinatorFanOut(self._running(), ask, self._deadline(timeout_ms)).run(group_ids)

    async def _describe_newer(self, asked: Asked, group_ids: list[str]) -> dict[str, GroupDescription | StrandlineError]:
        request = messages.ConsumerGroupDescribeRequest(group_ids)
        response = await asked.request(apis.CONSUMER_GROUP_DESCRIBE, request)
        assert isinstance(response, messages.ConsumerGroupDescribeResponse)
        return {
            group.group_id: error_in(group.error_code, group.error_message, "ConsumerGroupDescribe")
            or GroupDescription(
                group.group_id,
                state=group.group_state,
                group_type="consumer",
                coordinator=asked.node_id,
                protocol=group.assignor_name,
                group_epoch=group.group_epoch,
                assignment_epoch=group.assignment_epoch,
                members=[_newer_member(member) for member in group.members],
            )
            for group in response.groups
        }

    async def _describe_classic(self, asked: Asked, group_ids: list[str]) -> dict[str, GroupDescription | StrandlineError]:
        response = await asked.request(apis.DESCRIBE_GROUPS, messages.DescribeGroupsRequest(group_ids))
        assert isinstance(response, messages.DescribeGroupsResponse)
        return {
            group.group_id: error_in(group.error_code, group.error_message, "DescribeGroups")
            or GroupDescription(
                group.group_id,
                state=group.group_state,
                group_type="classic",
                coordinator=asked.node_id,
                protocol=group.protocol_data,
                members=[_classic_member(member, group.protocol_type) for member in group.members],
            )
            for group in response.groups
        }

    # -- changing -----------------------------------------------------------------------------------------------------

    async def delete_groups(self, group_ids: Iterable[str], *, timeout_ms: float = 30_000) -> dict[str, GroupResult]:
        """Delete these groups and their offsets. Each has a result: see its `code`. NON_EMPTY_GROUP: it has members.
        GROUP_ID_NOT_FOUND: there is no such group. If its coordinator has not answered within `timeout_ms`, the group may be
        deleted all the same."""

        async def ask(asked: Asked, ids: list[str]) -> dict[str, GroupResult | StrandlineError]:
            response = await asked.request(apis.DELETE_GROUPS, messages.DeleteGroupsRequest(ids))
            assert isinstance(response, messages.DeleteGroupsResponse)
            return {
                deleted.group_id: GroupResult()
                if deleted.error_code == ErrorCode.GROUP_ID_NOT_FOUND and deleted.group_id in asked.repeated
                else error_in(deleted.error_code, deleted.error_message, "DeleteGroups") or GroupResult()
                for deleted in response.results
            }

        answers = await self._fan_out(ask, _checked_groups(group_ids), timeout_ms)
        return {
            group_id: GroupResult(_code_of(answer), str(answer)) if isinstance(answer, StrandlineError) else answer
            for group_id, answer in answers.items()
        }

    async def remove_group_members(
        self,
        group_id: str,
        member_ids: Iterable[str] | None = None,
        *,
        instance_ids: Iterable[str] = (),
        timeout_ms: float = 30_000,
    ) -> list[GroupMemberResult]:
        """Remove members from a group, by their member ids, or static members by their instance ids; all members if neither is
        given. Their partitions are assigned to the other members. A member that is removed and still runs joins again; a static
        member does not. Each member has a result: see its `code`. UNKNOWN_MEMBER_ID: the group has no such member.

        RequestFailed, for example with `code` GROUP_ID_NOT_FOUND; RequestTimeout."""
        leaving = [messages.LeavingMember(member_id, None, REASON) for member_id in checked_list("member_ids", member_ids or ())]
        leaving += [messages.LeavingMember(NO_MEMBER, name, REASON) for name in checked_list("instance_ids", instance_ids)]
        if member_ids is None and not leaving:
            description = (await self.describe_groups([group_id], timeout_ms=timeout_ms))[group_id]
            if description.error is not None:
                or_raise(description.error, timeout_ms)
            leaving = [messages.LeavingMember(m.member_id, m.instance_id, REASON) for m in description.members]
        if not leaving:
            return []

        async def ask(asked: Asked, ids: list[str]) -> dict[str, list[GroupMemberResult] | StrandlineError]:
            response = await asked.request(apis.LEAVE_GROUP, messages.LeaveGroupRequest(ids[0], leaving))
            assert isinstance(response, messages.LeaveGroupResponse)
            is_gone = ErrorCode.UNKNOWN_MEMBER_ID if asked.repeated else ErrorCode.NONE
            results = [
                GroupMemberResult(m.member_id, m.group_instance_id, to_code(0 if m.error_code == is_gone else m.error_code))
                for m in response.members
            ]
            return {ids[0]: error_in(response.error_code, None, "LeaveGroup") or results}

        results: list[GroupMemberResult] = await self._ask_one(ask, group_id, timeout_ms)
        return results

    async def _ask_one(self, ask: Any, group_id: str, timeout_ms: float) -> Any:
        """The result of a call about one group, or its error."""
        (checked,) = _checked_groups([group_id])
        return or_raise((await self._fan_out(ask, [checked], timeout_ms))[checked], timeout_ms)

    # -- offsets ------------------------------------------------------------------------------------------------------

    async def list_group_offsets(
        self,
        group_id: str,
        partitions: Iterable[TopicPartition | tuple[str, int]] | None = None,
        *,
        timeout_ms: float = 30_000,
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """The committed offsets of a group, of these partitions or of all. Partitions without one, and those of deleted topics,
        are left out. RequestFailed; RequestTimeout."""
        deadline = self._deadline(timeout_ms)
        keys = None if partitions is None else await self._keys(checked_partitions(partitions), deadline)
        found = await self._ask_one(self._offsets_of(keys), group_id, timeout_ms)
        names = {topic_id: tp.topic for topic_id, tp in _by_id(keys)} or await self._names(found, deadline)
        return _named(found, names)

    def _offsets_of(self, keys: Mapping[TopicIdPartition, TopicPartition] | None) -> Any:
        """A function that asks a coordinator for the committed offsets of groups, by topic id and partition."""
        topics = None if keys is None else by_topic_id(keys)

        async def ask(asked: Asked, ids: list[str]) -> dict[str, dict[TopicIdPartition, OffsetAndMetadata] | StrandlineError]:
            request = messages.OffsetFetchRequest([messages.OffsetFetchGroup(group_id, topics=topics) for group_id in ids])
            response = await asked.request(apis.OFFSET_FETCH, request)
            assert isinstance(response, messages.OffsetFetchResponse)
            return {
                group.group_id: error_in(group.error_code, group.error_message, "OffsetFetch")
                or {
                    (p.topic_id, p.partition): OffsetAndMetadata(p.committed_offset, p.metadata or "", p.committed_leader_epoch)
                    for p in group.partitions
                    if not p.error_code and p.committed_offset >= 0
                }
                for group in response.groups
            }

        return ask

    async def alter_group_offsets(
        self,
        group_id: str,
        offsets: Mapping[TopicPartition | tuple[str, int], OffsetAndMetadata | int | tuple[int, str]],
        *,
        timeout_ms: float = 30_000,
    ) -> dict[TopicPartition, GroupOffsetResult]:
        """Commit these offsets for a group without members; the group is created if it does not exist. Each partition has a
        result: see its `code`. UnknownTopic for a partition that does not exist; RequestFailed with `code` NON_EMPTY_GROUP if the
        group has members, because they would not use the new offsets; RequestTimeout."""
        wanted = checked_commits(offsets)
        keys = await self._keys(list(wanted), self._deadline(timeout_ms))
        partitions = [
            messages.OffsetCommitPartition(*key, offset.offset, offset.leader_epoch, offset.metadata)
            for key, offset in ((key, wanted[tp]) for key, tp in keys.items())
        ]

        async def ask(asked: Asked, ids: list[str]) -> dict[str, dict[TopicPartition, GroupOffsetResult] | StrandlineError]:
            request = messages.OffsetCommitRequest(ids[0], -1, NO_MEMBER, None, partitions)
            response = await asked.request(apis.OFFSET_COMMIT, request)
            assert isinstance(response, messages.OffsetCommitResponse)
            codes = {(p.topic_id, p.partition): to_code(p.error_code) for p in response.partitions}
            retriable = next((error for code in codes.values() if (error := _retriable(code, "OffsetCommit"))), None)
            if ErrorCode.UNKNOWN_MEMBER_ID in codes.values():
                return {ids[0]: _has_members()}
            return {ids[0]: retriable or _offset_results(keys, codes)}

        try:
            results: dict[TopicPartition, GroupOffsetResult] = await self._ask_one(ask, group_id, timeout_ms)
        except RequestFailed as e:
            raise (_has_members() if e.code == ErrorCode.UNKNOWN_MEMBER_ID else e) from None
        return results

    async def delete_group_offsets(
        self, group_id: str, partitions: Iterable[TopicPartition | tuple[str, int]], *, timeout_ms: float = 30_000
    ) -> dict[TopicPartition, GroupOffsetResult]:
        """Delete committed offsets of a group (KIP-496). Each partition has a result: see its `code`.
        GROUP_SUBSCRIBED_TO_TOPIC: a member is subscribed to its topic. UnknownTopic for a partition that does not exist;
        RequestFailed, for example with `code` GROUP_ID_NOT_FOUND; RequestTimeout."""
        keys = await self._keys(checked_partitions(partitions), self._deadline(timeout_ms))

        async def ask(asked: Asked, ids: list[str]) -> dict[str, dict[TopicPartition, GroupOffsetResult] | StrandlineError]:
            response = await asked.request(apis.OFFSET_DELETE, messages.OffsetDeleteRequest(ids[0], by_topic_id(keys)))
            assert isinstance(response, messages.OffsetDeleteResponse)
            if response.error_code == ErrorCode.GROUP_ID_NOT_FOUND and asked.repeated:
                # A group without members does not exist after an earlier attempt has deleted its last offset.
                return {ids[0]: _offset_results(keys, dict.fromkeys(keys, ErrorCode.NONE))}
            codes = {(p.topic_id, p.partition): to_code(p.error_code) for p in response.partitions}
            return {ids[0]: error_in(response.error_code, response.error_message, "OffsetDelete") or _offset_results(keys, codes)}

        results: dict[TopicPartition, GroupOffsetResult] = await self._ask_one(ask, group_id, timeout_ms)
        return results

    # -- lag ----------------------------------------------------------------------------------------------------------

    async def group_lag(self, group_ids: Iterable[str], *, timeout_ms: float = 30_000) -> dict[str, GroupLag]:
        """The lag of each group: for each partition with a committed offset, the end up to which consumers may read, minus that
        offset. A group whose coordinator has not answered within `timeout_ms` has an `error`; a partition whose leader has not
        answered has no end and no lag."""
        ids, deadline = _checked_groups(group_ids), self._deadline(timeout_ms)
        answers = await self._fan_out(self._offsets_of(None), ids, timeout_ms)
        by_key = [found for found in answers.values() if not isinstance(found, StrandlineError)]
        names = await self._names({key: offset for found in by_key for key, offset in found.items()}, deadline)
        committed = {
            group_id: answer if isinstance(answer, StrandlineError) else _named(answer, names)
            for group_id, answer in answers.items()
        }
        ends = await self._ends(
            {tp for found in committed.values() if not isinstance(found, StrandlineError) for tp in found}, deadline
        )
        return {
            group_id: GroupLag({}, found) if isinstance(found, StrandlineError) else GroupLag(_lags(found, ends))
            for group_id, found in committed.items()
        }

    async def _ends(self, tps: set[TopicPartition], deadline: float) -> dict[TopicPartition, int]:
        """The ends of these partitions, as far as their leaders answer. A leader that does not answer is asked until half of the
        time is over, so that the call does not take all of it."""
        if not tps:
            return {}
        until = self._loop_time() + (deadline - self._loop_time()) / 2
        wanted = dict.fromkeys(sorted(tps), LATEST_TIMESTAMP)
        found = await OffsetQuestions(self._running(), self._describe_existing).ask(wanted, until)
        return {tp: answer.offset for tp, answer in found.items() if answer is not None}

    async def _describe_existing(self, names: Sequence[str], deadline: float) -> list[Any]:
        return await self._describe(names, deadline, missing_ok=True)

    # -- topics -------------------------------------------------------------------------------------------------------

    async def _keys(self, tps: Sequence[TopicPartition], deadline: float) -> dict[TopicIdPartition, TopicPartition]:
        """These partitions, by topic id and number. UnknownTopic for a partition that does not exist."""
        topics = {topic.name: topic for topic in await self._describe(sorted({tp.topic for tp in tps}), deadline)}
        for tp in tps:
            if tp.partition >= len(topics[tp.topic].partitions):
                text = no_such_partition(len(topics[tp.topic].partitions))
                raise UnknownTopic(text, topic=tp.topic, partition=tp.partition)
        return {(topics[tp.topic].topic_id, tp.partition): tp for tp in tps}

    async def _names(self, keys: Iterable[TopicIdPartition], deadline: float) -> dict[bytes, str]:
        """The names of the topics of these partitions that exist."""
        ids = sorted({topic_id for topic_id, _ in keys})
        if not ids:
            return {}
        request = metadata.MetadataRequest([metadata.MetadataTopicRequest(None, topic_id) for topic_id in ids])
        response = await self._ask(apis.METADATA, request, metadata.MetadataResponse, None, deadline)
        return {topic.topic_id: topic.name for topic in response.topics if topic.name is not None and not topic.error_code}


def _checked_groups(group_ids: Iterable[str]) -> list[str]:
    """The ids of several groups, each once. UsageError for a single str, and for an item that is no non-empty str."""
    ids = list(dict.fromkeys(checked_list("groups", group_ids)))
    for group_id in ids:
        if not isinstance(group_id, str) or not group_id:
            raise UsageError(f"a group is named by a non-empty str, not {group_id!r}")
        check_encodes("the id of a group", group_id)
    return ids


def _retriable(code: ErrorCode, api: str) -> RequestFailed | None:
    error = error_in(code, None, api)
    return error if error is not None and error.retriable else None


def _has_members() -> RequestFailed:
    text = "the group has members: stop them first, because they would commit over these offsets"
    return RequestFailed(text, api="OffsetCommit", code=ErrorCode.NON_EMPTY_GROUP)


def _code_of(answer: object) -> ErrorCode:
    return getattr(answer, "code", None) or ErrorCode.REQUEST_TIMED_OUT


def _by_id(keys: Mapping[TopicIdPartition, TopicPartition] | None) -> list[tuple[bytes, TopicPartition]]:
    return [] if keys is None else [(topic_id, tp) for (topic_id, _), tp in keys.items()]


def _named(found: Mapping[TopicIdPartition, OffsetAndMetadata], names: Mapping[bytes, str]) -> Committed:
    named = {TopicPartition(names[key[0]], key[1]): offset for key, offset in found.items() if key[0] in names}
    return {tp: named[tp] for tp in sorted(named)}


def _offset_results(
    keys: Mapping[TopicIdPartition, TopicPartition], codes: Mapping[TopicIdPartition, ErrorCode]
) -> dict[TopicPartition, GroupOffsetResult]:
    results = {}
    for key, tp in keys.items():
        code = codes.get(key, ErrorCode.UNKNOWN_SERVER_ERROR)
        results[tp] = GroupOffsetResult(code, describe(code) if code else None)
    return results


def _lags(committed: Committed, ends: Mapping[TopicPartition, int]) -> dict[TopicPartition, PartitionLag]:
    lags = {}
    for tp, offset in committed.items():
        end = ends.get(tp)
        lags[tp] = PartitionLag(offset, end, None if end is None else max(0, end - offset.offset))
    return lags


def _newer_member(member: messages.ConsumerGroupMemberDescription) -> GroupMemberDescription:
    return GroupMemberDescription(
        member_id=member.member_id,
        instance_id=member.instance_id,
        client_id=member.client_id,
        host=member.client_host,
        rack_id=member.rack_id,
        member_epoch=member.member_epoch,
        subscribed_topics=tuple(member.subscribed_topic_names),
        pattern=member.subscribed_topic_regex or None,
        assignment=_partitions(member.assignment),
        target_assignment=_partitions(member.target_assignment),
        is_classic=member.member_type == 0,
    )


def _classic_member(member: messages.DescribedMember, protocol_type: str) -> GroupMemberDescription:
    is_consumer = protocol_type == CONSUMER_PROTOCOL
    return GroupMemberDescription(
        member_id=member.member_id,
        instance_id=member.group_instance_id,
        client_id=member.client_id,
        host=member.client_host,
        assignment=decode_assignment(member.member_assignment) if is_consumer else [],
        is_classic=True,
    )


def _partitions(listed: Iterable[messages.NamedTopicPartitions]) -> list[TopicPartition]:
    return sorted(TopicPartition(topic.topic_name, index) for topic in listed for index in topic.partitions)
