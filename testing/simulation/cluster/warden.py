"""The administrator who changes security while clients run, and restores the initial state when the faults end.

It withdraws the rights of a producer or a consumer, adds a DENY rule beside them, changes a password, and sets a quota. A client
without a right fails meanwhile, and continues afterwards. A client whose password was changed keeps its connections for up to a
second; then its process is replaced by one that has the new password.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import Any

from strandline.client import Acl
from strandline.client.admin.acls import acl_of
from strandline.client.errors import StrandlineError
from strandline.client.quota_types import DEFAULT, QuotaEntity
from strandline.protocol.messages.security import SCRAM_SHA_256
from strandline.protocol.security.mechanisms import SCRAM_256
from strandline.protocol.security.scram import is_password_of
from strandline.testing.simulation.cluster.cluster import Client, SimCluster
from strandline.testing.simulation.cluster.identities import grants
from strandline.testing.simulation.options import Options
from strandline.testing.simulation.security_plans import DENIALS, PASSWORDS, QUOTAS, RIGHTS

Restart = Callable[[str], None]
PATIENCE_MS = 1500
LOOK_S = 0.2
"""Seconds between two comparisons of the metadata with its initial state."""
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
        self.is_over = False
        """The cluster has healed: the warden ends as soon as the initial state is restored."""
        self.done: dict[str, int] = {}
        """Kind of change -> how often it happened."""
        self._rules = {user: rules for user, rules in grants(options).items() if user[0] in "pc" and user[1:].isdigit()}
        """The rules of the producers and consumers."""
        self._gone: list[Acl] = []
        """Rules that may be withdrawn now."""
        self._denials: list[Acl] = []
        """DENY rules that may exist now."""
        self._quotas: dict[QuotaEntity, dict[str, None]] = {}
        """Quotas that may exist now."""

    async def work(self, client: Client, admin: Any, _: Random) -> None:
        """Change something, again and again until the faults end; then restore the initial state."""
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
        await self._restore(client, admin)

    async def _restore(self, client: Client, admin: Any) -> None:
        """Restore the initial state, again and again until `is_over`: a change without a response may take effect late."""
        while self._note_wrong() or not self.is_over:
            try:
                await self.give_back(admin)
                for user in self._with_another_password():
                    await self._set_password(admin, user)
            except (StrandlineError, TimeoutError) as e:
                self._gave_up(client, "return of rights", e)
            await asyncio.sleep(LOOK_S)

    def _note_wrong(self) -> bool:
        """Note each difference between the metadata and its initial state, for `give_back`. Returns whether there is one."""
        image = self.around.image()
        rules = [acl_of(acl) for acl in image.acls.values()]
        self._gone = [rule for user in self._rules for rule in self._rules[user] if rule not in rules]
        self._denials = [rule for rule in rules if rule.permission == "DENY"]
        for entity, values in image.client_quotas.items():
            self._quotas[QuotaEntity(user=dict(entity)["user"] or DEFAULT)] = dict.fromkeys(values)
        return bool(self._gone or self._denials or self._quotas or self._with_another_password())

    def _with_another_password(self) -> list[str]:
        """Users whose credential in the metadata does not match the password of their clients."""
        identities, credentials = self.around.identities, self.around.image().scram_credentials
        assert identities is not None
        wrong = []
        for user in self._rules:
            credential = credentials.get((user, SCRAM_SHA_256))
            if credential is not None and not is_password_of(SCRAM_256, identities.password(user), credential):
                wrong.append(user)
        return wrong

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
        try:
            await self._set_password(admin, user)
        finally:  # without a response, too, the password may have changed
            await asyncio.sleep(self.draw.uniform(0.0, 1.0))
            self.restart(user)

    async def _set_password(self, admin: Any, user: str) -> None:
        identities = self.around.identities
        assert identities is not None
        await admin.upsert_scram_credentials(
            user, identities.password(user), mechanisms=[SCRAM_256], iterations=4096, timeout_ms=PATIENCE_MS
        )

    async def _set_quota(self, admin: Any, user: str) -> None:
        kind = self.draw.choice(("producer_byte_rate", "consumer_byte_rate"))
        entity = QuotaEntity(user=self.draw.choice((user, DEFAULT)))
        self._quotas.setdefault(entity, {})[kind] = None
        await admin.alter_client_quotas(entity, {kind: self.draw.choice(RATES)}, timeout_ms=PATIENCE_MS)

    async def give_back(self, admin: Any) -> None:
        """Restore the initial rights of every user, and remove every quota."""
        if self._gone:
            await admin.create_acls(self._gone, timeout_ms=PATIENCE_MS)
            self._gone.clear()
        if self._denials:
            await admin.delete_acls([denial.filter for denial in self._denials], timeout_ms=PATIENCE_MS)
            self._denials.clear()
        for entity in list(self._quotas):
            await admin.alter_client_quotas(entity, dict.fromkeys(self._quotas[entity]), timeout_ms=PATIENCE_MS)
            del self._quotas[entity]
