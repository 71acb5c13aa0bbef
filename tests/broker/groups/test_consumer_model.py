"""Random members, topics and failures against the rules that a group must keep (KIP-848).

A client here knows only what responses contain: it takes partitions when a response names them, and goes on owning what it has
to give up until it has done so and says so in a heartbeat. Responses get lost, processes crash and return, topics change, appends
fail, the coordinator moves and its log is compacted. After each step:

- no partition is owned by two clients, by the responses that they have received, each in an epoch that the coordinator accepts;
- every owner may commit;
- the records give the state of the coordinator, also after a compaction;
- every member has a session.

After a quiet time every partition of a subscribed topic is owned by one client that subscribes to it.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field

from consumer_world import GROUP, ConsumerWorld, durable
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule, run_state_machine_as_test
from test_consumer_replay import compacted
from thorough import examples

from strandline.broker.groups.config import GroupConfig
from strandline.broker.groups.consumer import regex_scans
from strandline.broker.groups.consumer.group import ConsumerGroup
from strandline.broker.groups.consumer.member_timers import SESSION
from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.messages.groups import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    GroupTopicPartitions,
    LeavingMember,
)

NAMES = ["orders", "orders-eu", "bills"]
SUBSCRIPTIONS: list[tuple[tuple[str, ...], str]] = [
    (("orders",), ""),
    (("bills", "orders"), ""),
    ((), "orders.*"),
    (("bills",), "orders-.*"),
    ((), ""),
]
INSTANCES = ["i", "j"]
REJOIN = {ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.GROUP_ID_NOT_FOUND}

Partition = tuple[bytes, int]


@dataclass(eq=False)
class Client:
    member_id: str
    instance_id: str | None
    subscription: tuple[tuple[str, ...], str]
    epoch: int = 0
    owned: set[Partition] = field(default_factory=set)
    giving_up: set[Partition] = field(default_factory=set)
    """A part of `owned`: the partitions that it has to give up."""
    is_unsure: bool = True
    """Whether its next heartbeat has all fields: it joins, or the last response was lost."""

    def request(self) -> ConsumerGroupHeartbeatRequest:
        names, regex = self.subscription
        partitions: dict[bytes, list[int]] = {}
        for topic_id, number in sorted(self.owned):
            partitions.setdefault(topic_id, []).append(number)
        owned = [GroupTopicPartitions(topic_id, numbers) for topic_id, numbers in partitions.items()]
        if not self.is_unsure:
            return ConsumerGroupHeartbeatRequest(GROUP, self.member_id, self.epoch, self.instance_id, topic_partitions=owned)
        return ConsumerGroupHeartbeatRequest(
            GROUP, self.member_id, self.epoch, self.instance_id, None, 4000, list(names), regex, topic_partitions=owned
        )

    def on_response(self, response: ConsumerGroupHeartbeatResponse) -> None:
        self.epoch, self.is_unsure = response.member_epoch, False
        if response.assignment is not None:
            assigned = {(topic.topic_id, number) for topic in response.assignment for number in topic.partitions}
            self.giving_up = self.owned - assigned
            self.owned |= assigned

    def on_error(self, code: ErrorCode) -> None:
        """The client owns nothing if the coordinator no longer accepts it. In any case its next heartbeat has all fields."""
        self.is_unsure = True
        if code in REJOIN:
            self.epoch = 0
            self.owned.clear()
            self.giving_up.clear()

    def give_up(self) -> None:
        self.owned -= self.giving_up
        self.giving_up.clear()


class GroupModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.clients: list[Client] = []
        self.released: list[str] = []
        """Instance ids whose processes have ended."""
        self.next_id = 0
        self.slice_cost = regex_scans.SLICE_COST

    @initialize(interval_ms=st.sampled_from([0, 1000]), slice_cost=st.sampled_from([1, 1_000_000]))
    def begin(self, interval_ms: int, slice_cost: int) -> None:
        regex_scans.SLICE_COST = slice_cost
        self.world = ConsumerWorld(GroupConfig(group_consumer_assignment_interval_ms=interval_ms), orders=3, bills=2)

    def teardown(self) -> None:
        try:
            if hasattr(self, "world"):
                self.come_to_rest()
        finally:
            regex_scans.SLICE_COST = self.slice_cost

    @property
    def group(self) -> ConsumerGroup | None:
        group = self.world.groups.get(GROUP)
        assert group is None or isinstance(group, ConsumerGroup)
        return group

    def pick(self, index: int) -> Client:
        return self.clients[index % len(self.clients)]

    # -- members --

    def send(self, client: Client, is_lost: bool = False) -> None:
        answer = self.world.send(client.request())
        if is_lost:
            client.is_unsure = True
        elif isinstance(answer, ErrorCode):
            client.on_error(answer)
        else:
            client.on_response(answer)

    @precondition(lambda self: len(self.clients) < 5)
    @rule(subscription=st.sampled_from(SUBSCRIPTIONS), is_static=st.booleans(), is_lost=st.booleans())
    def join(self, subscription: tuple[tuple[str, ...], str], is_static: bool, is_lost: bool) -> None:
        held = [client.instance_id for client in self.clients]
        free = [instance for instance in INSTANCES if instance not in held]
        self.next_id += 1
        client = Client(f"m{self.next_id}", free[0] if is_static and free else None, subscription)
        self.clients.append(client)
        self.send(client, is_lost)

    @precondition(lambda self: self.clients)
    @rule(index=st.integers(0, 9), is_lost=st.booleans(), gives_up=st.booleans())
    def heartbeat(self, index: int, is_lost: bool, gives_up: bool) -> None:
        client = self.pick(index)
        if gives_up:
            client.give_up()
        self.send(client, is_lost)

    @precondition(lambda self: self.clients)
    @rule(index=st.integers(0, 9))
    def keep_alive(self, index: int) -> None:
        """A heartbeat that does not say what the client owns."""
        client = self.pick(index)
        if client.epoch > 0 and not client.is_unsure:
            body = ConsumerGroupHeartbeatRequest(GROUP, client.member_id, client.epoch, client.instance_id)
            answer = self.world.send(body)
            if isinstance(answer, ErrorCode):
                client.on_error(answer)
            else:
                client.on_response(answer)

    @precondition(lambda self: self.clients)
    @rule(index=st.integers(0, 9), subscription=st.sampled_from(SUBSCRIPTIONS))
    def change_subscription(self, index: int, subscription: tuple[tuple[str, ...], str]) -> None:
        client = self.pick(index)
        client.subscription, client.is_unsure = subscription, True
        self.send(client)

    @precondition(lambda self: self.clients)
    @rule(index=st.integers(0, 9), is_for_a_moment=st.booleans(), is_lost=st.booleans())
    def leave(self, index: int, is_for_a_moment: bool, is_lost: bool) -> None:
        """Leave, or crash without a request (`is_lost`)."""
        client = self.pick(index)
        self.clients.remove(client)
        epoch = -2 if is_for_a_moment and client.instance_id is not None else -1
        if not is_lost and client.epoch > 0:
            self.world.send(ConsumerGroupHeartbeatRequest(GROUP, client.member_id, epoch, client.instance_id))

    @precondition(lambda self: self.clients)
    @rule(index=st.integers(0, 9))
    def remove(self, index: int) -> None:
        """An operator removes the member. Its client is not notified."""
        client = self.pick(index)
        with suppress(BrokerError):
            self.world.remove(LeavingMember(client.member_id))

    # -- the rest of the world --

    @rule(name=st.sampled_from(NAMES), count=st.integers(1, 5))
    def create(self, name: str, count: int) -> None:
        self.world.topics.create(**{name: count})
        self.world.publish()

    @rule(name=st.sampled_from(NAMES), is_recreated=st.booleans())
    def delete(self, name: str, is_recreated: bool) -> None:
        if self.world.topics.image.topic(name) is not None:
            self.world.topics.remove(name)
            if is_recreated:
                self.world.topics.create(**{name: 2})
            self.world.publish()

    @rule(seconds=st.sampled_from([0.001, 0.1, 1.0, 3.0, 5.0, 10.0]))
    def pass_time(self, seconds: float) -> None:
        self.world.pass_time(seconds)

    @rule(fail=st.booleans())
    def appends(self, fail: bool) -> None:
        self.world.append_error = ErrorCode.COORDINATOR_NOT_AVAILABLE if fail else None

    @rule(cleaned=st.floats(0, 1), keeps_tombstones=st.booleans())
    def move(self, cleaned: float, keeps_tombstones: bool) -> None:
        log = self.world.log
        self.world.move(compacted(log, int(len(log) * cleaned), keeps_tombstones=keeps_tombstones))

    # -- what must hold --

    @invariant()
    def partitions_have_one_owner(self) -> None:
        group = self.group
        if group is None:
            return
        owners: dict[Partition, str] = {}
        for client in self.accepted(group):
            for partition in client.owned:
                assert partition not in owners, f"{client.member_id} and {owners[partition]} own {partition}"
                owners[partition] = client.member_id

    @invariant()
    def owners_may_commit(self) -> None:
        """They may commit during any rebalance (KIP-1251)."""
        group = self.group
        for client in self.accepted(group) if group is not None else ():
            codes = group.check_offset_commit(client.member_id, None, client.epoch, sorted(client.owned), 0.0)
            assert not any(codes), (client, codes)

    def accepted(self, group: ConsumerGroup) -> list[Client]:
        """The clients whose epochs the coordinator accepts."""
        known = ((client, group.members.get(client.member_id)) for client in self.clients if client.epoch > 0)
        return [c for c, m in known if m is not None and c.epoch in (m.epoch, m.current.previous_member_epoch)]

    @invariant()
    def records_give_the_state(self) -> None:
        group = self.group
        if group is None:
            return
        for log in self.world.log, compacted(self.world.log, len(self.world.log), keeps_tombstones=False):
            copy = ConsumerWorld(self.world.config)
            for record in log:
                copy.consumer.replay(record)
            assert durable(copy.group) == durable(group)

    @invariant()
    def state_is_consistent(self) -> None:
        group = self.group
        if group is None:
            return
        assert group.assignment_epoch <= group.epoch
        owners: dict[Partition, str] = {}
        for member in group.members.values():
            assert (SESSION, GROUP, member.member_id) in self.world.deadlines
            assert member.epoch <= group.assignment_epoch
            for partitions in member.current.assigned, member.current.pending_revocation:
                for topic_id, numbers in partitions.items():
                    for number in numbers:
                        assert (topic_id, number) not in owners
                        owners[topic_id, number] = member.member_id
        assert owners == {(topic_id, number): m for topic_id, held in group.owners.items() for number, m in held.items()}
        targets = [(t, n) for target in group.targets.values() for t, numbers in target.items() for n in numbers]
        assert len(targets) == len(set(targets))

    def come_to_rest(self) -> None:
        """No append fails, and every living client sends heartbeats. Meanwhile the sessions of ended clients end."""
        self.world.append_error = None
        for _ in range(40):
            for client in self.clients:
                client.give_up()
                self.send(client)
            self.world.pass_time(0.5)
        self.partitions_have_one_owner()
        group = self.group
        if group is None:
            return
        assert group.members.keys() == {client.member_id for client in self.clients}
        assert group.state_name == ("Stable" if self.clients else "Empty")
        owned = sorted(partition for client in self.clients for partition in client.owned)
        assert owned == sorted({partition for client in self.clients for partition in self.wanted(client)})
        for client in self.clients:
            assert client.owned <= self.wanted(client)

    def wanted(self, client: Client) -> set[Partition]:
        """All partitions of the topics to which the client subscribes."""
        names, regex = client.subscription
        image = self.world.topics.image
        return {
            (topic.topic_id, number)
            for name in NAMES
            if (topic := image.topic(name)) is not None
            and (name in names or (regex and regex_scans.compile_regex(regex).fullmatch(name)))
            for number in topic.partitions
        }


def test_random_groups_keep_the_rules() -> None:
    run_state_machine_as_test(GroupModel, settings=settings(max_examples=examples(400), stateful_step_count=40, deadline=None))
