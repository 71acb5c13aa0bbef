"""The controller's decisions about security and quotas, by API: what `handlers.py` serves in addition."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from strandline.controller.controller import ActiveState, Controller
from strandline.controller.decision import Decision
from strandline.controller.metadata.security.describe import (
    check_authorizer,
    describe_acls,
    describe_client_quotas,
    describe_scram_credentials,
)
from strandline.controller.security.acl_control import AclControl, delete_acls
from strandline.controller.security.quota_control import alter_client_quotas
from strandline.controller.security.scram_control import alter_scram_credentials
from strandline.protocol import apis

Decide = Callable[[ActiveState, Any], Decision[Any]]


def security_decisions(controller: Controller, random: Random, *, has_authorizer: bool) -> dict[int, Decide]:
    """Api key -> decision. `random` gives the ids of access rules; without an authorizer all requests about rules are refused."""
    acls = AclControl(random)

    def about_acls(decide: Decide) -> Decide:
        def checked(active: ActiveState, body: Any) -> Decision[Any]:
            check_authorizer(has_authorizer)
            return decide(active, body)

        return checked

    return {
        apis.CREATE_ACLS: about_acls(lambda _, body: acls.create_acls(controller.image, body)),
        apis.DELETE_ACLS: about_acls(lambda _, body: delete_acls(controller.image, body)),
        apis.DESCRIBE_ACLS: about_acls(lambda _, body: Decision(describe_acls(controller.image, body))),
        apis.ALTER_USER_SCRAM_CREDENTIALS: lambda _, body: alter_scram_credentials(controller.image, body),
        apis.DESCRIBE_USER_SCRAM_CREDENTIALS: lambda _, body: Decision(describe_scram_credentials(controller.image, body)),
        apis.ALTER_CLIENT_QUOTAS: lambda _, body: alter_client_quotas(controller.image, body),
        apis.DESCRIBE_CLIENT_QUOTAS: lambda _, body: Decision(describe_client_quotas(controller.image, body)),
    }
