"""`strandline features`: describes and upgrades the level of the cluster's metadata."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from strandline.cli.common import (
    CONNECT_TIMEOUT_MS,
    DEFAULT_BOOTSTRAP,
    ERROR,
    Bootstrap,
    new_app,
    run,
    while_waiting,
)
from strandline.cli.output import Form, Output, Table, View, show
from strandline.cli.watch import Watch, present
from strandline.protocol.errors import StrandlineError
from strandline.protocol.feature_names import METADATA_VERSION
from strandline.reach import reach

if TYPE_CHECKING:
    from strandline.client import BrokerFeatures, FeaturesDescription

TIMEOUT_MS = 4000
"""Short, because a person waits, and a broker that is down never answers."""

app = new_app("Describe and upgrade the level of the cluster's metadata.")


@app.command()
def describe(bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, output: Output = Form.table, watch: Watch = None) -> None:
    """Describe the level of the metadata, and the levels that each broker supports. If a broker does not answer, the others are
    shown, and the exit code is 1.

    The metadata keeps its level when the software is upgraded, so that old and new nodes can run together. `strandline features
    upgrade` raises it after all nodes have the new version.
    """

    async def ask() -> View:
        return _view(await _ask(bootstrap))

    present(ask, output, watch)


def _view(found: FeaturesDescription) -> View:
    level = found.levels[METADATA_VERSION]
    document = {"feature": METADATA_VERSION, "level": level, "metadata_offset": found.metadata_offset, "brokers": _json(found)}
    table = Table(("broker", "supports"), [(b.broker_id, _supported(b)) for b in found.brokers])
    silent = [str(b.broker_id) for b in found.brokers if b.supported is None]
    remarks = [f"broker {', '.join(silent)} did not answer: the levels that it supports are not known"] if silent else []
    return View(document, [table, f"{METADATA_VERSION} has level {level}"], remarks, ERROR if silent else 0)


async def _ask(bootstrap: str) -> FeaturesDescription:
    from strandline.client import Admin

    async with Admin(**reach(bootstrap), connect_timeout_ms=CONNECT_TIMEOUT_MS) as admin:
        return await admin.describe_features(timeout_ms=TIMEOUT_MS)


def _supported(broker: BrokerFeatures) -> str:
    if broker.supported is None:
        return "no answer"
    levels = broker.supported[METADATA_VERSION]
    return f"{levels.min_level} to {levels.max_level}" if levels.min_level < levels.max_level else f"{levels.min_level}"


def _json(found: FeaturesDescription) -> list[dict[str, Any]]:
    return [
        {
            "broker_id": broker.broker_id,
            "min_level": None if broker.supported is None else broker.supported[METADATA_VERSION].min_level,
            "max_level": None if broker.supported is None else broker.supported[METADATA_VERSION].max_level,
        }
        for broker in found.brokers
    ]


@app.command()
def upgrade(
    level: Annotated[
        int | None,
        typer.Option("--level", metavar="NUMBER", min=0, help="The new level; by default the highest that all brokers support."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check whether the upgrade is possible, and change nothing.")
    ] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: Output = Form.table,
) -> None:
    """Raise the level of the metadata. This cannot be undone.

    Every controller and every registered broker must run and support the level. Nodes of a version that does not support it
    can no longer join the cluster.
    """
    before, after = run(_upgrade(bootstrap, level, dry_run))
    document = {"feature": METADATA_VERSION, "previous_level": before, "level": after, "dry_run": dry_run}
    done = f"{METADATA_VERSION} {'can be raised' if dry_run else 'is raised'} from level {before} to {after}"
    show(View(document, [f"{METADATA_VERSION} has level {after} already" if before == after else done]), output)


async def _upgrade(bootstrap: str, level: int | None, dry_run: bool) -> tuple[int, int]:
    """The levels before and after."""
    from strandline.client import Admin

    async with Admin(**reach(bootstrap), connect_timeout_ms=CONNECT_TIMEOUT_MS) as admin:
        found = await admin.describe_features(timeout_ms=TIMEOUT_MS)
        target = _highest(found) if level is None else level
        async with while_waiting("the controllers"):
            await admin.update_features(target, validate_only=dry_run)
        return found.levels[METADATA_VERSION], target


def _highest(found: FeaturesDescription) -> int:
    """The highest level that all brokers support. Raises StrandlineError if a broker did not answer."""
    silent = [broker.broker_id for broker in found.brokers if broker.supported is None]
    if silent:
        raise StrandlineError(f"broker {silent[0]} does not answer, so the levels that it supports are not known: start it first")
    return min((b.supported[METADATA_VERSION].max_level for b in found.brokers if b.supported is not None), default=0)
