"""How the brokers of the cluster look to who asks for them, at a broker or at a controller."""

from __future__ import annotations

from collections.abc import Iterable

from strandline.controller.metadata.image import BrokerRegistration
from strandline.protocol.messages.admin import DescribeClusterBroker


def describe_brokers(
    brokers: Iterable[BrokerRegistration], listener_name: str | None, *, include_fenced: bool
) -> list[DescribeClusterBroker]:
    """Their addresses on the named listener (None: the first one) and their states; who does not listen there is left out."""
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
            )
        )
    return described
