"""The names of logs' directories: `<topic>-<partition>`, there and back."""

from __future__ import annotations

import re

from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.storage.checkpoints import TopicPartition

# A log's name ends with its partition, one on its way out with a suffix: no topic's name, `x-delete` neither, blurs them.
_LOG_NAME = re.compile(r"([a-zA-Z0-9._-]{1,249})-(0|[1-9]\d{0,9})\Z", re.ASCII)
_MAX_PARTITION = 2**31 - 1


def log_name(topic: str, partition: int) -> str:
    """The directory's name. Refuses what would lead out of the data directory or could not be parsed back."""
    name = f"{topic}-{partition}"
    match = _LOG_NAME.match(name)
    if match is None or topic in (".", "..") or not 0 <= partition <= _MAX_PARTITION:
        raise BrokerError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"no log can be kept for topic {topic!r}, partition {partition}")
    return name


def parse_log_name(name: str) -> TopicPartition | None:
    match = _LOG_NAME.match(name)
    if match is None or int(match[2]) > _MAX_PARTITION or match[1] in (".", ".."):
        return None
    return match[1], int(match[2])
