"""The allowed names of topics. A name becomes part of a directory's name, so the check is also a matter of safety."""

from __future__ import annotations

import re

from strandline.controller.metadata.records import METADATA_TOPIC

NAME_LENGTH_MAX = 249
"""Kafka's limit. It leaves room for `-<partition>` of up to five digits in a file name of 255 bytes."""
_ALLOWED = re.compile(r"[a-zA-Z0-9._-]+", re.ASCII)


def name_problem(name: str) -> str | None:
    """Why the name is not allowed, as a sentence; None if it is allowed."""
    if not name:
        return "a topic name must not be empty"
    if name in (".", ".."):
        return f"a topic must not be named {name!r}"
    if len(name) > NAME_LENGTH_MAX:
        return f"a topic name has at most {NAME_LENGTH_MAX} characters, this one has {len(name)}"
    if not _ALLOWED.fullmatch(name):
        return f"the topic name {name!r} has characters other than a-z, A-Z, 0-9, '.', '_' and '-'"
    if name == METADATA_TOPIC:
        return f"{name} is the metadata log itself"
    return None
