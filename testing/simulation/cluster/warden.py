"""The administrator who changes security while clients run, and gives back everything before the cluster has to heal.

It withdraws the rights of a producer or a consumer, adds a DENY rule beside them, changes a password, and sets a quota. A client
that lacks a right fails meanwhile, and goes on afterwards. A client whose password was changed keeps its connections until it has
to log in again; then its process dies, and the one that replaces it knows the new password.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import Any

from strandline.client import Acl
from strandline.client.errors import StrandlineError
from strandline.client.quota_types import DEFAULT, QuotaEntity
from strandline.protocol.security.mechanisms import SCRAM_256
from strandline.testing.simulation.cluster.cluster import Client, SimCluster
from strandline.testing.simulation.cluster.identities import grants
from strandline.testing.simulation.options import Options
from strandline.testing.simulation.security_plans import DENIALS, PASSWORDS, QUOTAS, RIGHTS

Restart = Callable[[str], None]
PATIENCE_MS = 1500
RATES = (500.0, 2000.0, 20_000.0)
"""Quotas in bytes per second: a producer of a run writes a few thousand."""


class Warden:
    def __init__(self, around: SimCluster, options: Options, draw: Random, restart: Restart) -> None:
        """`restart`: ends the process of the client with this user, and starts another one."""
        self.around = around
        self.options = options
        self.draw = draw
        self.restart = restart
        self.going = True
        self.done: dict[str, int] = {}
        """How often each change happened."""
        self._rules = {user: rules for user, rules in grants(options).items() if user[0] in "pc" and user[1:].isdigit()}
        """The rules of the producers and consumers."""
        self._gone: list[Acl] = []
        """Rules that may be withdrawn now."""
        self._denials: list[Acl] = []
        """DENY rules that may exist now."""
        self._quotas: dict[QuotaEntity, dict[str, None]] = {}
        """Quotas that may exist now."""

    async def work(self, client: Client, admin: Any, _: Random) -> None:
        """Change something until the faults end; then give back everything."""
        changes = self.options.security.changes if self.options.security is not None else ()
        while self.going and changes and self._rules:
            await asyncio.sleep(self.draw.uniform(0.1, 0.8))
            what = self.draw.choice(changes)
            try:
                if self.draw.random() < 0.4:
                    await self.give_back(admin)
                else:
                    await self._change(admin, what)
                    self.done[what] = self.done.get(what, 0) + 1
            except (StrandlineError, TimeoutError) as e:
                self._gave_up(client, f"change of {what}", e)
        while self._gone or self._denials or self._quotas:
            try:
                await self.give_back(admin)
            except (StrandlineError, TimeoutError) as e:
                self._gave_up(client, "return of rights", e)
                await asyncio.sleep(0.2)

    def _gave_up(self, client: Client, what: str, error: Exception) -> None:
        self.around.world.trace.emit("client.gave_up", client.machine.id, what=what, reason=str(error))

    async def _change(self, admin: Any, what: str) -> None:
        user = self.draw.choice(sorted(self._rules))
        rule = self.draw.choice(self._rules[user])
        if what == RIGHTS:
            self._gone.append(rule)
            await admin.delete_acls([rule.filter], timeout_ms=PATIENCE_MS)
        elif what == DENIALS:
            denial = Acl(
                rule.principal, self.draw.choice((rule.operation, "ALL")), "TOPIC", rule.resource_name, permission="DENY"
            )
            self._denials.append(denial)
            await admin.create_acls([denial], timeout_ms=PATIENCE_MS)
        elif what == PASSWORDS:
            await self._change_password(admin, user)
        elif what == QUOTAS:
            await self._set_quota(admin, user)

    async def _change_password(self, admin: Any, user: str) -> None:
        identities = self.around.identities
        assert identities is not None
        password = f"another password of {user}, {self.draw.getrandbits(32)}"
        identities.change_password(user, password)
        await admin.upsert_scram_credentials(user, password, mechanisms=[SCRAM_256], iterations=4096, timeout_ms=10_000)
        await asyncio.sleep(self.draw.uniform(0.0, 1.0))
        self.restart(user)

    async def _set_quota(self, admin: Any, user: str) -> None:
        kind = self.draw.choice(("producer_byte_rate", "consumer_byte_rate"))
        entity = QuotaEntity(user=self.draw.choice((user, DEFAULT)))
        self._quotas.setdefault(entity, {})[kind] = None
        await admin.alter_client_quotas(entity, {kind: self.draw.choice(RATES)}, timeout_ms=PATIENCE_MS)

    async def give_back(self, admin: Any) -> None:
        """Everybody has the rights of the beginning, and no quota."""
        if self._gone:
            await admin.create_acls(self._gone, timeout_ms=PATIENCE_MS)
            self._gone.clear()
        if self._denials:
            await admin.delete_acls([denial.filter for denial in self._denials], timeout_ms=PATIENCE_MS)
            self._denials.clear()
        for entity in list(self._quotas):
            await admin.alter_client_quotas(entity, dict.fromkeys(self._quotas[entity]), timeout_ms=PATIENCE_MS)
            del self._quotas[entity]
