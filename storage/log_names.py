"""The directory names of logs, `<topic>-<partition>`: built and parsed."""

from __future__ import annotations

import re

from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.storage.checkpoints import TopicPartition

# A log's directory ends with its partition, a renamed one with a suffix, so no topic name (such as `x-delete`) confuses the two.
_LOG_NAME = re.compile(r"([a-zA-Z0-9._-]{1,249})-(0|[1-9]\d{0,9})\Z", re.ASCII)
_MAX_PARTITION = 2**31 - 1


def log_name(topic: str, partition: int) -> str:
    """The directory name. Raises INVALID_TOPIC_EXCEPTION if it would leave the data directory, or could not be parsed again."""
    name = f"{topic}-{partition}"
    match = _LOG_NAME.match(name)
    if match is None or topic in (".", "..") or not 0 <= partition <= _MAX_PARTITION:
        text = f"topic {topic!r}, partition {partition} is not a valid name of a log"
        raise BrokerError(ErrorCode.INVALID_TOPIC_EXCEPTION, text)
    return name


def parse_log_name(name: str) -> TopicPartition | None:
    """Topic and partition of a log's directory name; None if it is not one."""
    match = _LOG_NAME.match(name)
    if match is None or int(match[2]) > _MAX_PARTITION or match[1] in (".", ".."):
        return None
    return match[1], int(match[2])
