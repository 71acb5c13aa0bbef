"""The admin client's calls about features: the level of the metadata, and the levels that the brokers support (KIP-584)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from strandline.client.admin.nodes import NodeCalls
from strandline.client.admin.requests import check_code
from strandline.client.admin_types import BrokerFeatures, FeatureRange, FeaturesDescription
from strandline.client.arguments import checked_whole
from strandline.protocol import apis
from strandline.protocol.errors import StrandlineError
from strandline.protocol.feature_names import METADATA_VERSION
from strandline.protocol.messages import admin as messages
from strandline.protocol.messages.common import SupportedFeature


class FeatureCalls(NodeCalls):
    """Describes and raises the levels of features."""

    async def describe_features(self, *, timeout_ms: float = 30_000) -> FeaturesDescription:
        """The level of each feature of the cluster, as the broker that answers knows it, and the levels that each broker
        supports. For a broker that does not answer within `timeout_ms`, the levels are None. RequestTimeout."""
        deadline = self._deadline(timeout_ms)
        cluster = await self.describe_cluster(timeout_ms=timeout_ms)

        def check(response: messages.ApiVersionsResponse, is_retry: bool) -> None:
            check_code(response.error_code, None, "ApiVersions")

        request = messages.ApiVersionsRequest()
        answer = await self._ask(apis.API_VERSIONS, request, messages.ApiVersionsResponse, check, deadline)
        left_ms = max(1.0, (deadline - self._loop_time()) * 1000)
        ids = [broker.broker_id for broker in cluster.brokers]
        supported = await asyncio.gather(*(self._supported_by(broker_id, left_ms) for broker_id in ids))
        levels = {feature.name: feature.max_version_level for feature in answer.finalized_features}
        brokers = [BrokerFeatures(broker_id, found) for broker_id, found in zip(ids, supported, strict=True)]
        return FeaturesDescription({METADATA_VERSION: 0, **levels}, answer.finalized_features_epoch, brokers)

    async def _supported_by(self, broker_id: int, timeout_ms: float) -> dict[str, FeatureRange] | None:
        connections = self._running().connections
        try:
            answer = await connections.request(broker_id, apis.API_VERSIONS, messages.ApiVersionsRequest(), timeout_ms)
        except StrandlineError:
            return None
        assert isinstance(answer, messages.ApiVersionsResponse)
        return _ranges(answer.supported_features)

    async def update_features(
        self, level: int, *, feature: str = METADATA_VERSION, validate_only: bool = False, timeout_ms: float = 30_000
    ) -> None:
        """Raise a feature to this level, after each broker and controller has confirmed that it supports the level. A level
        cannot be lowered. `validate_only`: check, and change nothing.

        RequestFailed with `code` INVALID_UPDATE_VERSION: a node does not support the level, or the level is lower than that of
        the cluster; FEATURE_UPDATE_FAILED: the active controller could not ask a node. RequestTimeout."""
        update = messages.FeatureUpdate(feature, checked_whole("level", level, most=2**15 - 1))
        request = messages.UpdateFeaturesRequest(round(timeout_ms), [update], validate_only)

        def check(response: messages.UpdateFeaturesResponse, is_retry: bool) -> None:
            check_code(response.error_code, response.error_message, "UpdateFeatures")
            for result in response.results:
                check_code(result.error_code, result.error_message, "UpdateFeatures")

        deadline = self._deadline(timeout_ms)
        await self._ask(apis.UPDATE_FEATURES, request, messages.UpdateFeaturesResponse, check, deadline)


def _ranges(features: Sequence[SupportedFeature]) -> dict[str, FeatureRange]:
    """The levels that a broker supports, by feature. A version of the software that sends no range supports only level 0."""
    ranges = {feature.name: FeatureRange(feature.min_version, feature.max_version) for feature in features}
    return {METADATA_VERSION: FeatureRange(0, 0), **ranges}
