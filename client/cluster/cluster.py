"""A client's access to the cluster: connections, metadata, and requests that any broker may answer.

Each part is one class, and the client uses the parts directly:

    cluster.cache          MetadataCache      what the client knows about brokers, topics and leaders
    cluster.metadata       MetadataUpdater    keeps the cache fresh; waits for a topic
    cluster.connections    BrokerConnections  one connection per address; a request to one broker
    cluster.any_broker     AnyBroker          a request that any broker may answer
    cluster.listeners      Listeners          callbacks, called after each refresh and each change of a connection

`Cluster` constructs the parts and connects them: a connection that is lost and a response that is overdue both cause a metadata
refresh, because another broker may lead the partitions by then.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from random import Random

from strandline.client.cluster.any_broker import AnyBroker
from strandline.client.cluster.connection_state import ConnectionState
from strandline.client.cluster.connections import BrokerConnections
from strandline.client.cluster.listeners import Listeners
from strandline.client.cluster.metadata import MetadataCache
from strandline.client.cluster.metadata_updater import MetadataUpdater
from strandline.client.cluster.throttle_times import ThrottleTimes
from strandline.client.errors import AuthenticationFailed, NoBrokersAvailable, RequestTimeout
from strandline.client.options import ClientOptions

STALL_S = 0.5
"""If a response is overdue by this time (seconds), the client checks whether the leader has moved."""


class Cluster:
    """The parts of one client. Belongs to the event loop in which it was started. `random` selects the broker that the client
    asks first."""

    def __init__(self, options: ClientOptions, random: Random) -> None:
        self.options = options
        self.cache = MetadataCache()
        self.listeners = Listeners()
        self.throttles = ThrottleTimes()
        self.connections = BrokerConnections(options, self.cache, self._on_connection_change, self.listeners.notify_in)
        self.any_broker = AnyBroker(self.connections, random)
        self.metadata = MetadataUpdater(options, self.cache, self.any_broker, self.listeners.notify)
        self.closed = False
        """Set when `close` begins. From then on, the parts reject further work."""

    async def start(self) -> None:
        """Find the cluster. AuthenticationFailed at once; NoBrokersAvailable or RequestTimeout after `connect_timeout_ms`, or
        `max_block_ms` if that is shorter, so that a cluster that is down is reported soon."""
        self.any_broker.choose_first()
        await self.metadata.renew()

    async def close(self) -> None:
        """Close the connections. Calls that wait for metadata raise ClientClosed."""
        self.closed = True
        self.listeners.close()
        self.connections.stop_connecting()
        await self.metadata.close()
        await self.connections.close()

    @property
    def refusal(self) -> AuthenticationFailed | None:
        """The error of a cluster that rejects the client: the newest metadata request was sent to all brokers, none answered it,
        and one has rejected the authentication. None if the cluster accepts the client, or cannot be reached."""
        error = self.metadata.last_error
        return error if isinstance(error, AuthenticationFailed) else None

    async def check_refusal(self) -> None:
        """If the cluster has rejected the client, check whether it still does. AuthenticationFailed if so."""
        if self.refusal is not None:
            with suppress(NoBrokersAvailable, RequestTimeout):  # It may accept the client when it can be reached again.
                await self.metadata.refresh(self.options.connect_timeout_ms)

    # -- leaders that may have moved ----------------------------------------------------------------------------------

    def suspect(self, broker_id: int) -> None:
        """A response of this broker is overdue: it may be gone, and another broker may lead its partitions."""
        state = self.connections.state_of(broker_id)
        if state is not None and self.throttles.until(broker_id) <= asyncio.get_running_loop().time():
            state.suspect()
        self.metadata.request_refresh()

    def suspect_if_stalled(self, broker_id: int, oldest_request_at: float | None, limit_s: float) -> None:
        """Suspect the broker if its oldest unanswered request was sent more than `limit_s` seconds ago. `oldest_request_at`: when
        it was sent, on the loop's clock; None: no request is unanswered. The throttle time of the broker does not count."""
        if oldest_request_at is None:
            return
        waits_since = max(oldest_request_at, self.throttles.until(broker_id))
        if asyncio.get_running_loop().time() - waits_since > limit_s:
            self.suspect(broker_id)

    def refresh_if_unreachable(self, broker_id: int) -> None:
        """There is no connection to the broker. If it is unknown or cannot be reached, another broker may lead its partitions."""
        state = self.connections.state_of(broker_id)
        if state is None or state.failures:
            self.metadata.request_refresh()

    def _on_connection_change(self, state: ConnectionState, lost: bool) -> None:
        """A connection was opened or lost, could not be opened, or takes long to open."""
        if lost and self.metadata.topics_wanted:
            self.metadata.request_refresh()
        self.listeners.notify()
