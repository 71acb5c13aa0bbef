"""Stands in for the two of Kafka's tools that librdkafka's tests run, so that they need no Java.

The tools themselves are tested in `tests/kafka/test_kafka_tools.py`.
"""

from __future__ import annotations

import argparse
import sys
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewPartitions,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)


def install(home: Path) -> None:
    """Make `home` look like the folder of a Kafka, as far as the tests use it."""
    (home / "bin").mkdir(parents=True)
    for name in TOOLS:
        script = home / "bin" / name
        script.write_text(f'#!/bin/sh\nunset LD_LIBRARY_PATH\nexec "{sys.executable}" "{__file__}" {name} "$@"\n')
        script.chmod(0o755)


def topics(arguments: list[str]) -> None:
    parser = _parser()
    for flag in ("--create", "--alter", "--delete"):
        parser.add_argument(flag, action="store_true")
    parser.add_argument("--partitions", type=int, default=-1)
    parser.add_argument("--replication-factor", type=int, default=-1)
    parser.add_argument("--config", action="append", default=[])
    given = parser.parse_args(arguments)
    admin = _admin(given)
    if given.create:
        config = dict(item.split("=", 1) for item in given.config)
        _wait(admin.create_topics([NewTopic(given.topic, given.partitions, given.replication_factor, config=config)]))
    elif given.alter:
        _wait(admin.create_partitions([NewPartitions(given.topic, given.partitions)]))
    else:
        _wait(admin.delete_topics([given.topic]))


def acls(arguments: list[str]) -> None:
    parser = _parser()
    for flag in ("--add", "--remove", "--force"):
        parser.add_argument(flag, action="store_true")
    for name in ("--deny-principal", "--deny-host", "--allow-principal", "--allow-host", "--operation"):
        parser.add_argument(name)
    given = parser.parse_args(arguments)
    admin = _admin(given)
    operation = AclOperation[given.operation.upper()]
    topic = (ResourceType.TOPIC, given.topic, ResourcePatternType.LITERAL)
    permission = AclPermissionType.DENY if given.deny_principal else AclPermissionType.ALLOW
    who = given.deny_principal or given.allow_principal, given.deny_host or given.allow_host
    if given.add:
        _wait(admin.create_acls([AclBinding(*topic, *who, operation, permission)]))
    else:
        _wait(admin.delete_acls([AclBindingFilter(*topic, *who, operation, permission)]))


def _admin(given: argparse.Namespace) -> AdminClient:
    """An admin client with the settings of the test that runs in this folder."""
    conf = dict(line.split("=", 1) for line in Path("test.conf").read_text().splitlines())
    security = {key: value for key, value in conf.items() if key.startswith(("security.", "sasl.", "ssl."))}
    return AdminClient({**security, "bootstrap.servers": given.bootstrap_server})


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser()
    parser.add_argument("--bootstrap-server", required=True)
    parser.add_argument("--topic", required=True)
    return parser


def _wait(futures: dict[Any, Future[Any]]) -> None:
    for future in futures.values():
        future.result(20)


TOOLS = {"kafka-topics.sh": topics, "kafka-acls.sh": acls}

if __name__ == "__main__":
    TOOLS[sys.argv[1]](sys.argv[2:])
