"""An administrator of groups: lists, describes, seeks and deletes them, and stores positions of groups without members.

The groups `ledger-1` and `ledger-2` have no members. The clerk is the only one that changes their offsets, one request after the
other, so it knows the values that each of them may have: that of the last request that was answered, or, after a request without
an answer, the value before or after it. A position that was stored with a retention time expires some time after that.

Groups with members get the same requests. Most are refused; if one is accepted, records of the group may stay unread.
"""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

from strandline.client import TopicPartition
from strandline.client.consumer.partition_state import LATEST
from strandline.protocol import apis
from strandline.protocol.errors import StrandlineError
from strandline.protocol.messages.groups import OffsetCommitPartition, OffsetCommitRequest
from strandline.testing.simulation.cluster.cluster import Client
from strandline.testing.simulation.cluster.groups.coordinator_link import CoordinatorLink
from strandline.testing.simulation.cluster.groups.program import Surroundings

LEDGERS = ("ledger-1", "ledger-2")
PATIENCE_MS = 1500
RETENTION_MS = 300
SMALL = 20
"""The largest position that is stored."""

Wanted = set[int | None]
"""The values that a position may have; None: there is none."""


class Clerk:
    def __init__(self, around: Surroundings, draw: Random) -> None:
        self.around = around
        self.draw = draw
        self.going = True
        self.positions: dict[tuple[str, TopicPartition], Wanted] = {}
        self.deleted: dict[str, None] = {}
        """Groups whose deletion was answered, and for which no offset was stored since."""
        self._members = sorted({plan.group for plan in around.options.members})

    async def work(self, client: Client, admin: Any) -> None:
        """Send requests until the faults end."""
        names = ("look", "look", "store", "store", "store", "check", "check", "expire", "forget", "delete", "seek", "remove")
        while True:
            await asyncio.sleep(self.draw.uniform(0.05, 0.5))
            if not self.going or not self.around.going():
                return
            what = self.draw.choice(names)
            try:
                await getattr(self, f"do_{what}")(client, admin)
            except (StrandlineError, TimeoutError) as e:
                self.around.gave_up(client, f"{what} of groups", e)

    def _place(self) -> TopicPartition:
        return TopicPartition(*self.draw.choice([place for topic in self.around.options.topics for place in topic.places]))

    # -- all groups ---------------------------------------------------------------------------------------------------

    async def do_look(self, client: Client, admin: Any) -> None:
        """List and describe groups. I36: no partition is described as owned by two members."""
        what, group = self.draw.choice(("list", "describe", "lag")), self.draw.choice(self._members)
        if what == "list":
            await admin.list_groups(timeout_ms=PATIENCE_MS)
        elif what == "lag":
            await admin.group_lag([group, *LEDGERS], timeout_ms=PATIENCE_MS)
        else:
            described = (await admin.describe_groups([group], timeout_ms=PATIENCE_MS))[group]
            owned = [tp for member in described.members for tp in member.assignment]
            if len(set(owned)) < len(owned):
                self.around.problems.append(f"two members of {group} are described with the same partition: {sorted(owned)}")

    async def do_seek(self, client: Client, admin: Any) -> None:
        """Set a committed offset of a group that has members at times; the coordinator refuses this while the group has any. The
        offset is never above the end of the log, because a member would reset such a position."""
        group, tp = self.draw.choice(self._members), self._place()
        ends = await admin.list_offsets({tp: LATEST}, timeout_ms=PATIENCE_MS)
        self.around.ledger.sought[group] = None
        offset = self.draw.randint(0, ends[tp].offset if ends.get(tp) else 0)
        await admin.alter_group_offsets(group, {tp: offset}, timeout_ms=PATIENCE_MS)

    async def do_remove(self, client: Client, admin: Any) -> None:
        """Remove a member from its group, as an administrator. The member is not notified."""
        group = self.draw.choice(self._members)
        described = (await admin.describe_groups([group], timeout_ms=PATIENCE_MS))[group]
        if described.members:
            member = self.draw.choice(described.members)
            self.around.ledger.excuse(group, member.member_id)
            await admin.remove_group_members(group, [member.member_id], timeout_ms=PATIENCE_MS)

    # -- groups without members ---------------------------------------------------------------------------------------

    async def do_store(self, client: Client, admin: Any) -> None:
        group, tp, offset = self.draw.choice(LEDGERS), self._place(), self.draw.randint(0, SMALL)
        self._may_become(group, tp, offset)
        results = await admin.alter_group_offsets(group, {tp: offset}, timeout_ms=PATIENCE_MS)
        if not results[tp].code:
            self.positions[group, tp] = {offset}

    async def do_expire(self, client: Client, admin: Any) -> None:
        """Store a position that is kept for a short time, with the request of an old client."""
        group, tp, offset = self.draw.choice(LEDGERS), self._place(), self.draw.randint(0, SMALL)
        topic = self.around.cluster.image().topic(tp.topic)
        if topic is None:  # no node with newer metadata runs
            return
        self._may_become(group, tp, offset)
        self.positions[group, tp] |= {None}
        link = CoordinatorLink(client, group, "clerk", self.draw)
        try:
            partition = OffsetCommitPartition(topic.topic_id, tp.partition, offset)
            request = OffsetCommitRequest(group, -1, "", None, [partition], RETENTION_MS)
            response = await link.ask(apis.OFFSET_COMMIT, request, PATIENCE_MS)
        finally:
            link.close()
        if not response.partitions[0].error_code:
            self.positions[group, tp] = {offset, None}

    async def do_forget(self, client: Client, admin: Any) -> None:
        group, tp = self.draw.choice(LEDGERS), self._place()
        self._may_become(group, tp, None)
        results = await admin.delete_group_offsets(group, [tp], timeout_ms=PATIENCE_MS)
        if not results[tp].code:
            self.positions[group, tp] = {None}

    async def do_delete(self, client: Client, admin: Any) -> None:
        group = self.draw.choice((*LEDGERS, *LEDGERS, self.draw.choice(self._members)))
        if group not in LEDGERS:
            self.around.ledger.sought[group] = None
        known = [place for place in self.positions if place[0] == group]
        for _, tp in known:
            self._may_become(group, tp, None)
        result = (await admin.delete_groups([group], timeout_ms=PATIENCE_MS))[group]
        if not result.code and group in LEDGERS:
            self.positions.update({place: {None} for place in known})
            self.deleted[group] = None

    async def do_check(self, client: Client, admin: Any) -> None:
        """I38: the positions of a group are those that were stored."""
        group = self.draw.choice(LEDGERS)
        wanted = {tp: set(values) for (name, tp), values in self.positions.items() if name == group}
        if not wanted:
            return
        found = await admin.list_group_offsets(group, sorted(wanted), timeout_ms=PATIENCE_MS)
        for tp, values in wanted.items():
            offset = found[tp].offset if tp in found else None
            if offset not in values and not self.around.options.loss_permitted:
                named = sorted("none" if value is None else str(value) for value in values)
                self.around.problems.append(f"{group} has the offset {offset} of {tp}, and must have {' or '.join(named)}")

    def _may_become(self, group: str, tp: TopicPartition, offset: int | None) -> None:
        """Note that the position may have this value from now on: the request that sets it may take effect now or later."""
        self.deleted.pop(group, None)
        self.positions.setdefault((group, tp), {None}).add(offset)
