"""Settings with which a real Kafka and Strandline are compared."""

from __future__ import annotations

SETTINGS = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
    "transaction.state.log.num.partitions": "5",
    "offsets.topic.num.partitions": "5",
}
"""Settings of a real Kafka. It has an authorizer, so that ACLs can be listed, but every client may do everything."""
OURS = {
    **SETTINGS,
    "transaction.state.log.num.partitions": 5,
    "offsets.topic.num.partitions": 5,
    "group.initial.rebalance.delay.ms": 0,
    "http.listener": "",
}
