"""The groups and committed offsets of one partition of `__consumer_offsets`: a state machine without a clock, a log or a network.

Every method that answers a request returns a `Result`, or raises the `BrokerError` that the asker gets. `replay` applies one
record; the loader and the shell call it, and nothing else changes the state that the records describe. The protocols keep state
that is in no record, for example sessions and rebalances in progress; a new coordinator begins with a fresh one (`on_loaded`).

An id has at most one group: of the newer protocol or of the classic one (`Group`). An id without a group may have committed
offsets, of consumers that store positions without a membership.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from strandline.broker.coordination.replies import Asker, Replies
from strandline.broker.groups.classic.protocol import ClassicProtocol
from strandline.broker.groups.config import GroupConfig
from strandline.broker.groups.consumer.protocol import ConsumerProtocol
from strandline.broker.groups.deadlines import Deadlines
from strandline.broker.groups.group_config_manager import GroupConfigManager
from strandline.broker.groups.migration.classic_members import ClassicMembers
from strandline.broker.groups.offsets import OffsetStore
from strandline.broker.groups.records.types import GroupMetadataRecord, GroupRecord, OffsetCommitRecord
from strandline.broker.groups.result import RequestContext, Result
from strandline.broker.groups.state import CLASSIC, CONSUMER, GroupTable
from strandline.controller.metadata.image import MetadataImage, TopicImage
from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.messages.groups import (
    DeletedGroup,
    DescribedGroup,
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    ListedGroup,
    OffsetCommitRequest,
    OffsetDeleteRequest,
    OffsetFetchGroup,
    OffsetFetchGroupResponse,
    SyncGroupRequest,
)
from strandline.protocol.messages.transactions import TxnOffsetCommitRequest
from strandline.protocol.records.batch import NO_PRODUCER_ID

_EXPIRY = "expiry of offsets"
"""The key of the deadline at which expired offsets are deleted."""


class GroupShard:
    """The state of the group coordinator for one partition, in one leader epoch."""

    def __init__(
        self, config: GroupConfig, random: Random, image: MetadataImage, settings: GroupConfigManager | None = None
    ) -> None:
        """`settings`: the configuration of each group; by default that of `config`."""
        self._config = config
        self.groups = GroupTable()
        self.deadlines = Deadlines()
        self.offsets = OffsetStore(config, self.groups)
        self.consumer = ConsumerProtocol(config, self.groups, self.deadlines, image, settings)
        self.classic = ClassicProtocol(config, self.groups, self.deadlines, random)
        self.classic_members = ClassicMembers(config, self.groups, self.deadlines, random, self.consumer, self.classic)

    def replay(self, record: GroupRecord, offset: int, producer_id: int = NO_PRODUCER_ID) -> None:
        """Apply a record. `offset`: its offset in the log. `producer_id`: the producer to whose transaction it belongs. Records
        in transactions are always offset commits."""
        if isinstance(record, OffsetCommitRecord):
            if producer_id == NO_PRODUCER_ID:
                self.offsets.replay(record, offset)
            else:
                self.offsets.replay_pending(record, offset, producer_id)
        elif isinstance(record, GroupMetadataRecord):
            self.classic.replay(record)
        else:
            self.consumer.replay(record)

    def replay_marker(self, producer_id: int, is_commit: bool, offset: int) -> int:
        """Apply the end of a transaction. Returns the number of pending offsets that it has committed."""
        return self.offsets.replay_marker(producer_id, is_commit, offset)

    def on_loaded(self, now: float, now_ms: int) -> Iterator[Result]:
        """Start the sessions of all members after a load, and finish what the previous coordinator had not done yet."""
        self._schedule_expiry(now)
        yield from self.consumer.on_loaded(now, now_ms)
        yield from self.classic.on_loaded(now, now_ms)
        yield self.offsets.on_loaded(self.image)

    @property
    def image(self) -> MetadataImage:
        """The newest metadata that this shard has."""
        return self.consumer.image

    def use_image(self, image: MetadataImage) -> None:
        self.consumer.image = image

    def on_image(
        self, image: MetadataImage, changed: set[str], removed: list[TopicImage], now: float, now_ms: int
    ) -> Iterator[Result]:
        """React to new metadata. `changed`: the names of topics that were created, deleted or changed. `removed`: the topics that
        were deleted."""
        yield from self.consumer.on_image(image, changed, now, now_ms)
        if removed:
            yield self.offsets.delete_topics(removed)

    # -- requests about a group of either type ------------------------------------------------------------------------

    def join(self, body: JoinGroupRequest, context: RequestContext) -> Result:
        return self._of_members(body.group_id).join(
            body,
            context,
            requires_known_member_id=body.requires_known_member_id,
            supports_skip_assignment=body.supports_skip_assignment,
        )

    def sync(self, body: SyncGroupRequest, context: RequestContext) -> Result:
        return self._of_members(body.group_id).sync(body, context)

    def heartbeat(self, body: HeartbeatRequest, context: RequestContext) -> Result:
        return self._of_members(body.group_id).heartbeat(body, context)

    def _of_members(self, group_id: str) -> ClassicProtocol | ClassicMembers:
        """The part of the shard that answers classic members of this group. The group may have the newer protocol (online
        migration); if it is empty, it is replaced by a classic group."""
        group = self.groups.get(group_id)
        is_newer = group is not None and group.group_type == CONSUMER and not group.is_empty
        return self.classic_members if is_newer else self.classic

    def leave(self, body: LeaveGroupRequest, context: RequestContext) -> Result:
        """Remove members that leave, or that an operator removes; static members by their instance ids alone."""
        group = self.groups.get(body.group_id)
        if group is not None and group.group_type == CONSUMER:
            return self.consumer.remove_members(body, context)
        return self.classic.leave(body, context)

    def commit_offsets(self, body: OffsetCommitRequest, context: RequestContext) -> Result:
        return self.offsets.commit(body, self.image, context)

    def commit_offsets_in_transaction(self, body: TxnOffsetCommitRequest, context: RequestContext) -> Result:
        return self.offsets.commit_in_transaction(body, self.image, context)

    def delete_offsets(self, body: OffsetDeleteRequest, context: RequestContext) -> Result:
        return self.offsets.delete(body, self.image, context)

    def check_offset_fetch(self, asked: OffsetFetchGroup) -> None:
        """Check the member that fetches offsets. Raises `BrokerError`."""
        group = self.groups.get(asked.group_id)
        if group is not None:
            group.check_offset_fetch(asked.member_id, asked.member_epoch)

    def fetch_offsets(self, asked: OffsetFetchGroup, high_watermark: int) -> OffsetFetchGroupResponse:
        """The offsets that are committed below the high watermark."""
        return self.offsets.fetch(asked, self.image, high_watermark)

    def fetch_stable_offsets(self, asked: OffsetFetchGroup) -> OffsetFetchGroupResponse:
        """The newest offsets, with an error for those that are unstable. The caller sends them when all records that the shard
        has replayed are committed."""
        return self.offsets.fetch_stable(asked, self.image)

    def list_groups(self) -> Iterator[ListedGroup]:
        """All groups, including ids that have only committed offsets."""
        for group in self.groups:
            yield ListedGroup(group.group_id, group.protocol_type, group.state_name, group.group_type)
        for group_id in self.offsets.groups_with_offsets():
            if self.groups.get(group_id) is None:
                yield ListedGroup(group_id, "", "Empty", CLASSIC)

    def describe_classic(self, group_id: str) -> DescribedGroup:
        """A group of the classic protocol. As in `list_groups`, an id with only committed offsets is an empty group."""
        if self.groups.get(group_id) is None and self.offsets.has_offsets(group_id):
            return DescribedGroup(group_id, group_state="Empty")
        return self.classic.describe(group_id)

    def delete_group(self, group_id: str, asker: Asker) -> Result:
        """Delete a group without members, and its offsets. Raises NON_EMPTY_GROUP or GROUP_ID_NOT_FOUND."""
        group = self.groups.get(group_id)
        if group is not None and not group.is_empty:
            raise BrokerError(ErrorCode.NON_EMPTY_GROUP, f"the group {group_id} has members")
        records = [*self.offsets.delete_group(group_id), *(group.tombstones() if group is not None else ())]
        if group is None and not records:
            raise BrokerError(ErrorCode.GROUP_ID_NOT_FOUND, f"there is no group {group_id}")
        return Result(records, [(asker, DeletedGroup(group_id))])

    # -- time ---------------------------------------------------------------------------------------------------------

    def expire(self, now: float, now_ms: int) -> Iterator[Result]:
        """The decisions of all deadlines that are due."""
        return self.deadlines.expire(now, now_ms)

    def _schedule_expiry(self, now: float) -> None:
        self.deadlines.set(_EXPIRY, now + self._config.offsets_retention_check_interval_ms / 1000, self._expire_offsets)

    def _expire_offsets(self, now: float, now_ms: int) -> Result:
        self._schedule_expiry(now)
        return self.offsets.expire(now_ms)

    def take_woken(self) -> Replies:
        """Remove and return the responses that waited for changes of their groups which are replayed now."""
        return self.consumer.take_woken()

    def take_waiting(self) -> list[Asker]:
        """Remove and return the requests that wait for other members. The caller answers them when the leadership ends."""
        return [*self.classic.take_waiting(), *self.consumer.take_waiting()]
