"""The admin client's calls about the configuration of topics, groups and brokers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from strandline.client.admin.requests import AdminRequests, check_code
from strandline.client.admin_types import ConfigEntry, ConfigSynonym
from strandline.client.arguments import checked_list
from strandline.client.errors import UsageError, request_failed
from strandline.protocol import apis
from strandline.protocol.errors import ErrorCode
from strandline.protocol.messages import admin as messages

_RESOURCE_TYPES = {"topic": messages.RESOURCE_TOPIC, "group": messages.RESOURCE_GROUP, "broker": messages.RESOURCE_BROKER}
_SOURCES = {
    messages.CONFIG_SOURCE_DYNAMIC_TOPIC: "topic",
    messages.CONFIG_SOURCE_DYNAMIC_GROUP: "group",
    messages.CONFIG_SOURCE_DYNAMIC_BROKER: "broker",
    messages.CONFIG_SOURCE_DYNAMIC_DEFAULT_BROKER: "cluster",
    messages.CONFIG_SOURCE_STATIC_BROKER: "static",
    messages.CONFIG_SOURCE_DEFAULT: "default",
}


class ConfigCalls(AdminRequests):
    """Describes and changes configuration."""

    async def describe_configs(
        self, resource_type: str, name: str | int, keys: Iterable[str] | None = None, *, timeout_ms: float = 30_000
    ) -> list[ConfigEntry]:
        """The configuration of a resource, or these keys of it, with the source of each value. `resource_type`: "topic", "group"
        or "broker"; `name`: the name of the topic or group, or the broker's id ("" for the default of all brokers). The request
        about a broker is sent to that broker, because no other node knows its file. UnknownTopic; RequestFailed with `code`
        BROKER_ID_NOT_REGISTERED if no unfenced broker has this id; RequestTimeout."""
        resource = messages.DescribeConfigsResource(
            _resource(resource_type), str(name), None if keys is None else checked_list("keys", keys)
        )
        request = messages.DescribeConfigsRequest([resource], include_documentation=True, include_synonyms=True)

        def check(response: messages.DescribeConfigsResponse, is_retry: bool) -> None:
            for result in response.results:
                check_code(result.error_code, result.error_message, "DescribeConfigs", topic=_topic_of(result))

        deadline = self._deadline(timeout_ms)
        broker_id = self._known_broker(name) if resource_type == "broker" and name != "" else None
        kind = messages.DescribeConfigsResponse
        response = await self._ask(apis.DESCRIBE_CONFIGS, request, kind, check, deadline, broker_id)
        return [_config_entry(config) for result in response.results for config in result.configs]

    async def alter_configs(
        self,
        resource_type: str,
        name: str | int,
        configs: Mapping[str, str | int | float | bool | None],
        *,
        append: Mapping[str, str | Iterable[str]] | None = None,
        subtract: Mapping[str, str | Iterable[str]] | None = None,
        validate_only: bool = False,
        timeout_ms: float = 30_000,
    ) -> list[str]:
        """Set these keys and leave all others as they are (KIP-339); None removes a key, so that its default applies again.
        `append`, `subtract`: items to add to keys whose type is "list", or to remove from them; they change the value that
        applies now. Resources are named as for `describe_configs`. `validate_only`: check the request and change nothing.

        Returns warnings, which are sentences for people, for example about a min.insync.replicas above the replication factor.
        UnknownTopic; RequestFailed with `code` INVALID_CONFIG; RequestTimeout."""
        changes = [
            messages.AlterableConfig(key, messages.CONFIG_DELETE if value is None else messages.CONFIG_SET, config_text(value))
            for key, value in configs.items()
        ]
        changes += _item_changes(messages.CONFIG_APPEND, append) + _item_changes(messages.CONFIG_SUBTRACT, subtract)
        resource = messages.AlterConfigsResource(_resource(resource_type), str(name), changes)
        request = messages.IncrementalAlterConfigsRequest([resource], validate_only)

        def check(response: messages.IncrementalAlterConfigsResponse, is_retry: bool) -> None:
            for result in response.responses:
                check_code(result.error_code, result.error_message, "IncrementalAlterConfigs", topic=_topic_of(result))

        deadline = self._deadline(timeout_ms)
        kind = messages.IncrementalAlterConfigsResponse
        response = await self._ask(apis.INCREMENTAL_ALTER_CONFIGS, request, kind, check, deadline)
        return [warning for result in response.responses for warning in result.warnings]

    def _known_broker(self, name: str | int) -> int:
        """The id of an unfenced broker; RequestFailed if the cluster has none with this id."""
        cluster = self._running()
        if not str(name).isdecimal():
            raise UsageError(f"a broker is named by its id, a number, not {name!r}")
        if cluster.connections.state_of(int(name)) is None:
            known = ", ".join(map(str, sorted(cluster.cache.brokers))) or "none"
            code = ErrorCode.BROKER_ID_NOT_REGISTERED
            text = f"the cluster has no broker {name} that is unfenced; it has: {known}"
            raise request_failed(text, api="DescribeConfigs", code=code)
        return int(name)


def _topic_of(result: messages.DescribeConfigsResult | messages.AlterConfigsResourceResponse) -> str | None:
    return result.resource_name if result.resource_type == messages.RESOURCE_TOPIC else None


def _resource(resource_type: str) -> int:
    if resource_type not in _RESOURCE_TYPES:
        raise UsageError(f'a config resource is a "topic", a "group" or a "broker", not {resource_type!r}')
    return _RESOURCE_TYPES[resource_type]


def _item_changes(operation: int, items: Mapping[str, str | Iterable[str]] | None) -> list[messages.AlterableConfig]:
    return [
        messages.AlterableConfig(key, operation, given if isinstance(given, str) else ",".join(given))
        for key, given in (items or {}).items()
    ]


def config_text(value: str | int | float | bool | None) -> str | None:
    """A value of a configuration key as brokers expect it: "true" for True. None stays None."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return None if value is None else str(value)


def _config_entry(config: messages.DescribedConfig) -> ConfigEntry:
    return ConfigEntry(
        name=config.name,
        value=config.value,
        source=_SOURCES.get(config.config_source, "unknown"),
        read_only=config.read_only,
        is_sensitive=config.is_sensitive,
        type=config.config_type,
        documentation=config.documentation,
        synonyms=tuple(ConfigSynonym(s.name, s.value, _SOURCES.get(s.source, "unknown")) for s in config.synonyms),
        update=config.update,
    )
