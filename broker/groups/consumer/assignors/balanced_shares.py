"""Balanced shares for members with different subscriptions.

    keep       each member keeps its partitions of the topics to which it still subscribes
    hand out   every other partition goes to the subscriber of its topic with the lowest load
    balance    topic by topic, partitions move from the owner with the highest load to the subscriber with the lowest load, as
               long as the two loads differ by more than one; again from the first topic on, until no partition moves

The load of a member is the number of all its partitions. The topics with the most partitions per subscriber are handled first,
because they leave the fewest choices; of equal ones, those with fewer subscribers.

If all subscribers of a topic subscribe to the same topics, the result is as balanced as possible. With overlapping
subscriptions it may not be: if members A and B share a topic, and B and C another one, loads of 9, 10 and 11 remain, because no
single move helps. The number of rounds is bounded. Kafka's assignor has the same two limits.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush, heapreplace

from strandline.broker.groups.consumer.assignors.spec import GroupSpec, TopicIds
from strandline.broker.groups.records.types import Partitions

ROUNDS_MAX = 16
"""The maximum number of rounds. Each about halves the imbalance."""
NOBODY = -1

Loads = list[tuple[int, int]]
"""A heap of (load, member). Loads are negative if the largest one is to be first. An entry is void if the load of its member has
changed."""


class BalancedShares:
    """One computation. Members are numbered in the order of their ids."""

    def __init__(self, spec: GroupSpec) -> None:
        self._spec = spec
        self._members = sorted(spec.members)
        self._loads = [0] * len(self._members)
        """The number of partitions that each member has."""
        self._subscribers: dict[bytes, list[int]] = {}
        for member, member_id in enumerate(self._members):
            for topic_id in spec.members[member_id].subscribed:
                self._subscribers.setdefault(topic_id, []).append(member)
        self._topics = sorted(self._subscribers, key=self._fewest_choices_first)
        self._owners = {topic_id: [NOBODY] * spec.partition_counts[topic_id] for topic_id in self._topics}
        """Topic id -> the owner of each partition."""

    def _fewest_choices_first(self, topic_id: bytes) -> tuple[float, int, bytes]:
        subscribers = len(self._subscribers[topic_id])
        return -self._spec.partition_counts[topic_id] / subscribers, subscribers, topic_id

    def assign(self) -> dict[str, Partitions]:
        for member, member_id in enumerate(self._members):
            self._keep(member, self._spec.present.get(member_id, {}), self._spec.members[member_id].subscribed)
        for topic_id in self._topics:
            self._hand_out(topic_id)
        self._balance()
        return self._result()

    def _keep(self, member: int, present: Partitions, topics: TopicIds) -> None:
        for topic_id, numbers in present.items():
            owners = self._owners[topic_id] if topic_id in topics else []
            for number in numbers:
                if number < len(owners) and owners[number] == NOBODY:
                    owners[number] = member
                    self._loads[member] += 1

    def _hand_out(self, topic_id: bytes) -> None:
        owners, loads = self._owners[topic_id], self._loads
        if NOBODY not in owners:
            return
        lightest = [(loads[member], member) for member in self._subscribers[topic_id]]
        heapify(lightest)
        for number, owner in enumerate(owners):
            if owner == NOBODY:
                member = owners[number] = lightest[0][1]
                loads[member] += 1
                heapreplace(lightest, (loads[member], member))

    def _balance(self) -> None:
        shared = [topic_id for topic_id in self._topics if len(self._subscribers[topic_id]) > 1]
        for _ in range(ROUNDS_MAX):
            if not sum([self._balance_topic(topic_id) for topic_id in shared]):
                return

    def _balance_topic(self, topic_id: bytes) -> int:
        """Move partitions of one topic; returns the number of moves."""
        loads, owners, subscribers = self._loads, self._owners[topic_id], self._subscribers[topic_id]
        present = [loads[member] for member in subscribers]
        if max(present) - min(present) <= 1:
            return 0
        owned: dict[int, list[int]] = {}
        for number, owner in enumerate(owners):
            owned.setdefault(owner, []).append(number)
        lightest = [(loads[member], member) for member in subscribers]
        heaviest = [(-loads[member], member) for member in owned]
        heapify(lightest)
        heapify(heaviest)
        moved = 0
        while heaviest:
            load, giver = heappop(heaviest)
            if -load != loads[giver] or not owned[giver]:
                continue
            taker = self._lightest(lightest)
            if loads[giver] - loads[taker] <= 1:
                break
            number = owned[giver].pop()
            owners[number] = taker
            owned.setdefault(taker, []).append(number)
            for member, change in (giver, -1), (taker, 1):
                loads[member] += change
                heappush(lightest, (loads[member], member))
                heappush(heaviest, (-loads[member], member))
            moved += 1
        return moved

    def _lightest(self, lightest: Loads) -> int:
        while lightest[0][0] != self._loads[lightest[0][1]]:
            heappop(lightest)
        return lightest[0][1]

    def _result(self) -> dict[str, Partitions]:
        numbers: list[dict[bytes, list[int]]] = [{} for _ in self._members]
        for topic_id in sorted(self._topics):
            for number, owner in enumerate(self._owners[topic_id]):
                numbers[owner].setdefault(topic_id, []).append(number)
        shares: dict[str, Partitions] = {}
        for member, member_id in enumerate(self._members):
            share = {topic_id: frozenset(owned) for topic_id, owned in numbers[member].items()}
            present = self._spec.present.get(member_id)
            shares[member_id] = present if present is not None and present == share else share
        return shares
