"""The helpers of aiokafka 0.14."""

from __future__ import annotations

from typing import Any, NoReturn

from strandline.client.compat.aiokafka.errors import UnsupportedByStrandline


def create_ssl_context(**options: Any) -> NoReturn:
    """Raises UnsupportedByStrandline: connections are plaintext."""
    raise UnsupportedByStrandline(
        "create_ssl_context: Strandline's listeners are plaintext as yet; run the cluster in a private network, or put a TLS "
        "proxy before it"
    )


__all__ = ["create_ssl_context"]
