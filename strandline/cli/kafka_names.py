"""The options of Kafka's own tools, understood where their users would type them.

Each command's words are translated before its options are parsed: `topic create --topic orders --bootstrap-server b:9092` becomes
`topic create orders --bootstrap b:9092`. The help shows only our names, so that it stays short. A name that a command has itself
is never translated, nor is the value of an option."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence

Translation = tuple[str, ...] | Callable[[str], list[str]]
"""The words that replace an option (its value, if it has one, follows them); or a function from the value to the words that
replace both."""


def _items(option: str) -> Callable[[str], list[str]]:
    """The items of a list, each as a value of this option."""
    return lambda value: [word for item in value.split(",") for word in (option, item)]


def _settings(option: str | None) -> Callable[[str], list[str]]:
    """`k1=v1,k2=[a,b]`, as kafka-configs.sh takes it: each setting as a value of this option, or as an argument."""

    def words(value: str) -> list[str]:
        settings = re.findall(r"[^,\[]+(?:\[[^\]]*\])?", value)
        plain = [setting.replace("[", "").replace("]", "") for setting in settings]
        return [word for setting in plain for word in ((option, setting) if option else (setting,))]

    return words


def _ago(duration: str) -> str:
    """A duration in ISO 8601 (`P1DT2H30M`), as kafka-consumer-groups.sh takes it, in ours (`-1d2h30m`)."""
    parts = re.fullmatch(r"P(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+)S)?)?", duration)
    if parts is None or not any(parts.groups()):
        return duration
    return "-" + "".join(number + unit for number, unit in zip(parts.groups(), "dhms", strict=True) if number)


EVERYWHERE: Mapping[str, Translation] = {
    "--bootstrap-server": ("--bootstrap",),
    "--bootstrap-servers": ("--bootstrap",),
    "--command-config": ("--client-config",),
    "--consumer.config": ("--client-config",),
    "--producer.config": ("--client-config",),
}
_TOPIC: Mapping[str, Translation] = {"--topic": (), "-t": ()}
_READING: Mapping[str, Translation] = {
    "--from-beginning": ("--from", "beginning"),
    "--offset": ("--from",),
    "--max-messages": ("--count",),
}
_ENTITY: Mapping[str, Translation] = {"--entity-type": lambda value: [value.removesuffix("s")], "--entity-name": ()}
_GROUP: Mapping[str, Translation] = {"--group": (), "-g": (), "--all-groups": ()}
_ACL: Mapping[str, Translation] = {
    "--allow-principal": (),
    "--deny-principal": ("--deny",),
    "--allow-host": ("--host",),
    "--deny-host": ("--host",),
    "--resource-pattern-type": lambda value: {"prefixed": ["--prefixed"], "match": ["--match"]}.get(value.lower(), []),
    "--force": ("--yes",),
}
_QUOTA: Mapping[str, Translation] = {
    "--client": ("--client-id",),
    "--user-defaults": ("--user-default",),
    "--client-defaults": ("--client-id-default",),
    "--ip-defaults": ("--ip-default",),
    "--alter": (),
}
OF_COMMAND: Mapping[str, Mapping[str, Translation]] = {
    "acl add": {**_ACL, "--add": (), "--principal": ()},
    "acl list": {**_ACL, "--list": (), "--allow-principal": ("--principal",)},
    "acl remove": {**_ACL, "--remove": (), "--allow-principal": ("--principal",)},
    "quota list": {**_QUOTA, "--describe": ()},
    "quota set": {**_QUOTA, "--add-config": _settings(None)},
    "quota unset": {**_QUOTA, "--delete-config": lambda value: value.split(",")},
    "topic create": _TOPIC,
    "topic describe": {
        **_TOPIC,
        "--under-replicated-partitions": ("--under-replicated",),
        "--unavailable-partitions": ("--unavailable",),
        "--under-min-isr-partitions": ("--under-min-isr",),
        "--at-min-isr-partitions": ("--at-min-isr",),
    },
    "topic alter": {**_TOPIC, "--add-config": _settings("--config"), "--delete-config": _items("--unset")},
    "topic offsets": _TOPIC,
    "topic trim": {**_TOPIC, "--offset": ("--before",)},
    "topic analyze": _TOPIC,
    "topic delete": _TOPIC,
    "topic producers": _TOPIC,
    "consume": _READING,
    "cat": {**_READING, "-J": ()},
    "produce": {"--compression-codec": ("--compression",), "--request-required-acks": ("--acks",)},
    "config get": _ENTITY,
    "config describe": _ENTITY,
    "config set": {**_ENTITY, "--add-config": _settings(None)},
    "config unset": {**_ENTITY, "--delete-config": lambda value: value.split(",")},
    "config diff": _ENTITY,
    "group describe": {**_GROUP, "--verbose": (), "--offsets": ()},
    "group lag": _GROUP,
    "group delete": _GROUP,
    "group remove-member": _GROUP,
    "group delete-offsets": {**_GROUP, "--delete-offsets": (), "--execute": ("--yes",)},
    "group seek": {
        **_GROUP,
        "--reset-offsets": (),
        "--to-earliest": ("--to", "earliest"),
        "--to-latest": ("--to", "latest"),
        "--to-current": ("--to", "current"),
        "--to-offset": ("--to",),
        "--to-datetime": lambda value: ["--to", f"@{value}"],
        "--by-duration": lambda value: ["--to", f"@{_ago(value)}"],
        "--shift-by": lambda value: ["--to", f"shift:{value}"],
        "--all-topics": (),
        "--execute": ("--yes",),
    },
    "transaction list": {
        "--duration-filter": lambda value: ["--longer-than", f"{value}ms"],
        "--transactional-id-pattern": ("--pattern",),
    },
    "transaction describe": {"--transactional-id": ()},
    "transaction abort": {"--topic": (), "--partition": ()},
    "transaction fence": {"--transactional-id": ()},
    "log-dirs describe": {"--broker-list": _items("--broker"), "--topic-list": _items("--topic")},
    "elect": {
        "--topic": (),
        "--partition": (),
        "--all-topic-partitions": ("--all",),
        "--election-type": lambda value: [f"--{value.lower()}"],
    },
    "reassign": {"--broker-list": ("--brokers",)},
}
"""The words of a command -> Kafka's options of it."""


def translated(path: str, words: Sequence[str], own: Collection[str], taking: Collection[str]) -> list[str]:
    """The words of a command, with Kafka's options replaced. `own`: the command's options; `taking`: those of them with a
    value."""
    names = {name: how for name, how in {**EVERYWHERE, **OF_COMMAND.get(path, {})}.items() if name not in own}
    result: list[str] = []
    left = list(words)
    while left:
        word = left.pop(0)
        if word == "--":
            return [*result, word, *left]
        name, equals, value = word.partition("=")
        how = names.get(name)
        if how is None:
            result += [word, *left[:1]] if word in taking else [word]
            del left[: word in taking]
        elif callable(how):
            given = value if equals else left.pop(0) if left else ""
            result += how(given)
        else:
            result += [*how, *([value] if equals else [])]
            if not equals and how and how[-1] in taking:
                result += left[:1]
                del left[:1]
    return result
