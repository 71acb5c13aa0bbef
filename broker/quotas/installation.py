"""Wraps a broker's handlers with meters while there are quotas, and unwraps them when the last quota is removed.

So a broker without quotas does no work for them per request. All connections of a server share one dict of handlers, so a change
of the dict takes effect with the next request of each connection.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from strandline.broker.fetch.fetch_handler import Fetch, FetchHandler
from strandline.broker.quotas.client_quotas import BrokerQuotas
from strandline.broker.quotas.limited_fetch import LimitedFetch
from strandline.broker.quotas.metered import Meter
from strandline.controller.metadata.image import MetadataDelta
from strandline.controller.metadata.security.quota_lookup import CONNECTION_CREATION_RATE, has_quota, ip_quota_of
from strandline.protocol import apis
from strandline.protocol.loggers import get_logger
from strandline.protocol.rpc.address_limits import AddressLimits
from strandline.protocol.rpc.server import Handler, Server

logger = get_logger(__name__)

_NEVER_METERED = frozenset({apis.SASL_HANDSHAKE, apis.SASL_AUTHENTICATE})
"""The client is not authenticated yet, so no quota of a user can apply."""


class QuotaInstallation:
    """Applies the quotas of one broker to its servers."""

    def __init__(
        self,
        quotas: BrokerQuotas,
        addresses: AddressLimits,
        now: Callable[[], float],
        stopwatch: Callable[[], float],
    ) -> None:
        self.quotas = quotas
        self.addresses = addresses
        self.fetch_handler: FetchHandler | None = None
        """Set by the wiring (`broker/process/handlers.py`)."""
        self._now = now
        self._meter = Meter(quotas, now, stopwatch)
        self._plain: list[tuple[Server, dict[int, Handler]]] = []
        """Each server, with the unwrapped handlers of those APIs that are metered now."""

    def serve(self, servers: Sequence[Server]) -> None:
        """Measure the requests of these servers from now on. Called when their handlers are complete."""
        self._plain = [(server, {}) for server in servers]
        self._install()

    def apply_delta(self, delta: MetadataDelta) -> None:
        """Apply changed quotas. They take effect with the next request."""
        if not delta.changed_client_quotas:
            return
        client_quotas = delta.image.client_quotas
        self.quotas.use(client_quotas, self._now())
        has_rates = has_quota(client_quotas, CONNECTION_CREATION_RATE)
        self.addresses.use_rates(partial(ip_quota_of, client_quotas, CONNECTION_CREATION_RATE) if has_rates else None)
        logger.info("quotas.applied", metadata_offset=delta.image.offset)
        self._install()

    def drop_idle(self) -> None:
        """Drop the budgets of clients that have sent no request for a long time. Called regularly."""
        self.quotas.drop_idle(self._now())

    def _install(self) -> None:
        if self.fetch_handler is not None:
            self.fetch_handler.make_fetch = partial(LimitedFetch, self.quotas) if self.quotas.fetch.is_needed else Fetch
        for server, plain in self._plain:
            wanted = self._metered_apis(server)
            for api_key in [key for key in plain if key not in wanted]:
                server.handlers[api_key] = plain.pop(api_key)
            for api_key in wanted:
                if api_key not in plain:
                    plain[api_key] = server.handlers[api_key]
                    server.handlers[api_key] = self._meter.wrap(api_key, plain[api_key])

    def _metered_apis(self, server: Server) -> list[int]:
        if self.quotas.request.is_needed:
            return [api_key for api_key in server.handlers if api_key not in _NEVER_METERED]
        return [apis.PRODUCE] if self.quotas.produce.is_needed else []
