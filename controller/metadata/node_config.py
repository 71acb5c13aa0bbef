"""Configuration that brokers and controllers share, beyond the table of keys: addresses, the data directories, and the HTTP
listener."""

from __future__ import annotations

from strandline.controller.metadata.config_keys import ConfigKey
from strandline.protocol.errors import UsageError
from strandline.protocol.messages.common import Listener


def parse_address(text: str) -> tuple[str, int]:
    """The host and port of `host:port`; port -1 if the text has no valid port. An IPv6 host is in brackets."""
    host, _, port = text.rpartition(":")
    if not (port.isascii() and port.isdigit() and int(port) <= 65535) or host.split() not in ([], [host]):
        return "", -1
    return host.removeprefix("[").removesuffix("]"), int(port)


def parse_listeners(key: str, items: list[str]) -> tuple[Listener, ...]:
    """The listeners of a list of `NAME://host:port`, at least one, no name twice. Raises UsageError."""
    listeners = tuple(_listener(key, item) for item in items)
    if not listeners:
        raise UsageError(f"config {key} must name at least one listener")
    if len({listener.name.upper() for listener in listeners}) < len(listeners):
        raise UsageError(f"config {key} has two listeners of the same name")
    return listeners


def _listener(key: str, item: str) -> Listener:
    name, separator, address = item.partition("://")
    host, port = parse_address(address)
    if not separator or not name or port < 0:
        raise UsageError(f"config {key}: {item!r} is not of the form NAME://host:port")
    return Listener(name, host, port)


def http_listener_key(default: str) -> ConfigKey:
    return ConfigKey(
        "http.listener",
        "string",
        default,
        "",
        "the address of health and metrics over HTTP: host:port; port 0 is any port; empty turns HTTP off",
        check=_check_http_listener,
    )


def _check_http_listener(value: str) -> str | None:
    return "must be host:port, or empty" if value and not parse_address(value)[0] else None


def only_directory(directories: list[str]) -> str:
    """The one directory of a controller's `log.dirs`. Raises UsageError if there is none, or more than one."""
    if len(directories) != 1:
        raise UsageError(f"config log.dirs must name one directory, not {len(directories)}: a controller has one log")
    return directories[0]


def separate_directories(directories: list[str]) -> tuple[str, ...]:
    """The directories of a broker's `log.dirs`. Raises UsageError if there is none, one is named twice, or one lies in another:
    each must be able to fail, and to be moved to another disk, without the others."""
    if not directories:
        raise UsageError("config log.dirs must name at least one directory")
    parts = {directory: _parts(directory) for directory in directories}
    for index, directory in enumerate(directories):
        for other in directories[index + 1 :]:
            outer, inner = sorted((directory, other), key=lambda each: len(parts[each]))
            if parts[inner] == parts[outer]:
                raise UsageError(f"config log.dirs names {directory} twice")
            if parts[inner][: len(parts[outer])] == parts[outer]:
                raise UsageError(f"config log.dirs: {inner} lies in {outer}; each directory must be separate")
    return tuple(directories)


def _parts(path: str) -> list[str]:
    """The names on the path, after a "/" if it is absolute, or "" if it is relative."""
    return ["/" if path.startswith("/") else "", *(part for part in path.split("/") if part not in ("", "."))]
