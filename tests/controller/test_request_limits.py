"""A request that would change very much is refused before it is decided: the controller could serve no other requests
meanwhile."""

from __future__ import annotations

import pytest
from controller_world import ControllerWorld

from strandline.controller.request_limits import CHANGES_MAX
from strandline.protocol import apis
from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.messages import admin as m
from strandline.protocol.messages import security as s
from strandline.protocol.messages.common import Message

MANY = CHANGES_MAX + 1


def create(number: int, **more: object) -> m.CreatableTopic:
    return m.CreatableTopic(f"t{number}", **{"num_partitions": 1, "replication_factor": 1, **more})  # type: ignore[arg-type]


def config(number: int) -> m.AlterConfigsResource:
    return m.AlterConfigsResource(m.RESOURCE_TOPIC, f"t{number}", [])


REQUESTS: dict[str, tuple[int, Message]] = {
    "topics to create": (apis.CREATE_TOPICS, m.CreateTopicsRequest([create(n) for n in range(MANY)])),
    "partitions of a new topic": (apis.CREATE_TOPICS, m.CreateTopicsRequest([create(0, num_partitions=MANY)])),
    "assignments of a new topic": (
        apis.CREATE_TOPICS,
        m.CreateTopicsRequest(
            [
                create(
                    0,
                    num_partitions=-1,
                    replication_factor=-1,
                    assignments=[m.CreatableReplicaAssignment(n, [1]) for n in range(MANY)],
                )
            ]
        ),
    ),
    "configurations of a new topic": (
        apis.CREATE_TOPICS,
        m.CreateTopicsRequest([create(0, configs=[m.TopicConfig("retention.ms", "1")] * MANY)]),
    ),
    "topics to delete": (apis.DELETE_TOPICS, m.DeleteTopicsRequest([m.DeleteTopicState(f"t{n}") for n in range(MANY)])),
    "topics to enlarge": (
        apis.CREATE_PARTITIONS,
        m.CreatePartitionsRequest([m.CreatePartitionsTopic(f"t{n}", 2) for n in range(MANY)]),
    ),
    "added partitions": (apis.CREATE_PARTITIONS, m.CreatePartitionsRequest([m.CreatePartitionsTopic("t", 1 + MANY)])),
    "assignments of added partitions": (
        apis.CREATE_PARTITIONS,
        m.CreatePartitionsRequest([m.CreatePartitionsTopic("t", 2, [[1]] * MANY)]),
    ),
    "resources": (apis.INCREMENTAL_ALTER_CONFIGS, m.IncrementalAlterConfigsRequest([config(n) for n in range(MANY)])),
    "changes of a resource": (
        apis.INCREMENTAL_ALTER_CONFIGS,
        m.IncrementalAlterConfigsRequest(
            [m.AlterConfigsResource(m.RESOURCE_TOPIC, "t", [m.AlterableConfig(f"k{n}", 0, "1") for n in range(MANY)])]
        ),
    ),
    "partitions to reassign": (
        apis.ALTER_PARTITION_REASSIGNMENTS,
        m.AlterPartitionReassignmentsRequest([m.ReassignableTopic("t", [m.ReassignablePartition(n, [1]) for n in range(MANY)])]),
    ),
    "topics to reassign": (
        apis.ALTER_PARTITION_REASSIGNMENTS,
        m.AlterPartitionReassignmentsRequest([m.ReassignableTopic(f"t{n}", []) for n in range(MANY)]),
    ),
    "rules": (apis.CREATE_ACLS, s.CreateAclsRequest([s.AclBinding(2, f"t{n}", 3, "User:a", "*", 3, 3) for n in range(MANY)])),
    "filters": (apis.DELETE_ACLS, s.DeleteAclsRequest([s.AclFilter(resource_name=f"t{n}") for n in range(MANY)])),
    "credentials": (
        apis.ALTER_USER_SCRAM_CREDENTIALS,
        s.AlterUserScramCredentialsRequest([s.ScramCredentialDeletion(f"u{n}", 1) for n in range(MANY)]),
    ),
    "entities": (
        apis.ALTER_CLIENT_QUOTAS,
        s.AlterClientQuotasRequest([s.QuotaAlteration([s.QuotaEntityPart("user", f"u{n}")], []) for n in range(MANY)]),
    ),
}


@pytest.mark.parametrize("what", REQUESTS)
def test_a_request_with_too_much_is_refused_as_a_whole(what: str) -> None:
    api_key, body = REQUESTS[what]
    world = ControllerWorld(brokers=1)
    world.create("t", [[1]])
    offset = world.image.offset
    with pytest.raises(BrokerError, match=f"at most {CHANGES_MAX} .*, not 1000[0-9]; send several requests") as e:
        world.call(api_key, body)
    assert (e.value.code, world.image.offset) == (ErrorCode.POLICY_VIOLATION, offset)
