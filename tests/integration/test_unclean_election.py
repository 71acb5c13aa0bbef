"""Unclean elections in a running cluster: by hand, by the topic's strategy, and the report that each of them leaves."""

from __future__ import annotations

from typing import Any

from waiting import until
from wire_cluster import WireCluster

from strandline.controller.metadata.records import RECOVERED
from strandline.protocol import apis
from strandline.protocol.errors import ErrorCode
from strandline.protocol.messages.admin import (
    DescribeUncleanElectionsRequest,
    MetadataTopic,
    UncleanElectionReport,
)


async def reports(cluster: WireCluster, node: int) -> list[UncleanElectionReport]:
    answer = await cluster.ask(node, apis.DESCRIBE_UNCLEAN_ELECTIONS, DescribeUncleanElectionsRequest(["orders"]))
    found: list[UncleanElectionReport] = answer.reports
    return found


def registration(cluster: WireCluster, node: int, topic: MetadataTopic) -> Any:
    return cluster.server(node).metadata.image.partition((topic.topic_id, 0))


async def only_the_leader_has_all(cluster: WireCluster) -> MetadataTopic:
    """Ten records are on all replicas, five more only on broker 1, which is then killed. Brokers 2 and 3 run."""
    topic = await cluster.create("orders", replicas=[[1, 2, 3]])
    for number in range(10):
        await cluster.produce(topic, f"{number}")
    await cluster.in_step(topic.topic_id, [1, 2, 3])
    await cluster.stop(2)
    await cluster.stop(3)
    for number in range(10, 15):
        await cluster.produce(topic, f"{number}")
    await cluster.kill(1)
    await cluster.start(2, 3)
    await until(lambda: registration(cluster, 2, topic).leader == -1, "the partition has no leader")
    await until(
        lambda: all(cluster.server(2).metadata.image.brokers[node].is_active for node in (2, 3)), "brokers 2 and 3 are active"
    )
    return topic


async def recovered(cluster: WireCluster, topic: MetadataTopic) -> None:
    """The new leader has finished its recovery, and the other live replica is in sync with it."""

    def is_recovered() -> bool:
        found = registration(cluster, 2, topic)
        return found.leader_recovery_state == RECOVERED and sorted(found.isr) == [2, 3]

    await until(is_recovered, "the partition has recovered")


async def test_operator_elects_a_replica_that_lacks_records() -> None:
    """The report names the lost records, and broker 1 drops them when it returns."""
    async with WireCluster(controllers=1, brokers=3) as cluster, cluster.admin() as admin:
        topic = await only_the_leader_has_all(cluster)
        (result,) = await admin.elect_leaders([("orders", 0)], election="unclean")
        assert result.code == ErrorCode.NONE
        await recovered(cluster, topic)
        (found,) = await reports(cluster, 2)
        assert (found.last_known_leader, found.strategy) == (1, "operator")
        assert (found.lost_from, found.lost_to) == (10, -1)
        assert [(each.broker_id, each.log_end_offset) for each in found.replicas] == [(1, -1), (2, 10), (3, 10)]
        await cluster.produce(topic, "after")
        await cluster.start(1)
        await cluster.in_step(topic.topic_id, [1, 2, 3])
        assert cluster.replica(1, topic.topic_id).log.log_end_offset == 11
        (again,) = await admin.elect_leaders([("orders", 0)], election="unclean")
        assert again.code == ErrorCode.ELECTION_NOT_NEEDED


async def test_enabled_topic_gets_a_leader_by_itself_and_the_report_survives_the_controller() -> None:
    async with WireCluster(controllers=3, brokers=3) as cluster, cluster.admin() as admin:
        topic = await only_the_leader_has_all(cluster)
        await admin.alter_configs("broker", "", {"unclean.recovery.timeout.ms": 0})
        await admin.alter_configs("topic", "orders", {"unclean.leader.election.enable": "true"})
        await recovered(cluster, topic)
        (found,) = await reports(cluster, 3)
        assert (found.strategy, found.lost_from, found.lost_to) == ("aggressive", 10, -1)
        active = await cluster.active_controller()
        await cluster.inside(active, lambda: cluster.server(active).quorum.take_snapshot())
        await cluster.restart(active)
        await cluster.restart(2)
        await until(lambda: cluster.server(2).metadata.image.offset >= 0, "broker 2 knows the cluster")
        assert await reports(cluster, 2) == [found]
