"""The keys of quotas, and of the limits of a node for all its clients together: a part of the table in `node_keys.py`.

The quotas themselves are not configuration keys: they are in the metadata (`strandline quota`, AlterClientQuotas)."""

from __future__ import annotations

from strandline.controller.metadata.config_keys import INT_MAX, ConfigKey, Update

BROKER_QUOTA_KEYS = (
    ConfigKey(
        "quota.window.num",
        "int",
        11,
        "",
        "for how many windows of quota.window.size.seconds the unused part of a byte or request quota is kept, and the longest "
        "throttle time of a byte quota",
        min=1,
    ),
    ConfigKey(
        "quota.window.size.seconds",
        "int",
        1,
        "s",
        "one window of byte and request quotas: the burst of a new client, and the longest throttle time of request_percentage",
        min=1,
    ),
)

CONTROLLER_QUOTA_KEYS = (
    ConfigKey(
        "controller.quota.window.num",
        "int",
        11,
        "",
        "how many windows' worth of controller_mutation_rate a client may use at once",
        min=1,
    ),
    ConfigKey("controller.quota.window.size.seconds", "int", 1, "s", "one window of controller_mutation_rate", min=1),
)

LISTENER_LIMIT_KEYS = (
    ConfigKey(
        "max.connections", "int", INT_MAX, "", "the most connections of one listener", min=1, update=Update.CLUSTER_OR_BROKER
    ),
    ConfigKey(
        "max.connection.creation.rate",
        "int",
        INT_MAX,
        "",
        "connections per second of one listener; those above it are accepted, and wait until they are served",
        min=1,
        update=Update.CLUSTER_OR_BROKER,
    ),
)
"""They may be given as `listener.name.<name>.<key>`, too."""

CONNECTION_KEYS = (
    ConfigKey(
        "max.connections.per.ip",
        "int",
        INT_MAX,
        "",
        "the most connections of one address, over all listeners",
        min=0,
        update=Update.CLUSTER_OR_BROKER,
    ),
    ConfigKey(
        "max.connections.per.ip.overrides",
        "string",
        "",
        "",
        "other limits for single addresses: address:connections, ...",
        check=lambda value: connection_overrides_problem(value),
        update=Update.CLUSTER_OR_BROKER,
    ),
)

QUEUED_BYTES_KEY = ConfigKey(
    "queued.max.request.bytes",
    "long",
    -1,
    "bytes",
    "the most bytes of unanswered requests of all connections together; above it, the broker reads no more of them; -1: no limit",
    min=-1,
)


def connection_overrides(text: str) -> dict[str, int]:
    """The limits of `max.connections.per.ip.overrides` by address. Raises ValueError if the text is malformed."""
    overrides = {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        host, separator, number = item.rpartition(":")
        host = host.strip().removeprefix("[").removesuffix("]")
        if not (separator and host and number.isascii() and number.isdigit()):
            raise ValueError(item)
        overrides[host] = int(number)
    return overrides


def connection_overrides_problem(text: str) -> str | None:
    """Why the value of `max.connections.per.ip.overrides` is wrong; None if it is right."""
    try:
        connection_overrides(text)
    except ValueError as e:
        return f"must be address:connections, ...; {str(e)!r} is not"
    return None
