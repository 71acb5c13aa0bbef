"""The decision to raise the level of the metadata (UpdateFeatures, KIP-584 and KIP-778).

The level is raised only if this controller, every other voter, and every registered broker support the new one. Right before the
decision, the active controller asks for their ranges (`feature_upgrade.py`): the voters, and the brokers whose registration has
none, because a registration holds the range only from level 1 on. The decision then checks the answers against the newest image:
if such a broker registered in between, it was not asked, and the upgrade is refused.

The records are one batch: first the level, then again the registration of each broker that had no range, now with its range. From
then on a snapshot has the ranges, and a broker that does not support the level can no longer register (`cluster_control.py`).

A level is never lowered, not even by an "unsafe downgrade", as in Kafka: the log may hold records that the lower level does not
have.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from strandline.controller.decision import Decision
from strandline.controller.metadata.features import Levels, levels_of
from strandline.controller.metadata.image import MetadataImage
from strandline.controller.metadata.records import AnyRecord, FeatureLevelRecord, RegisterBrokerRecord
from strandline.controller.request_limits import check_amount
from strandline.protocol.errors import ErrorCode
from strandline.protocol.feature_names import METADATA_VERSION
from strandline.protocol.messages.admin import (
    SAFE_DOWNGRADE,
    UNSAFE_DOWNGRADE,
    UPGRADE,
    FeatureUpdate,
    UpdatableFeatureResult,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)

Refusal = tuple[ErrorCode, str]

_UPGRADE_TYPES = (UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE)


@dataclass(slots=True)
class NodeLevels:
    """The answers of the other nodes: the range of each, or why it is not known."""

    voters: Mapping[int, Levels | str] = field(default_factory=dict)
    """The other voters, by node id."""
    brokers: Mapping[bytes, Levels | str] = field(default_factory=dict)
    """The brokers whose registration has no range, by incarnation id."""


def needs_answers(image: MetadataImage, own: Levels, request: UpdateFeaturesRequest) -> bool:
    """Whether the decision depends on the other nodes: an update would raise the level, and this controller alone has no reason
    to refuse it."""
    return any(
        update.max_version_level != image.feature_level and refusal_by_image(image, own, update) is None
        for update in request.feature_updates
    )


def update_features(
    image: MetadataImage, own: Levels, voter_ids: Sequence[int], answers: NodeLevels, request: UpdateFeaturesRequest
) -> Decision[UpdateFeaturesResponse]:
    """Set the features to the requested levels. The reply has an error per feature: INVALID_UPDATE_VERSION if the feature or the
    upgrade type is not known, the level would be lowered or a node does not support it; FEATURE_UPDATE_FAILED if the range of a
    node is not known; INVALID_REQUEST if the request names a feature twice. Raises BrokerError POLICY_VIOLATION for too many
    features."""
    check_amount(len(request.feature_updates), "update", "features")
    decision = Decision(UpdateFeaturesResponse(0, None, []))
    seen: dict[str, None] = {}
    for update in request.feature_updates:
        refusal = _refusal(image, own, voter_ids, answers, update)
        if update.feature in seen:
            refusal = ErrorCode.INVALID_REQUEST, f"the request names the feature {update.feature} twice"
        seen[update.feature] = None
        result = UpdatableFeatureResult(update.feature, *(refusal or (ErrorCode.NONE, None)))
        decision.reply.results.append(result)
        if refusal is None and update.max_version_level > image.feature_level and not request.validate_only:
            decision.records += _upgrade(image, answers, update.max_version_level)
    return decision


def _refusal(
    image: MetadataImage, own: Levels, voter_ids: Sequence[int], answers: NodeLevels, update: FeatureUpdate
) -> Refusal | None:
    refusal = refusal_by_image(image, own, update)
    if refusal is not None or update.max_version_level == image.feature_level:
        return refusal
    level = update.max_version_level
    for voter_id in voter_ids:
        refusal = _refusal_of_node(f"controller {voter_id}", answers.voters.get(voter_id, "it was not asked"), level)
        if refusal is not None:
            return refusal
    for broker_id in sorted(image.brokers):
        refusal = _refusal_of_node(f"broker {broker_id}", _range_of_broker(image, answers, broker_id), level)
        if refusal is not None:
            return refusal
    return None


def refusal_by_image(image: MetadataImage, own: Levels, update: FeatureUpdate) -> Refusal | None:
    """The error of an update that this controller refuses without asking any other node."""
    level, current = update.max_version_level, image.feature_level
    text = None
    if update.upgrade_type not in _UPGRADE_TYPES:
        text = f"the upgrade type {update.upgrade_type} is not 1 (upgrade), 2 (safe downgrade) or 3 (unsafe downgrade)"
    elif update.feature != METADATA_VERSION:
        text = f"there is no feature {update.feature!r}; there is {METADATA_VERSION}"
    elif level < current:
        reason = f"level {level} may not have all records of the metadata"
        text = f"{METADATA_VERSION} cannot be lowered from {current} to {level}: {reason}"
    elif level > current and update.upgrade_type != UPGRADE:
        text = f"the request asks for a downgrade, but level {level} is above the cluster's level {current}"
    elif not own.include(level):
        text = f"this controller supports {METADATA_VERSION} {own}, not {level}"
    return None if text is None else (ErrorCode.INVALID_UPDATE_VERSION, text)


def _range_of_broker(image: MetadataImage, answers: NodeLevels, broker_id: int) -> Levels | str:
    broker = image.brokers[broker_id]
    if broker.features:
        return levels_of(broker.features)
    return answers.brokers.get(broker.incarnation_id, "it has registered only now; retry")


def _refusal_of_node(name: str, found: Levels | str, level: int) -> Refusal | None:
    if isinstance(found, str):
        return ErrorCode.FEATURE_UPDATE_FAILED, f"the levels that {name} supports are not known: {found}"
    if not found.include(level):
        return (
            ErrorCode.INVALID_UPDATE_VERSION,
            f"{name} supports {METADATA_VERSION} {found}, not {level}: install the new version there first",
        )
    return None


def _upgrade(image: MetadataImage, answers: NodeLevels, level: int) -> list[AnyRecord]:
    """The records of an upgrade: the level, and the registration of each broker whose range the metadata did not have yet."""
    records: list[AnyRecord] = [FeatureLevelRecord(METADATA_VERSION, level)]
    for broker_id in sorted(image.brokers):
        broker = image.brokers[broker_id]
        found = _range_of_broker(image, answers, broker_id)
        if not broker.features and isinstance(found, Levels):
            fields = msgspec.structs.asdict(broker)
            records.append(RegisterBrokerRecord(**{**fields, "features": found.features}))
    return records
