"""The one table of rights: which right each API needs, on brokers and on controllers, and the guard that checks it.

A broker forwards requests about the whole cluster to the active controller, in an Envelope with the client's principal. The
controller checks the rights of such a request, so the broker's guard passes it on (`forwarded`).

Rights are Kafka's, where Kafka has the API. `tests/controller/security/test_rights.py` compares the table with
`protocol/apis.py`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from strandline.controller.metadata.security.access import Access, Rights
from strandline.controller.metadata.security.guards import data, groups, topics, transactions
from strandline.controller.metadata.security.guards.common import Guard, Handler, cluster, everyone
from strandline.protocol import apis
from strandline.protocol.apis import BROKER
from strandline.protocol.errors import InternalError
from strandline.protocol.messages.security import ALTER, ALTER_CONFIGS, CLUSTER_ACTION, DESCRIBE, DESCRIBE_CONFIGS


def forwarded(access: Any, request: Any, handler: Handler) -> Any:
    """The guard of a broker for requests that it forwards. Handlers are not wrapped with it."""
    return handler(request)


NODES_ONLY = cluster(CLUSTER_ACTION)


class ApiRights(NamedTuple):
    """The rights of one API."""

    text: str
    """The needed rights, as the documentation prints them."""
    broker: Guard | None
    """None: a broker does not serve the API."""
    controller: Guard | None = None

    def guard_of(self, role: str) -> Guard | None:
        return self.broker if role == BROKER else self.controller


def _nodes() -> ApiRights:
    return ApiRights("CLUSTER_ACTION on the cluster", None, NODES_ONLY)


def _forwarded(text: str, guard: Guard) -> ApiRights:
    return ApiRights(text, forwarded, guard)


def _both(text: str, guard: Guard) -> ApiRights:
    return ApiRights(text, guard, guard)


_OPEN = _both("none", everyone)
_ALTER_CLUSTER = _forwarded("ALTER on the cluster", cluster(ALTER))
_DESCRIBE_CLUSTER = _forwarded("DESCRIBE on the cluster", cluster(DESCRIBE))
_MEMBER = ApiRights("READ on the group", groups.member)

RIGHTS: Mapping[int, ApiRights] = {
    # -- connections
    apis.API_VERSIONS: _OPEN,
    apis.SASL_HANDSHAKE: _OPEN,
    apis.SASL_AUTHENTICATE: _OPEN,
    apis.ENVELOPE: ApiRights("CLUSTER_ACTION on the cluster; the request in it: the rights of its principal", None, NODES_ONLY),
    # -- records
    apis.PRODUCE: ApiRights("WRITE on each topic, and on the transactional id", data.produce),
    apis.FETCH: ApiRights("READ on each topic; CLUSTER_ACTION for followers and at controllers", data.fetch, NODES_ONLY),
    apis.LIST_OFFSETS: ApiRights("DESCRIBE on each topic; CLUSTER_ACTION for followers", data.list_offsets),
    apis.OFFSET_FOR_LEADER_EPOCH: ApiRights("DESCRIBE on each topic; CLUSTER_ACTION for followers", data.offset_for_leader_epoch),
    apis.DELETE_RECORDS: ApiRights("DELETE on each topic", data.delete_records),
    apis.INIT_PRODUCER_ID: ApiRights(
        "WRITE on the transactional id or the producer's name; IDEMPOTENT_WRITE on the cluster, or WRITE on any topic",
        data.init_producer_id,
    ),
    apis.DESCRIBE_PRODUCERS: ApiRights("READ on each topic; WRITE for named producers about themselves", data.describe_producers),
    apis.DESCRIBE_OFFSET_LAG: ApiRights("DESCRIBE on each topic; CLUSTER_ACTION for brokers", data.offset_lag),
    # -- topics and configurations
    apis.METADATA: ApiRights("DESCRIBE on each topic", topics.metadata),
    apis.CREATE_TOPICS: _forwarded("CREATE on the cluster, or on each topic", topics.create_topics),
    apis.DELETE_TOPICS: _forwarded("DELETE on the cluster, or on each topic", topics.delete_topics),
    apis.CREATE_PARTITIONS: _forwarded("ALTER on each topic", topics.create_partitions),
    apis.DESCRIBE_CONFIGS: _both(
        "DESCRIBE_CONFIGS on each topic or group, or on the cluster for brokers", topics.describe_configs
    ),
    apis.INCREMENTAL_ALTER_CONFIGS: _forwarded(
        "ALTER_CONFIGS on each topic or group, or on the cluster for brokers", topics.alter_configs
    ),
    apis.DESCRIBE_UNCLEAN_ELECTIONS: ApiRights("DESCRIBE on each topic", topics.unclean_elections),
    # -- groups
    apis.FIND_COORDINATOR: ApiRights("DESCRIBE on each group or transactional id", groups.find_coordinator),
    apis.JOIN_GROUP: _MEMBER,
    apis.SYNC_GROUP: _MEMBER,
    apis.HEARTBEAT: _MEMBER,
    apis.LEAVE_GROUP: _MEMBER,
    apis.CONSUMER_GROUP_HEARTBEAT: ApiRights(
        "READ on the group, DESCRIBE on each topic that is subscribed to by name", groups.consumer_group_heartbeat
    ),
    apis.OFFSET_COMMIT: ApiRights("READ on the group and on each topic", groups.offset_commit),
    apis.OFFSET_FETCH: ApiRights("DESCRIBE on each group and each topic", groups.offset_fetch),
    apis.OFFSET_DELETE: ApiRights("DELETE on the group, READ on each topic", groups.offset_delete),
    apis.LIST_GROUPS: ApiRights("DESCRIBE on the cluster, or on each group", groups.list_groups),
    apis.DESCRIBE_GROUPS: ApiRights("DESCRIBE on each group", groups.describe_groups),
    apis.CONSUMER_GROUP_DESCRIBE: ApiRights("DESCRIBE on each group and each of its topics", groups.consumer_group_describe),
    apis.DELETE_GROUPS: ApiRights("DELETE on each group", groups.delete_groups),
    # -- transactions
    apis.ADD_PARTITIONS_TO_TXN: ApiRights(
        "WRITE on the transactional id and on each topic; CLUSTER_ACTION for brokers", transactions.add_partitions
    ),
    apis.ADD_OFFSETS_TO_TXN: ApiRights("WRITE on the transactional id, READ on the group", transactions.add_offsets),
    apis.TXN_OFFSET_COMMIT: ApiRights(
        "WRITE on the transactional id, READ on the group and on each topic", transactions.txn_offset_commit
    ),
    apis.END_TXN: ApiRights("WRITE on the transactional id", transactions.end_txn),
    apis.WRITE_TXN_MARKERS: ApiRights("CLUSTER_ACTION or ALTER on the cluster", transactions.write_markers),
    apis.DESCRIBE_TRANSACTIONS: ApiRights(
        "DESCRIBE on each transactional id and each topic; CLUSTER_ACTION for brokers", transactions.describe
    ),
    apis.LIST_TRANSACTIONS: ApiRights("DESCRIBE on each transactional id", transactions.list_transactions),
    # -- the cluster
    apis.DESCRIBE_CLUSTER: ApiRights("none at brokers, ALTER on the cluster at controllers", everyone, cluster(ALTER)),
    apis.DESCRIBE_QUORUM: _DESCRIBE_CLUSTER,
    apis.DESCRIBE_LOG_DIRS: ApiRights("DESCRIBE on the cluster", cluster(DESCRIBE)),
    apis.ALTER_REPLICA_LOG_DIRS: ApiRights("ALTER on the cluster", cluster(ALTER)),
    apis.ELECT_LEADERS: _ALTER_CLUSTER,
    apis.ALTER_PARTITION_REASSIGNMENTS: _ALTER_CLUSTER,
    apis.LIST_PARTITION_REASSIGNMENTS: _DESCRIBE_CLUSTER,
    apis.UNREGISTER_BROKER: _ALTER_CLUSTER,
    apis.UPDATE_FEATURES: _ALTER_CLUSTER,
    # -- security
    apis.DESCRIBE_ACLS: _both("DESCRIBE on the cluster", cluster(DESCRIBE)),
    apis.CREATE_ACLS: _ALTER_CLUSTER,
    apis.DELETE_ACLS: _ALTER_CLUSTER,
    apis.DESCRIBE_USER_SCRAM_CREDENTIALS: _both("DESCRIBE on the cluster", cluster(DESCRIBE)),
    apis.ALTER_USER_SCRAM_CREDENTIALS: _ALTER_CLUSTER,
    apis.DESCRIBE_CLIENT_QUOTAS: _both("DESCRIBE_CONFIGS on the cluster", cluster(DESCRIBE_CONFIGS)),
    apis.ALTER_CLIENT_QUOTAS: _forwarded("ALTER_CONFIGS on the cluster", cluster(ALTER_CONFIGS)),
    # -- between nodes
    apis.GET_REPLICA_LOG_INFO: ApiRights("CLUSTER_ACTION on the cluster", NODES_ONLY),
    apis.VOTE: _nodes(),
    apis.BEGIN_QUORUM_EPOCH: _nodes(),
    apis.END_QUORUM_EPOCH: _nodes(),
    apis.FETCH_SNAPSHOT: _nodes(),
    apis.BROKER_REGISTRATION: _nodes(),
    apis.BROKER_HEARTBEAT: _nodes(),
    apis.ALTER_PARTITION: _nodes(),
    apis.ASSIGN_REPLICAS_TO_DIRS: _nodes(),
    apis.ALLOCATE_PRODUCER_IDS: _nodes(),
    apis.INIT_NAMED_PRODUCER: _nodes(),
}

FORWARDABLE = frozenset(key for key, rights in RIGHTS.items() if rights.broker is forwarded)
"""The APIs that a controller accepts in an Envelope."""


def guarded(handlers: Mapping[int, Handler], role: str, rights: Rights, then: Mapping[int, Guard] = {}) -> dict[int, Handler]:
    """The handlers of a node, each behind its guard. Raises InternalError for an API without rights: it would be open to all.

    `then`: other guards, which run after those of the rights."""
    return {key: _guarded(key, handler, role, rights, then.get(key)) for key, handler in handlers.items()}


def _guarded(key: int, handler: Handler, role: str, rights: Rights, then: Guard | None) -> Handler:
    guard = RIGHTS[key].guard_of(role) if key in RIGHTS else None
    if guard is None:
        raise InternalError(f"the API {apis.api_name(key)} has no rights for a {role} (controller/metadata/security/rights.py)")
    if guard in (everyone, forwarded):
        return handler
    return _behind(guard if then is None else _both_guards(guard, then), handler, rights.access_of)


def _both_guards(first: Guard, second: Guard) -> Guard:
    def guard(access: Access, request: Any, handler: Handler) -> Any:
        return first(access, request, lambda passed: second(access, passed, handler))

    return guard


def _behind(guard: Guard, handler: Handler, access_of: Callable[[Any], Access]) -> Handler:
    def handle(request: Any) -> Any:
        return guard(access_of(request), request, handler)

    return handle
