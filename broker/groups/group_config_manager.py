"""The settings of each group: its own values from the metadata log, or else those of the broker.

A group's coordinator looks them up at each use, so a change takes effect with the next heartbeat or assignment. The controller
checks a value when it is set, but the configuration file of this broker may have other bounds. Then the nearest value within
these bounds is in effect, as in Kafka. If the heartbeat interval is not shorter than the session, it is a third of the session;
Kafka only warns.

A member relies on the session timeout of its last response until a response has a shorter one. A coordinator knows which timeouts
it has sent (`member_timers.py`). A coordinator that takes over does not, so each broker remembers the longer session for as long
as a member may rely on it (`session_to_resume_ms`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import NamedTuple

from strandline.broker.groups.config import GroupConfig
from strandline.controller.metadata.group_configs import GROUP_CONFIGS, HEARTBEAT_INTERVAL, value_in_bounds
from strandline.controller.metadata.image import MetadataDelta
from strandline.protocol.errors import UsageError
from strandline.protocol.log_limits import printable
from strandline.protocol.loggers import get_logger
from strandline.protocol.messages.admin import RESOURCE_GROUP

logger = get_logger(__name__)


class GroupSettings(NamedTuple):
    """The values in effect for a group. The fields are in the order of `GROUP_CONFIGS`."""

    session_timeout_ms: int
    heartbeat_interval_ms: int
    assignment_interval_ms: int


class GroupConfigManager:
    """The settings of all groups."""

    def __init__(self, config: GroupConfig) -> None:
        self._node = {name.replace("_", "."): value for name, value in asdict(config).items()}
        self._default = GroupSettings(*(self._node[f"group.{name}"] for name in GROUP_CONFIGS))
        self._own: dict[str, GroupSettings] = {}
        """Group -> its settings, for the groups that have a value of their own."""
        self._longer: dict[str, tuple[int, float]] = {}
        """Groups whose sessions were shortened -> the longer session in ms, and until when a member may rely on it."""

    def of(self, group_id: str) -> GroupSettings:
        return self._own.get(group_id, self._default)

    def session_to_resume_ms(self, group_id: str, now: float) -> int:
        """The longest session timeout on which a member may rely now, because a previous coordinator has sent it: the present
        one, or a longer one that was in effect before, as far as this broker has seen it."""
        longer_ms, until = self._longer.get(group_id, (0, now))
        present_ms = self.of(group_id).session_timeout_ms
        return max(present_ms, longer_ms) if until > now else present_ms

    def apply_delta(self, delta: MetadataDelta, now: float) -> None:
        """Use the values of the image after the delta. `now`: the loop's time."""
        is_start = delta.before.offset < 0
        for resource_type, group_id in delta.changed_configs:
            if resource_type == RESOURCE_GROUP:
                before = self.of(group_id)
                self._use(group_id, delta.image.config(resource_type, group_id))
                if not is_start:
                    self._on_change(group_id, before, now)

    def _use(self, group_id: str, values: Mapping[str, str]) -> None:
        given = self._values(group_id, values)
        if given:
            self._own[group_id] = self._settings(group_id, given)
        else:
            self._own.pop(group_id, None)

    def _on_change(self, group_id: str, before: GroupSettings, now: float) -> None:
        after = self.of(group_id)
        if after.session_timeout_ms < before.session_timeout_ms:
            longer_ms = max(before.session_timeout_ms, self.session_to_resume_ms(group_id, now))
            self._longer = {group: known for group, known in self._longer.items() if known[1] > now}
            self._longer[group_id] = longer_ms, now + longer_ms / 1000
        _log_changes(group_id, before, after)

    def _values(self, group_id: str, values: Mapping[str, str]) -> dict[str, int]:
        """The group's own values of the keys that this version knows, adjusted to the bounds."""
        found: dict[str, int] = {}
        for name, key in GROUP_CONFIGS.items():
            try:
                given = None if name not in values else key.parse(values[name])
            except UsageError as e:
                logger.warning("config.value_ignored", key=name, value=values[name], reason=str(e))
                continue
            if given is not None:
                found[name] = value_in_bounds(name, given, self._node)
                _warn_if_adjusted(group_id, name, given, found[name])
        return found

    def _settings(self, group_id: str, given: Mapping[str, int]) -> GroupSettings:
        settings = GroupSettings(*(given.get(name, default) for name, default in zip(GROUP_CONFIGS, self._default, strict=True)))
        session, heartbeat = settings.session_timeout_ms, settings.heartbeat_interval_ms
        if heartbeat < session:
            return settings
        fitting = max(1, session // 3)
        _warn_if_adjusted(group_id, HEARTBEAT_INTERVAL, heartbeat, fitting)
        return settings._replace(heartbeat_interval_ms=fitting)


def _log_changes(group_id: str, before: GroupSettings, after: GroupSettings) -> None:
    for key, previous, value in zip(GROUP_CONFIGS, before, after, strict=True):
        if value != previous:
            logger.info("group.config_changed", group_id=printable(group_id), key=key, value=value, previous_value=previous)


def _warn_if_adjusted(group_id: str, key: str, value: int, used: int) -> None:
    if value != used:
        logger.warning("group.config_adjusted", group_id=printable(group_id), key=key, value=value, value_in_effect=used)
