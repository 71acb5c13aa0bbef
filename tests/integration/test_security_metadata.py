"""Access rules, SCRAM credentials and client quotas in a whole cluster: through a broker, over restarts and upgrades."""

from __future__ import annotations

from typing import Any

import pytest
from waiting import until
from wire_cluster import WireCluster

from strandline.controller.metadata.features import Levels
from strandline.protocol import apis
from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.messages import security as s

CREDENTIAL = s.ScramCredentialUpsertion("alice", s.SCRAM_SHA_256, 4096, b"salt" * 4, b"p" * 32)
ALICE = [s.QuotaEntityPart("user", "alice")]


def quota(value: float | None) -> s.AlterClientQuotasRequest:
    return s.AlterClientQuotasRequest([s.QuotaAlteration(ALICE, [s.QuotaOperation("producer_byte_rate", value)])])


async def described(cluster: WireCluster, node: int) -> tuple[list[Any], list[Any]]:
    """The users and the quotas as this broker knows them."""
    users = await cluster.ask(node, apis.DESCRIBE_USER_SCRAM_CREDENTIALS, s.DescribeUserScramCredentialsRequest(None))
    quotas = await cluster.ask(node, apis.DESCRIBE_CLIENT_QUOTAS, s.DescribeClientQuotasRequest([]))
    return users.users, quotas.entries


KNOWN = (
    [s.UserScramCredentials("alice", credentials=[s.ScramCredentialInfo(s.SCRAM_SHA_256, 4096)])],
    [s.QuotaEntry(ALICE, [s.QuotaValue("producer_byte_rate", 1024.0)])],
)


async def test_a_change_is_visible_where_it_was_made_and_survives_restarts() -> None:
    """A client that changes something through a broker sees it there at once; the other brokers follow."""
    async with WireCluster(controllers=1, brokers=2) as cluster:
        (result,) = (
            await cluster.ask(1, apis.ALTER_USER_SCRAM_CREDENTIALS, s.AlterUserScramCredentialsRequest([], [CREDENTIAL]))
        ).results
        assert result.error_code == 0
        await cluster.ask(1, apis.ALTER_CLIENT_QUOTAS, quota(1024))
        assert await described(cluster, 1) == KNOWN
        await until(lambda: len(cluster.server(2).metadata.image.client_quotas) == 1, "broker 2 follows")
        assert await described(cluster, 2) == KNOWN
        await cluster.restart(101, 1, 2)
        assert await described(cluster, 1) == KNOWN
        await cluster.ask(1, apis.ALTER_CLIENT_QUOTAS, quota(None))
        deletion = s.AlterUserScramCredentialsRequest([s.ScramCredentialDeletion("alice", s.SCRAM_SHA_256)])
        await cluster.ask(1, apis.ALTER_USER_SCRAM_CREDENTIALS, deletion)
        assert await described(cluster, 1) == ([], [])


RULE = s.AclBinding(s.TOPIC_RESOURCE, "orders", s.LITERAL_PATTERN, "User:alice", "10.1.2.3/8", s.READ, s.ALLOW)


async def test_a_rule_is_visible_where_it_was_created() -> None:
    """It is described in the form that the metadata has. After a deletion, the broker that deleted it no longer describes it."""
    own: dict[str, Any] = {"authorizer_class_name": "StandardAuthorizer", "super_users": "User:ANONYMOUS"}
    async with WireCluster(**own) as cluster:
        created = await cluster.ask(1, apis.CREATE_ACLS, s.CreateAclsRequest([RULE]))
        assert [result.error_code for result in created.results] == [0]
        wanted = s.AclFilter(host="10.0.0.0/8")
        (found,) = (await cluster.ask(1, apis.DESCRIBE_ACLS, s.DescribeAclsRequest(wanted))).acls
        assert (found.principal, found.host) == ("User:alice", "10.0.0.0/8")
        (deleted,) = (await cluster.ask(1, apis.DELETE_ACLS, s.DeleteAclsRequest([wanted]))).results
        assert deleted.deleted == [found]
        assert (await cluster.ask(1, apis.DESCRIBE_ACLS, s.DescribeAclsRequest(s.AclFilter()))).acls == []


async def test_rules_need_an_authorizer() -> None:
    """The controller refuses changes, and the broker refuses a description."""
    requests: list[tuple[int, Any]] = [
        (apis.CREATE_ACLS, s.CreateAclsRequest([RULE])),
        (apis.DELETE_ACLS, s.DeleteAclsRequest([s.AclFilter()])),
        (apis.DESCRIBE_ACLS, s.DescribeAclsRequest(s.AclFilter())),
    ]
    async with WireCluster() as cluster:
        for api_key, body in requests:
            with pytest.raises(BrokerError) as e:
                await cluster.ask(1, api_key, body)
            assert e.value.code == ErrorCode.SECURITY_DISABLED


class Level1Cluster(WireCluster):
    """A cluster whose nodes begin as a version without security in the metadata."""

    def _hosted(self) -> Any:
        nodes: Any = super()._hosted()
        for node in nodes.nodes.values():
            node.levels = Levels(0, 1)
        return nodes


async def test_a_cluster_of_level_1_is_upgraded_before_it_has_quotas() -> None:
    """Until then, the error says how to upgrade. Old nodes never read the new records."""
    async with Level1Cluster() as cluster:
        for node in (101, 1):
            await cluster.stop(node)
            cluster.hosted.nodes[node].levels = Levels(0, 2)
            await cluster.start(node)
        with pytest.raises(BrokerError, match=r"client quotas need level 2 .*strandline features upgrade") as e:
            await cluster.ask(1, apis.ALTER_CLIENT_QUOTAS, quota(1024))
        assert e.value.code == ErrorCode.UNSUPPORTED_VERSION
        async with cluster.admin() as admin:
            await admin.update_features(2)
        await cluster.ask(1, apis.ALTER_CLIENT_QUOTAS, quota(1024))
        assert (await described(cluster, 1))[1] == KNOWN[1]
