"""What the configurations of brokers and controllers have in common beyond the table of keys: addresses, the data
directory, and where HTTP is served."""

from __future__ import annotations

from strandline.controller.metadata.config_keys import ConfigKey
from strandline.protocol.errors import UsageError


def parse_address(text: str) -> tuple[str, int]:
    """Host and port; port -1 when there is none that could be. An IPv6 host stands in brackets."""
    host, _, port = text.rpartition(":")
    if not (port.isascii() and port.isdigit() and int(port) <= 65535) or host.split() not in ([], [host]):
        return "", -1
    return host.removeprefix("[").removesuffix("]"), int(port)


def http_listener_key(default: str) -> ConfigKey:
    return ConfigKey(
        "http.listener",
        "string",
        default,
        "",
        "where health and metrics are served over HTTP: host:port; port 0: any; empty: nowhere",
        check=_check_http_listener,
    )


def _check_http_listener(value: str) -> str | None:
    return "must be host:port, or empty" if value and not parse_address(value)[0] else None


def only_directory(directories: list[str]) -> str:
    if len(directories) != 1:
        raise UsageError(f"config log.dirs: one directory is needed and offered for now, not {len(directories)}")
    return directories[0]
