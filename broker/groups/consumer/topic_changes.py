"""Topics that are created, changed or deleted, and the groups that subscribe to them, by name or by a regular expression.

The epoch of such a group rises at once, and not with the next heartbeat of a member as in Kafka. The coordinator has the
metadata now, the next heartbeat may be seconds away, and the change costs one record per group. Only the id and the number of
partitions of a topic count: elections and ISR changes, which happen all the time, change no group.

If a change cannot be appended, the group is marked, and the next heartbeat of a member repeats the decision. A new coordinator
compares the metadata of each group and looks up all expressions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial

from strandline.broker.coordination.replies import Replies
from strandline.broker.groups.config import GroupConfig
from strandline.broker.groups.consumer.assignment_schedule import AssignmentSchedule
from strandline.broker.groups.consumer.draft import Draft
from strandline.broker.groups.consumer.group import ConsumerGroup
from strandline.broker.groups.consumer.groups import ConsumerGroups
from strandline.broker.groups.consumer.regex_lookups import RegexLookups
from strandline.broker.groups.consumer.regex_scans import RegexScan, compile_regex
from strandline.broker.groups.deadlines import Deadlines
from strandline.broker.groups.records.types import RegularExpressionValue
from strandline.broker.groups.result import RequestContext, Result
from strandline.controller.metadata.image import MetadataImage
from strandline.protocol.errors import BrokerError

REFRESH = "regex refresh"


class TopicChanges:
    """The topics of the groups of one shard."""

    def __init__(
        self,
        config: GroupConfig,
        groups: ConsumerGroups,
        deadlines: Deadlines,
        schedule: AssignmentSchedule,
        image: MetadataImage,
    ) -> None:
        self.image = image
        """The newest metadata."""
        self._refresh_interval_s = config.group_consumer_regex_refresh_interval_ms / 1000
        self._groups = groups
        self._deadlines = deadlines
        self._schedule = schedule
        self._lookups = RegexLookups(deadlines, self._on_looked_up)

    def on_loaded(self, group: ConsumerGroup, now: float) -> Result | None:
        """Compare the metadata of a group that was loaded."""
        return self._update(group, {}, now) if group.members else None

    def on_image(self, image: MetadataImage, changed_topics: Iterable[str], now: float, now_ms: int) -> Iterator[Result]:
        before, self.image = self.image, image
        changed = [name for name in sorted(changed_topics) if _shape(before, name) != _shape(image, name)]
        toggled = [name for name in changed if (name in before.topics_by_name) != (name in image.topics_by_name)]
        for group in self._groups if changed else ():
            if any(name in group.topic_counts for name in changed):
                group.is_metadata_stale = True
            looked_up: Mapping[str, RegularExpressionValue] = {}
            if toggled and group.regex_counts:
                scan = self._lookups.look_again(group.group_id, group.resolved, toggled, image.topics_by_name, now)
                looked_up = {} if scan is None else scan.result(image, now_ms)
            result = self._update(group, looked_up, now)
            if result is not None:
                yield result

    def _update(self, group: ConsumerGroup, looked_up: Mapping[str, RegularExpressionValue], now: float) -> Result | None:
        """The decision that brings the group up to date with its topics; None if it already is."""
        draft, topics_changed = Draft(group, self.image), False
        for regex, value in looked_up.items():
            known = group.resolved.get(regex)
            if group.regex_counts[regex] and (known is None or known.topics != value.topics):
                draft.put_regex(regex, value)
                topics_changed = topics_changed or value.topics != (() if known is None else known.topics)
        if topics_changed or draft.is_metadata_changed():
            draft.bump_epoch()
            if not group.is_empty:
                self._schedule.request(group.group_id, now)
        return self.decision(draft, []) if draft.records else None

    def decision(self, draft: Draft, replies: Replies) -> Result:
        """The decision of a draft that has compared the metadata of its group. If it cannot be appended, the next heartbeat
        compares the metadata again, and topics that were looked up for the decision are looked up again."""
        return Result(draft.records, replies, partial(self._on_append, draft))

    def _on_append(self, draft: Draft, error: BrokerError | None) -> Replies:
        group = self._groups.get(draft.group.group_id)
        if group is not None and error is None:
            group.is_metadata_stale = False
        elif group is not None and draft.has_new_topics:
            group.is_regex_stale = True
        return [] if draft.on_append is None else draft.on_append(error)

    # -- regular expressions ------------------------------------------------------------------------------------------

    def is_looking_up(self, group_id: str) -> bool:
        return group_id in self._lookups

    def look_up(self, draft: Draft, regex: str, context: RequestContext) -> bool:
        """Look up the topics of an expression that the group has no topics for, and put them into the draft. Returns False if
        this takes longer; the group's epoch then rises when the topics are known. Raises INVALID_REGULAR_EXPRESSION."""
        group = draft.group
        compile_regex(regex)
        if group.group_id in self._lookups and group.regex_counts[regex]:
            return False
        scan = self._lookups.look_up(group.group_id, [regex], self.image.topics_by_name, context.now)
        if scan is None:
            return False
        for found, value in scan.result(self.image, context.now_ms).items():
            if found == regex or group.regex_counts[found]:
                draft.put_regex(found, value)
        return True

    def repeat_failed_look_up(self, group: ConsumerGroup, now: float) -> None:
        """If topics of the group's expressions could not be appended, look them up again."""
        if group.is_regex_stale:
            group.is_regex_stale = False
            self._lookups.enqueue(group.group_id, group.regex_counts, self.image.topics_by_name, now)

    def look_up_all(self, now: float, now_ms: int) -> None:
        """Look up all expressions now, and again after the refresh interval."""
        for group in self._groups:
            if group.regex_counts:
                self._lookups.enqueue(group.group_id, group.regex_counts, self.image.topics_by_name, now)
        self._deadlines.set((REFRESH,), now + self._refresh_interval_s, self.look_up_all)

    def _on_looked_up(self, group_id: str, scan: RegexScan, now: float, now_ms: int) -> Result | None:
        group = self._groups.get(group_id)
        return None if group is None else self._update(group, scan.result(self.image, now_ms), now)


def _shape(image: MetadataImage, name: str) -> tuple[bytes, int] | None:
    """Id and number of partitions of a topic; None if it does not exist."""
    topic = image.topic(name)
    return None if topic is None else (topic.topic_id, len(topic.partitions))
