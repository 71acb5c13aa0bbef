"""The helpers of aiokafka 0.14."""

from __future__ import annotations

import ssl
from typing import Any


def create_ssl_context(
    *,
    cafile: Any = None,
    capath: Any = None,
    cadata: Any = None,
    certfile: Any = None,
    keyfile: Any = None,
    password: Any = None,
) -> ssl.SSLContext:
    """A context for `ssl_context`. `cafile`, `capath`, `cadata`: the authorities that the client trusts; by default those of the
    system. `certfile`: the client's own certificate, with the key in `keyfile` or in the same file. OSError and ssl.SSLError for
    files that cannot be used."""
    context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=cafile, capath=capath, cadata=cadata)
    if certfile is not None:
        context.load_cert_chain(certfile, keyfile, password)
    return context


__all__ = ["create_ssl_context"]
