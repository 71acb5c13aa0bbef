"""The authorizer that a node's configuration asks for (`authorizer.class.name`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from strandline.controller.metadata.security.authorizer import Authorizer
from strandline.controller.metadata.security_keys import parse_super_users


def authorizer_of(values: Mapping[str, Any]) -> Authorizer | None:
    """The authorizer by the parsed values of a broker or controller; None if everyone may do everything."""
    if not values.get("authorizer.class.name"):
        return None
    return Authorizer(sorted(parse_super_users(values["super.users"])), values["allow.everyone.if.no.acl.found"])
