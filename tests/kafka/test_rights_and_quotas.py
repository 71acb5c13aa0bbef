"""Access rules, users and quotas in each version of the requests that Kafka's tools send."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from data_world import batch
from wire import KafkaWire

from strandline.broker.kafka.codec import Fields
from strandline.protocol.errors import ErrorCode
from strandline.protocol.messages import security as s
from strandline.testing import Cluster, ThreadedCluster

DESCRIBE_ACLS, CREATE_ACLS, DELETE_ACLS = 29, 30, 31
DESCRIBE_QUOTAS, ALTER_QUOTAS, DESCRIBE_SCRAM, ALTER_SCRAM = 48, 49, 50, 51
METADATA, CREATE_TOPICS = 3, 19
ANY = s.ANY_TYPE


@pytest.fixture(scope="module")
def guarded_cluster() -> Iterator[ThreadedCluster]:
    """A broker with an authorizer. Every client is ANONYMOUS, and may do everything."""
    settings = {"authorizer_class_name": "StandardAuthorizer", "super_users": "User:ANONYMOUS"}
    with Cluster.running_in_thread(brokers=1, kafka=True, **settings) as cluster:
        yield cluster


def at(cluster: ThreadedCluster) -> KafkaWire:
    return KafkaWire.at(cluster.kafka_bootstrap)


def rule(name: str, principal: str = "User:alice", operation: int = s.READ, permission: int = s.ALLOW) -> dict[str, Any]:
    return {
        "resource_type": s.TOPIC_RESOURCE,
        "resource_name": name,
        "resource_pattern_type": s.LITERAL_PATTERN,
        "principal": principal,
        "host": "*",
        "operation": operation,
        "permission_type": permission,
    }


def filter_of(name: str | None) -> dict[str, Any]:
    return {
        "resource_type_filter": ANY,
        "resource_name_filter": name,
        "pattern_type_filter": ANY,
        "principal_filter": None,
        "host_filter": None,
        "operation": ANY,
        "permission_type": ANY,
    }


async def create(wire: KafkaWire, version: int, *rules: dict[str, Any]) -> list[Fields]:
    results: list[Fields] = (await wire.call(CREATE_ACLS, version, {"creations": list(rules)})).results
    return results


@pytest.mark.parametrize("version", range(1, 4))
async def test_rules_are_made_found_and_removed(guarded_cluster: ThreadedCluster, version: int) -> None:
    name = f"orders-{version}"
    async with at(guarded_cluster) as wire:
        good, bad = await create(wire, version, rule(name), {**rule(name), "principal": "alice"})
        assert (good.error_code, bad.error_code) == (0, ErrorCode.INVALID_REQUEST)
        assert bad.error_message
        await create(wire, version, rule(name, operation=s.WRITE))
        (resource,) = (await wire.call(DESCRIBE_ACLS, version, filter_of(name))).resources
        assert (resource.resource_type, resource.resource_name, resource.pattern_type) == (
            s.TOPIC_RESOURCE,
            name,
            s.LITERAL_PATTERN,
        )
        found = {(acl.principal, acl.host, acl.operation, acl.permission_type) for acl in resource.acls}
        assert found == {("User:alice", "*", operation, s.ALLOW) for operation in (s.READ, s.WRITE)}
        (gone,) = (await wire.call(DELETE_ACLS, version, {"filters": [filter_of(name)]})).filter_results
        assert (gone.error_code, {acl.operation for acl in gone.matching_acls}) == (0, {s.READ, s.WRITE})
        assert not (await wire.call(DESCRIBE_ACLS, version, filter_of(name))).resources


async def test_cluster_without_an_authorizer_has_no_rules(data_cluster: ThreadedCluster) -> None:
    async with at(data_cluster) as wire:
        described = await wire.call(DESCRIBE_ACLS, 3, filter_of(None))
        (created,) = await create(wire, 3, rule("orders"))
    assert described.error_code == created.error_code == ErrorCode.SECURITY_DISABLED


def _produce(name: str) -> dict[str, Any]:
    data = {"name": name, "partition_data": [{"index": 0, "records": batch("a")}]}
    return {"transactional_id": None, "acks": -1, "timeout_ms": 5000, "topic_data": [data]}


# -- users ------------------------------------------------------------------------------------------------------------


async def test_users_are_made_described_and_removed(guarded_cluster: ThreadedCluster) -> None:
    """Salts and keys are never shown."""
    user = {"name": "bob", "mechanism": 2, "iterations": 8192, "salt": b"s" * 16, "salted_password": b"p" * 64}
    async with at(guarded_cluster) as wire:
        (made,) = (await wire.call(ALTER_SCRAM, 0, {"deletions": [], "upsertions": [user]})).results
        assert (made.user, made.error_code) == ("bob", 0)
        found = await wire.call(DESCRIBE_SCRAM, 0, {"users": [{"name": "bob"}, {"name": "none"}]})
        codes = {row.user: (row.error_code, [(c.mechanism, c.iterations) for c in row.credential_infos]) for row in found.results}
        assert codes == {"bob": (0, [(2, 8192)]), "none": (ErrorCode.RESOURCE_NOT_FOUND, [])}
        everybody = await wire.call(DESCRIBE_SCRAM, 0, {"users": None})
        assert [row.user for row in everybody.results] == ["bob"]
        few = {**user, "name": "carol", "iterations": 5}
        answer = await wire.call(ALTER_SCRAM, 0, {"deletions": [{"name": "bob", "mechanism": 2}], "upsertions": [few]})
        assert {row.user: row.error_code for row in answer.results} == {"bob": 0, "carol": ErrorCode.UNACCEPTABLE_CREDENTIAL}


# -- quotas -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(2))
async def test_quotas_are_set_found_and_removed(data_cluster: ThreadedCluster, version: int) -> None:
    entity = [{"entity_type": "user", "entity_name": f"u{version}"}, {"entity_type": "client-id", "entity_name": None}]
    asked = [{"entity_type": "user", "match_type": 0, "match": f"u{version}"}]

    async with at(data_cluster) as wire:

        async def alter(key: str, value: float, remove: bool = False) -> Fields:
            entries = [{"entity": entity, "ops": [{"key": key, "value": value, "remove": remove}]}]
            answer = await wire.call(ALTER_QUOTAS, version, {"entries": entries, "validate_only": False})
            row: Fields = answer.entries[0]
            return row

        async def describe() -> Fields:
            return await wire.call(DESCRIBE_QUOTAS, version, {"components": asked, "strict": False})

        assert (await alter("producer_byte_rate", 1000.0)).error_code == 0
        wrong = await alter("speed", 1.0)
        assert wrong.error_code == ErrorCode.INVALID_REQUEST
        assert wrong.error_message
        (entry,) = (await describe()).entries
        parts = {(part.entity_type, part.entity_name) for part in entry.entity}
        assert parts == {("user", f"u{version}"), ("client-id", None)}
        assert [(value.key, value.value) for value in entry.values] == [("producer_byte_rate", 1000.0)]
        assert (await alter("producer_byte_rate", 0.0, remove=True)).error_code == 0
        assert (await describe()).entries == []


async def test_client_above_its_quota_is_answered_with_the_time_that_it_waits(data_cluster: ThreadedCluster) -> None:
    """KIP-219: the answer arrives at once, and then the connection is muted."""
    data_cluster.create_topic("metered", replication_factor=1)
    entity = [{"entity_type": "client-id", "entity_name": "greedy"}]
    entries = [{"entity": entity, "ops": [{"key": "producer_byte_rate", "value": 2000.0, "remove": False}]}]
    async with at(data_cluster) as wire:
        answer = await wire.call(ALTER_QUOTAS, 1, {"entries": entries, "validate_only": False})
        assert answer.entries[0].error_code == 0
    async with KafkaWire.at(data_cluster.kafka_bootstrap, client_id="greedy") as wire:
        throttled = [(await wire.call(0, 9, _produce("metered"))).throttle_time_ms for _ in range(3)]
        large = {**_produce("metered")}
        large["topic_data"][0]["partition_data"][0]["records"] = batch("a" * 30_000)
        throttled.append((await wire.call(0, 9, large)).throttle_time_ms)
    assert throttled[0] == 0
    assert throttled[-1] > 0
