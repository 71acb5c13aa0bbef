"""The connections of a client: one per address, for the bootstrap servers and the addresses that brokers advertise.

A connection that breaks is opened again when it is needed, after a backoff (connection_state.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from strandline.client.cluster.connection_state import ConnectionState
from strandline.client.cluster.metadata import MetadataCache
from strandline.client.errors import NoBrokersAvailable, to_client_error
from strandline.client.option_types import Address, parse_bootstrap
from strandline.client.options import ClientOptions
from strandline.protocol.apis import api_name
from strandline.protocol.errors import BrokerError, StrandlineError
from strandline.protocol.messages.common import Message
from strandline.protocol.rpc.connection import Connection


class BrokerConnections:
    """Finds the connection to a broker by the address in the newest metadata, and opens it when it is needed."""

    def __init__(
        self,
        options: ClientOptions,
        cache: MetadataCache,
        on_change: Callable[[ConnectionState, bool], None],
        notify_in: Callable[[float], None],
    ) -> None:
        """`on_change`: see `ConnectionState`. `notify_in(delay_s)` is called when a connection must wait `delay_s` seconds for
        its backoff, so that its users look again after that."""
        self._options = options
        self._cache = cache
        self._on_change = on_change
        self._notify_in = notify_in
        self._bootstrap = parse_bootstrap(options.bootstrap_servers)
        self._states = {address: ConnectionState(address, options, on_change) for address in self._bootstrap}
        """The state of the connection to each address. Addresses that brokers advertise are added."""
        self._stopped = False
        """`to` no longer opens connections."""

    @property
    def brokers_connected(self) -> int:
        """The number of open connections."""
        return sum(state.connection is not None for state in self._states.values())

    def all(self) -> list[ConnectionState]:
        """The connections to all brokers of the newest metadata, ordered by broker id, then those to the bootstrap servers."""
        advertised = [state for broker_id in sorted(self._cache.brokers) if (state := self.state_of(broker_id)) is not None]
        return list(dict.fromkeys(advertised + [self._states[address] for address in self._bootstrap]))

    def state_of(self, broker_id: int) -> ConnectionState | None:
        """The state of the connection to a broker's advertised address; None if the broker is not known."""
        broker = self._cache.brokers.get(broker_id)
        return None if broker is None else self.state_at((broker.host, broker.port))

    def state_at(self, address: Address) -> ConnectionState:
        """The state of the connection to an address that a broker has named."""
        state = self._states.get(address)
        if state is None:
            state = self._states[address] = ConnectionState(address, self._options, self._on_change)
        return state

    def last_error_of(self, broker_id: int) -> StrandlineError | None:
        """Why the last attempt to connect to the broker failed, or its last connection was lost; None if neither happened."""
        state = self.state_of(broker_id)
        return None if state is None else state.last_error

    def to(self, broker_id: int) -> Connection | None:
        """The open connection to a broker. None if it is being opened, or waits for its backoff, or the broker is not known.
        Listeners are called when that changes."""
        state = self.state_of(broker_id)
        if state is None:
            return None
        if state.connection is None and not self._stopped:
            delay_s = state.connect_soon()
            if delay_s > 0:
                self._notify_in(delay_s)
        return state.connection

    async def request(self, broker_id: int, api_key: int, body: Message, timeout_ms: float | None = None) -> Any:
        """Send one request to one broker, and return its response. `timeout_ms` (by default `request_timeout_ms`) bounds
        connecting and the request together.

        Raises an error that names the broker: NoBrokersAvailable if the metadata does not contain it, or if no broker listens at
        its address; RequestTimeout; RequestFailed, with `code` NETWORK_EXCEPTION if it cannot be reached."""
        state = self.state_of(broker_id)
        if state is None:
            raise NoBrokersAvailable("the broker is not known", broker_id=broker_id, api=api_name(api_key))
        try:
            return await state.request(api_key, body, timeout_ms or self._options.request_timeout_ms)
        except BrokerError as e:
            raise to_client_error(e, api=api_name(api_key), broker_id=broker_id) from e

    def describe(self, tried: Iterable[Address] | None = None) -> str:
        """The result at each tried address (by default, at all addresses), with the bootstrap servers and the addresses that the
        brokers advertise, for an error message."""
        written = ", ".join(f"{host}:{port}" for host, port in self._bootstrap)
        addresses = self._states if tried is None else dict.fromkeys(tried)
        happened = "; ".join(self._states[address].describe() for address in addresses)
        text = f"no broker could be reached from the bootstrap servers {written}: {happened}"
        if self._cache.brokers:
            advertised = ", ".join(f"{b.node_id} at {b.host}:{b.port}" for b in self._cache.brokers.values())
            text += f" (they had advertised the brokers {advertised})"
        return text

    def stop_connecting(self) -> None:
        """From now on, `to` opens no connection. Open connections stay open until `close`."""
        self._stopped = True

    async def close(self) -> None:
        """Close all connections, one after the other."""
        for state in self._states.values():
            await state.close()
