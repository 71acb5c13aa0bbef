"""`strandline elect`: makes the preferred replica the leader again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from strandline.cli.common import CONNECT_TIMEOUT_MS, DEFAULT_BOOTSTRAP, Bootstrap, Json, fail, new_app, print_json, run
from strandline.protocol.errors import UsageError

if TYPE_CHECKING:
    from strandline.client import ElectionResult

app = new_app()


@app.command()
def elect(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="The topic's name.")],
    partition: Annotated[int, typer.Argument(metavar="PARTITION", min=0, help="The partition's number.")],
    preferred: Annotated[bool, typer.Option("--preferred", help="Elect the first of the partition's replicas.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    """Elect a leader for a partition."""
    from strandline.protocol.errors import ErrorCode

    if not preferred:
        raise UsageError("the kind of election is missing: --preferred")
    result, leader = run(_elect(bootstrap, topic, partition))
    already = result.code == ErrorCode.ELECTION_NOT_NEEDED
    if result.code != ErrorCode.NONE and not already:
        fail(f"{topic}-{partition}: {result.message or result.code.name}")
    if json:
        print_json({"topic": topic, "partition": partition, "leader": leader, "elected": not already})
    else:
        print(f"{topic}-{partition}: broker {leader} {'leads already' if already else 'is elected'}")


async def _elect(bootstrap: str, topic: str, partition: int) -> tuple[ElectionResult, int]:
    from strandline.client import Admin

    async with Admin(bootstrap_servers=bootstrap, connect_timeout_ms=CONNECT_TIMEOUT_MS) as admin:
        (described,) = await admin.describe_topics([topic])
        places = {p.partition: p for p in described.partitions}
        if partition not in places:
            raise UsageError(f"topic {topic} has no partition {partition}; it has {len(places)}")
        (result,) = await admin.elect_leaders([(topic, partition)])
        return result, places[partition].replicas[0]
