"""Ids that are drawn through the doors."""

from __future__ import annotations

from base64 import urlsafe_b64encode
from random import Random
from uuid import UUID

from strandline.protocol.doors import new_uuid


def test_no_id_begins_with_a_dash() -> None:
    """Without the check, one id in 64 would. The command line takes such an argument for an option, so a member or topic could
    not be named."""
    random = Random(1)
    ids = [new_uuid(random) for _ in range(1000)]
    assert not [each for each in ids if urlsafe_b64encode(each).startswith(b"-")]
    assert {UUID(bytes=each).version for each in ids} == {4}
    assert len(set(ids)) == len(ids)
