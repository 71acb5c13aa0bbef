"""A member of the newer protocol: a program with a production consumer, as users write it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from strandline.client import OffsetOutOfRange, TopicPartition
from strandline.client.errors import CorruptRecords, GroupMembershipFailed, LogTruncated
from strandline.protocol.errors import StrandlineError
from strandline.testing.simulation.cluster.groups.ledger import Stay
from strandline.testing.simulation.cluster.groups.program import RETRY_S, Program
from strandline.testing.simulation.group_plans import AUTO, EACH, IDLE, LEAVE, POSITIONS, SWITCH

Rebalanced = Callable[[list[TopicPartition]], Coroutine[Any, Any, None]]


class Reader(Program):
    async def stay(self) -> bool:
        plan, client = self.plan, self.client
        instance = {"group_instance_id": plan.instance_id} if plan.instance_id else {}
        options = {"auto_offset_reset": "earliest", **plan.options, **instance, "group_id": plan.group}
        consumer = await self.around.started(lambda: client.consumer(**options))
        if consumer is None:
            return False
        stay = self.around.ledger.begin(self.name, plan, consumer)
        self._uncommitted: dict[TopicPartition, int] = {}
        """The offsets after the finished records of the partitions that it owns."""
        try:
            self.subscribe(stay)
            return await self._read(stay)
        except GroupMembershipFailed as e:
            self.around.gave_up(client, "the membership", e)
            await asyncio.sleep(RETRY_S)
            return False
        finally:
            await consumer.stop()
            self.around.ledger.end(stay)

    def subscribe(self, stay: Stay) -> None:
        callbacks = {
            "on_assigned": self._callback(stay, self.on_assigned),
            "on_revoked": self._callback(stay, self.on_gone),
            "on_lost": self._callback(stay, self.on_gone),
        }
        if stay.pattern:
            stay.consumer.subscribe(pattern=stay.pattern, **callbacks)
        else:
            stay.consumer.subscribe(*stay.topics, **callbacks)

    # -- rebalances ---------------------------------------------------------------------------------------------------

    def _callback(self, stay: Stay, note: Callable[[Stay, list[TopicPartition]], Coroutine[Any, Any, None]]) -> Rebalanced:
        async def rebalanced(partitions: list[TopicPartition]) -> None:
            await note(stay, partitions)
            if self.plan.callback_ms:
                await asyncio.sleep(self.draw.uniform(0, self.plan.callback_ms) / 1000)

        return rebalanced

    async def on_assigned(self, stay: Stay, partitions: list[TopicPartition]) -> None:
        group = stay.consumer.health()["group"]
        stay.on_assigned(partitions, group["member_id"], group["member_epoch"])
        for tp in partitions:
            position = stay.consumer.metrics()["partitions"].get(str(tp), {}).get("position", -1)
            if position >= 0:
                stay.begins_at(tp, position)

    async def on_gone(self, stay: Stay, partitions: list[TopicPartition]) -> None:
        stay.on_gone(partitions)
        for tp in partitions:
            self._uncommitted.pop(tp, None)

    # -- records ------------------------------------------------------------------------------------------------------

    async def _read(self, stay: Stay) -> bool:
        """Read until the program leaves the group on purpose (True), or the run is over (False)."""
        while self.going:
            if self.happens(LEAVE):
                return True
            if self.happens(IDLE):
                await asyncio.sleep(self.plan.event_for_s)
            if self.happens(SWITCH):
                stay.topics, stay.pattern = self.plan.later_topics, ""
                self.subscribe(stay)
            await self._turn(stay)
        return False

    async def _turn(self, stay: Stay) -> None:
        try:
            polled = await stay.consumer.getmany(timeout_ms=self.plan.poll_ms)
        except GroupMembershipFailed:
            raise
        except (OffsetOutOfRange, LogTruncated, CorruptRecords) as e:
            await self._recover(stay, e)
            return
        except StrandlineError as e:
            self.around.gave_up(self.client, "a poll", e)
            await asyncio.sleep(RETRY_S)
            return
        stay.given(polled)
        offsets, fresh = stay.keys_of(polled), {tp: records[-1].offset + 1 for tp, records in polled.items()}
        self._uncommitted.update(fresh)
        if polled:
            await self.work()
        stay.finish(offsets)
        await self._commit(stay, {**self._uncommitted, **fresh})

    async def _recover(self, stay: Stay, error: StrandlineError) -> None:
        if not self.around.options.loss_permitted:
            self.around.problems.append(f"{self.name}: {type(error).__name__}: {error}")
        if isinstance(error, LogTruncated):
            place = TopicPartition(error.topic or "", error.partition or 0)
            if place in stay.owned:
                stay.consumer.seek(place, max(0, error.diverging_offset))
        await asyncio.sleep(RETRY_S)

    async def _commit(self, stay: Stay, offsets: dict[TopicPartition, int]) -> None:
        """Commit as the plan says. The member may have lost some of these partitions while the program worked on their records;
        the consumer must refuse to commit those."""
        how = self.plan.commits
        if how == AUTO or not offsets:
            return
        try:
            if how == EACH:
                await stay.consumer.commit(offsets, timeout_ms=1000)
            elif how == POSITIONS:
                await stay.consumer.commit(timeout_ms=1000)
        except StrandlineError as e:
            self.around.gave_up(self.client, "a commit", e)
        else:
            self._uncommitted.clear()
