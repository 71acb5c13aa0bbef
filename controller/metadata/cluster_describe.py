"""DescribeCluster: the brokers of the cluster, as brokers and controllers describe them."""

from __future__ import annotations

from collections.abc import Iterable

from strandline.controller.metadata.image import BrokerRegistration, MetadataImage
from strandline.controller.metadata.node_keys import DRAINING
from strandline.protocol.messages.admin import RESOURCE_BROKER, DescribeClusterBroker


def is_draining(image: MetadataImage, broker_id: int) -> bool:
    """Whether an administrator drains the broker: it gets no new replicas."""
    return image.config(RESOURCE_BROKER, str(broker_id)).get(DRAINING) == "true"


def describe_brokers(
    image: MetadataImage, brokers: Iterable[BrokerRegistration], listener_name: str | None, *, include_fenced: bool
) -> list[DescribeClusterBroker]:
    """Each broker's state, and its address on the named listener (None: its first one). A broker without that listener is left
    out."""
    described = []
    for broker in brokers:
        endpoint = broker.endpoint(listener_name)
        if endpoint is None or (broker.fenced and not include_fenced):
            continue
        described.append(
            DescribeClusterBroker(
                broker.broker_id,
                endpoint.host,
                endpoint.port,
                broker.rack,
                broker.fenced,
                broker.broker_epoch,
                broker.in_controlled_shutdown,
                is_draining(image, broker.broker_id),
                broker.is_cordoned,
            )
        )
    return described
