"""Replays the records of access rules, SCRAM credentials and client quotas: a part of `image.py`.

A `SecurityChanges` collects the changes of one `apply`, and exists only if the batch has such a record. A record that contradicts
the image raises InternalError: it removes a rule or credential that does not exist, or adds a rule or an id that exists already.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from strandline.controller.metadata.persistent_map import PersistentMap
from strandline.controller.metadata.records import (
    RECORDS_OF_LEVEL_2,
    AccessControlEntryRecord,
    AnyRecord,
    ClientQuotaRecord,
    RemoveAccessControlEntryRecord,
    RemoveUserScramCredentialRecord,
    UserScramCredentialRecord,
)
from strandline.controller.metadata.security.acls import Acl
from strandline.controller.metadata.security.quotas import QuotaEntity, entity_order
from strandline.protocol.errors import InternalError
from strandline.protocol.feature_names import METADATA_VERSION
from strandline.protocol.security.scram import ScramCredential

UserMechanism = tuple[str, int]
"""(user name, Kafka's number of the mechanism)"""


class SecurityMaps(NamedTuple):
    """The fields of an image that are about security, in its order."""

    acls: PersistentMap[bytes, Acl]
    acl_ids: PersistentMap[Acl, bytes]
    scram_credentials: PersistentMap[UserMechanism, ScramCredential]
    client_quotas: PersistentMap[QuotaEntity, dict[str, float]]


class SecurityChanges:
    """The changes of one `apply`. A value of None, and an empty dict of quotas, mean that the entry is removed."""

    def __init__(self, before: SecurityMaps) -> None:
        self.before = before
        self.acls: dict[bytes, Acl | None] = {}
        self.acl_ids: dict[Acl, bytes | None] = {}
        self.scram_credentials: dict[UserMechanism, ScramCredential | None] = {}
        self.client_quotas: dict[QuotaEntity, dict[str, float]] = {}

    def replay(self, record: AnyRecord, level: int) -> None:
        """`level`: the level of the metadata before the record."""
        if level < 2:
            kind = type(record).__name__
            raise InternalError(f"a {kind} needs level 2 of {METADATA_VERSION}, and the metadata before it has level {level}")
        _REPLAY[type(record)](self, record)

    def _acl(self, acl_id: bytes) -> Acl | None:
        return self.acls[acl_id] if acl_id in self.acls else self.before.acls.get(acl_id)

    def on_acl(self, record: AccessControlEntryRecord) -> None:
        acl = Acl.of(record)
        known = self.acl_ids[acl] if acl in self.acl_ids else self.before.acl_ids.get(acl)
        if known is not None or self._acl(record.id) is not None:
            raise InternalError(f"a metadata record adds the access rule {record.id.hex()}, which exists already: {acl}")
        self.acls[record.id] = acl
        self.acl_ids[acl] = record.id

    def on_remove_acl(self, record: RemoveAccessControlEntryRecord) -> None:
        acl = self._acl(record.id)
        if acl is None:
            raise InternalError(f"a metadata record removes the access rule {record.id.hex()}, which does not exist")
        self.acls[record.id] = None
        self.acl_ids[acl] = None

    def on_scram_credential(self, record: UserScramCredentialRecord) -> None:
        credential = ScramCredential(record.salt, record.stored_key, record.server_key, record.iterations)
        self.scram_credentials[record.name, record.mechanism] = credential

    def on_remove_scram_credential(self, record: RemoveUserScramCredentialRecord) -> None:
        key = (record.name, record.mechanism)
        if self.scram_credentials.get(key, self.before.scram_credentials.get(key)) is None:
            raise InternalError(
                f"a metadata record removes the credential of user {record.name!r} for mechanism {record.mechanism}, which does "
                "not exist"
            )
        self.scram_credentials[key] = None

    def on_client_quota(self, record: ClientQuotaRecord) -> None:
        values = self.client_quotas.get(record.entity)
        if values is None:
            values = self.client_quotas[record.entity] = dict(self.before.client_quotas.get(record.entity) or {})
        if record.remove:
            values.pop(record.key, None)
        else:
            values[record.key] = record.value

    def build(self) -> SecurityMaps:
        before = self.before
        return SecurityMaps(
            _updated(before.acls, self.acls),
            _updated(before.acl_ids, self.acl_ids),
            _updated(before.scram_credentials, self.scram_credentials),
            _updated(before.client_quotas, self.client_quotas),
        )

    def changed(self, after: SecurityMaps) -> tuple[list[bytes], list[UserMechanism], list[QuotaEntity]]:
        """The keys whose entries differ between the two images. A rule that was added and removed in one batch is not one of
        them."""
        before = self.before
        return (
            [key for key in self.acls if before.acls.get(key) != after.acls.get(key)],
            [key for key in self.scram_credentials if before.scram_credentials.get(key) != after.scram_credentials.get(key)],
            [key for key in self.client_quotas if before.client_quotas.get(key) != after.client_quotas.get(key)],
        )


def _updated(before: PersistentMap[Any, Any], changes: Mapping[Any, Any]) -> PersistentMap[Any, Any]:
    """The map with the changes; a value of None, or an empty one, removes its key."""
    kept = {key: value for key, value in changes.items() if value}
    return before.updated(kept, {key: None for key in changes if key not in kept and key in before})


_REPLAY: dict[type, Callable[[SecurityChanges, Any], None]] = {
    AccessControlEntryRecord: SecurityChanges.on_acl,
    RemoveAccessControlEntryRecord: SecurityChanges.on_remove_acl,
    UserScramCredentialRecord: SecurityChanges.on_scram_credential,
    RemoveUserScramCredentialRecord: SecurityChanges.on_remove_scram_credential,
    ClientQuotaRecord: SecurityChanges.on_client_quota,
}
assert set(_REPLAY) == set(RECORDS_OF_LEVEL_2)


def security_records(maps: SecurityMaps) -> Iterator[AnyRecord]:
    """The records of a snapshot, in a fixed order."""
    for acl_id in sorted(maps.acls):
        yield maps.acls[acl_id].record(acl_id)
    for user, mechanism in sorted(maps.scram_credentials):
        found = maps.scram_credentials[user, mechanism]
        yield UserScramCredentialRecord(user, mechanism, found.salt, found.stored_key, found.server_key, found.iterations)
    for entity in sorted(maps.client_quotas, key=entity_order):
        for key, value in sorted(maps.client_quotas[entity].items()):
            yield ClientQuotaRecord(entity, key, value)
