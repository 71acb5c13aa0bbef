"""An administrator who changes the configuration of groups, while they have members.

A change is one request about one group, which takes effect as a whole or not at all. In whatever order late requests take effect,
the session must be at least 3.5 intervals long, so that members with the worst clocks stay in their groups: each change keeps
this rule with any values of the keys that it does not set (`_change`).

Checks the part of I50 that the answers to an administrator show: a change that is acknowledged is committed, a value outside of
the bounds never is, and at the end each key has a value that was requested. (A late request may take effect after others that
were acknowledged.)
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import islice
from random import Random
from typing import TYPE_CHECKING, Any

from strandline.client.errors import RequestFailed
from strandline.protocol.errors import ErrorCode, StrandlineError
from strandline.protocol.messages.admin import RESOURCE_GROUP
from strandline.testing.simulation.cluster.cluster import Client
from strandline.testing.simulation.cluster.groups.program import RETRY_S, Surroundings
from strandline.testing.simulation.group_plans import INTERVALS_PER_SESSION, LONGEST_SESSION, intervals_of

if TYPE_CHECKING:
    from strandline.controller.metadata.image import MetadataImage
    from strandline.testing.simulation.invariants.ghosts import MetadataGhost

SESSION, INTERVAL, ASSIGNMENT = (
    "consumer.session.timeout.ms",
    "consumer.heartbeat.interval.ms",
    "consumer.assignment.interval.ms",
)
PATIENCE_MS = 1500
NAMES = ("pair", "pair", "pair", "session", "interval", "remove", "mixed", "assignment", "refused", "look")

Values = dict[str, int | None]
"""Key -> its new value; None removes it."""


class Configurer:
    def __init__(self, around: Surroundings, metadata: MetadataGhost, draw: Random) -> None:
        self.around = around
        self.metadata = metadata
        self.draw = draw
        self.going = True
        self.is_settled = False
        self._groups = sorted({plan.group for plan in around.options.members})
        self._asked: dict[tuple[str, str], dict[int | None, None]] = {}
        """(group, key) -> the values that requests have set."""

    async def work(self, client: Client, admin: Any) -> None:
        """Change the configuration until the faults end; then once more for each group, until that change is accepted."""
        while self.going and self.around.going():
            what, group = self.draw.choice(NAMES), self.draw.choice(self._groups)
            try:
                await self._do(admin, what, group)
            except (StrandlineError, TimeoutError) as e:
                self.around.gave_up(client, f"{what} of a group's configuration", e)
            await asyncio.sleep(self.draw.uniform(0.05, 0.8))
        for group in self._groups:
            await self._settle(client, admin, group)
        self.is_settled = True

    async def _settle(self, client: Client, admin: Any, group: str) -> None:
        change = self._change(self.draw.choice(("pair", "remove")))
        while self.around.going():
            try:
                await self._alter(admin, group, change)
            except (StrandlineError, TimeoutError) as e:
                self.around.gave_up(client, "the last change of a group's configuration", e)
                await asyncio.sleep(RETRY_S)
            else:
                return

    async def _do(self, admin: Any, what: str, group: str) -> None:
        if what == "look":
            await self._look(admin, group)
        elif what == "refused":
            await self._be_refused(admin, group)
        else:
            await self._alter(admin, group, self._change(what))

    def _change(self, what: str) -> Values:
        draw, (short_ms, usual_ms, long_ms) = self.draw, intervals_of(self.around.options.settings)
        match what:
            case "pair":
                interval_ms = draw.choice((short_ms, usual_ms, long_ms))
                times = draw.choice((INTERVALS_PER_SESSION, 4, 6, LONGEST_SESSION))
                return {INTERVAL: interval_ms, SESSION: int(interval_ms * times)}
            case "session":
                return {SESSION: int(long_ms * draw.choice((INTERVALS_PER_SESSION, LONGEST_SESSION)))}
            case "interval":
                return {INTERVAL: short_ms}
            case "mixed":
                session_ms = int(usual_ms * draw.choice((INTERVALS_PER_SESSION, LONGEST_SESSION)))
                return draw.choice(({SESSION: None, INTERVAL: short_ms}, {INTERVAL: None, SESSION: session_ms}))
            case "assignment":
                return {ASSIGNMENT: draw.choice((0, 100, 500, 1500, None))}
            case _:
                return {SESSION: None, INTERVAL: None}

    async def _alter(self, admin: Any, group: str, change: Values) -> None:
        for key, value in change.items():
            self._asked.setdefault((group, key), {None: None})[value] = None
        known = len(self.metadata.images)
        try:
            await admin.alter_configs("group", group, change, timeout_ms=PATIENCE_MS)
        except RequestFailed as e:
            if e.code == ErrorCode.INVALID_CONFIG:
                self.around.problems.append(f"a valid change of the configuration of {group} is refused: {e}")
            raise
        if not self.around.options.loss_permitted and not self._was_committed(known, group, change):
            self.around.problems.append(f"{change} of group {group} is acknowledged, and not committed")

    def _was_committed(self, known: int, group: str, change: Values) -> bool:
        """Whether the committed metadata has had these values at some time since it had `known` batches."""
        images = [self.metadata.image, *islice(reversed(self.metadata.images.values()), len(self.metadata.images) - known + 1)]
        return any(all(_value(image, group, key) == value for key, value in change.items()) for image in images)

    async def _be_refused(self, admin: Any, group: str) -> None:
        """Send changes that the controller must refuse: a value outside of its bounds, and a session without room for a
        heartbeat."""
        settings, draw = self.around.options.controller_settings, self.draw
        change = draw.choice(
            (
                {SESSION: settings["group.consumer.max.session.timeout.ms"] + 1},
                {SESSION: settings["group.consumer.min.session.timeout.ms"] - 1},
                {INTERVAL: settings["group.consumer.min.heartbeat.interval.ms"] - 1},
                {SESSION: 1000, INTERVAL: 1000},
            )
        )
        try:
            await admin.alter_configs("group", group, change, timeout_ms=PATIENCE_MS)
        except RequestFailed as e:
            if e.code != ErrorCode.INVALID_CONFIG:
                raise
        else:
            self.around.problems.append(f"the configuration of {group} may become {change}")

    async def _look(self, admin: Any, group: str) -> None:
        described = {entry.name: entry.value for entry in await admin.describe_configs("group", group, timeout_ms=PATIENCE_MS)}
        for key in (SESSION, INTERVAL, ASSIGNMENT):
            asked = self._asked.get((group, key), {None: None})
            default = self.around.options.settings[f"group.{key}"]
            if int(described[key]) not in (*asked, default):
                self.around.problems.append(f"{key} of group {group} is described as {described[key]}; asked for: {list(asked)}")

    # -- at the end of a run ------------------------------------------------------------------------------------------

    def complaints(self) -> Iterator[str]:
        if not self.is_settled:
            yield "the configuration of a group is not settled"

    def misconfigured(self, image: MetadataImage) -> str:
        """I50: a value that no request has set; empty if there is none."""
        for (group, key), asked in self._asked.items():
            value = _value(image, group, key)
            if value not in asked:
                return f"group {group} has {key}={value}, and must have {' or '.join(sorted(map(str, asked)))}"
        return ""


def _value(image: MetadataImage, group: str, key: str) -> int | None:
    own = image.config(RESOURCE_GROUP, group)
    return int(own[key]) if key in own else None
