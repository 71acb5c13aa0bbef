"""`strandline transaction`: lists and describes transactions, finds those that hang, and ends them (KIP-664)."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from strandline.cli import names
from strandline.cli.amounts import parse_duration_ms, show_time, time_text
from strandline.cli.common import CONNECT_TIMEOUT_MS, DEFAULT_BOOTSTRAP, ERROR, UNHEALTHY, Bootstrap, new_app
from strandline.cli.output import Form, Output, Table, View
from strandline.cli.transaction_abort import abort, fence
from strandline.cli.watch import Watch, present
from strandline.reach import describable, reach

if TYPE_CHECKING:
    from strandline.client import (
        HangingTransaction,
        OpenTransaction,
        TransactionDescription,
        TransactionListing,
        TransactionSummary,
    )

TIMEOUT_MS = 5000
"""Short, because a person waits."""

app = new_app("List and describe transactions; find and end those that hang.")

OlderThan = Annotated[
    str, typer.Option("--older-than", metavar="TIME", help="Only transactions whose last record is older: 30s, 15m, 2h.")
]


# -- list -------------------------------------------------------------------------------------------------------------


@app.command("list")
def list_(
    states: Annotated[
        list[str] | None, typer.Option("--state", metavar="STATE", help="Only this state, such as Ongoing; several times.")
    ] = None,
    producer_ids: Annotated[
        list[int] | None, typer.Option("--producer-id", metavar="ID", help="Only this producer id; several times.")
    ] = None,
    longer_than: Annotated[
        str | None, typer.Option("--longer-than", metavar="TIME", help="Only transactions that have run for longer: 30s, 5m, 1h.")
    ] = None,
    pattern: Annotated[
        str | None, typer.Option("--pattern", metavar="REGEX", help="Only transactional ids that match, as a whole.")
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: Output = Form.table,
    watch: Watch = None,
) -> None:
    """List the transactional ids. If a broker does not answer, those of the others are shown, and the exit code is 1."""
    longer_than_ms = -1 if longer_than is None else parse_duration_ms(longer_than, "--longer-than")

    async def ask() -> View:
        from strandline.client import Admin

        async with Admin(**reach(bootstrap), connect_timeout_ms=CONNECT_TIMEOUT_MS) as admin:
            listing = await admin.list_transactions(
                states=states or (),
                producer_ids=producer_ids or (),
                longer_than_ms=longer_than_ms,
                pattern=pattern,
                timeout_ms=TIMEOUT_MS,
            )
        is_filtered = bool(states or producer_ids or longer_than or pattern)
        return _listed(listing, NONE_MATCHES if is_filtered else describable("there are no transactional ids", bootstrap))

    present(ask, output, watch)


NONE_MATCHES = "no transactional id matches"


def _listed(listing: TransactionListing, if_empty: str) -> View:
    rows = [(each.transactional_id, each.coordinator, each.producer_id, each.state) for each in listing.transactions]
    document = {
        "transactions": [_summary_json(each) for each in listing.transactions],
        "complete": not listing.errors,
    }
    remarks = [f"broker {broker_id} did not answer: ids may be missing ({e})" for broker_id, e in listing.errors.items()]
    if not rows and not remarks:
        remarks = [if_empty]
    tables = [Table(("TRANSACTIONAL-ID", "COORDINATOR", "PRODUCER-ID", "STATE"), rows)] if rows else []
    return View(document, tables, remarks, ERROR if listing.errors else 0)


def _summary_json(each: TransactionSummary) -> dict[str, Any]:
    return {
        "transactional_id": each.transactional_id,
        "coordinator": each.coordinator,
        "producer_id": each.producer_id,
        "state": each.state,
    }


# -- describe ---------------------------------------------------------------------------------------------------------


@app.command()
def describe(
    ids: Annotated[
        list[str],
        typer.Argument(metavar="ID...", help="Transactional ids.", autocompletion=names.transactional_ids),
    ],
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: Output = Form.table,
    watch: Watch = None,
) -> None:
    """Describe transactional ids: the producer, and the state and partitions of its transaction, as the coordinator knows them.

    An id that does not exist, or whose coordinator does not answer, is named, and the exit code is 1.
    """

    async def ask() -> View:
        from strandline.client import Admin

        async with Admin(**reach(bootstrap), connect_timeout_ms=CONNECT_TIMEOUT_MS) as admin:
            found = await admin.describe_transactions(ids, timeout_ms=TIMEOUT_MS)
        return _described(list(found.values()), time.time())

    present(ask, output, watch)


DESCRIBED = (
    "TRANSACTIONAL-ID",
    "COORDINATOR",
    "PRODUCER-ID",
    "EPOCH",
    "STATE",
    "TIMEOUT",
    "STARTED",
    "RUNS-FOR",
    "PARTITIONS",
)


def _described(found: Sequence[TransactionDescription], now: float) -> View:
    known = [each for each in found if each.error is None]
    rows = [_row(each, now) for each in known]
    problems = [_problem(each.transactional_id, str(each.error)) for each in found if each.error is not None]
    tables = [Table(DESCRIBED, rows, spare=("COORDINATOR", "EPOCH", "STARTED"))] if rows else []
    document = {"transactions": [_json(each) for each in found]}
    return View(document, tables, problems, ERROR if problems else 0)


def _problem(transactional_id: str, error: str) -> str:
    """The error, with the id before it if the error does not name it."""
    return error if repr(transactional_id) in error else f"{transactional_id}: {error}"


def _row(each: TransactionDescription, now: float) -> tuple[object, ...]:
    started = each.started_at_ms
    return (
        each.transactional_id,
        each.coordinator,
        each.producer_id,
        each.producer_epoch,
        each.state,
        show_time(each.timeout_ms / 1000),
        None if started is None else time_text(started),
        None if started is None else show_time(max(0.0, now - started / 1000)),
        ",".join(f"{tp.topic}-{tp.partition}" for tp in each.partitions) or None,
    )


def _json(each: TransactionDescription) -> dict[str, Any]:
    if each.error is not None:
        return {"transactional_id": each.transactional_id, "error": str(each.error)}
    return {
        "transactional_id": each.transactional_id,
        "coordinator": each.coordinator,
        "producer_id": each.producer_id,
        "producer_epoch": each.producer_epoch,
        "state": each.state,
        "timeout_ms": each.timeout_ms,
        "started_at_ms": each.started_at_ms,
        "updated_at_ms": each.updated_at_ms,
        "partitions": [tp._asdict() for tp in each.partitions],
    }


# -- find-hanging -----------------------------------------------------------------------------------------------------


@app.command("find-hanging")
def find_hanging(
    topics: Annotated[
        list[str] | None,
        typer.Option(
            "--topic",
            "-t",
            metavar="TOPIC",
            help="Only this topic; several times. Default: all topics.",
            autocompletion=names.topics,
        ),
    ] = None,
    older_than: OlderThan = "15m",
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: Output = Form.table,
) -> None:
    """Find transactions that are open in a partition and that no coordinator will end; readers of committed records wait for
    them. Exit code 3 if there are any.

    A coordinator aborts a transaction after its timeout, which is 15 minutes at most (transaction.max.timeout.ms); so younger
    ones are no sign of trouble.
    """
    older_than_ms = parse_duration_ms(older_than, "--older-than")

    async def ask() -> View:
        from strandline.client import Admin, TopicPartition

        async with Admin(**reach(bootstrap), connect_timeout_ms=CONNECT_TIMEOUT_MS) as admin:
            described = await admin.describe_topics(topics or None, timeout_ms=TIMEOUT_MS)
            places = [TopicPartition(topic.name, p.partition) for topic in described for p in topic.partitions]
            now_ms = int(time.time() * 1000)
            found = await admin.find_hanging_transactions(
                places, older_than_ms=older_than_ms, now_ms=now_ms, timeout_ms=TIMEOUT_MS
            )
        return _hanging(found, len(places))

    present(ask, output)


HANGING = ("TOPIC", "PARTITION", "PRODUCER-ID", "EPOCH", "START-OFFSET", "LAST-RECORD", "TRANSACTIONAL-ID", "REASON")


def _hanging(found: Sequence[HangingTransaction], partitions: int) -> View:
    document = {"partitions": partitions, "hanging": [_hanging_json(each) for each in found]}
    if not found:
        return View(document, [f"no transaction hangs in {partitions} partitions"])
    rows = [(*_open_row(each.transaction), each.transactional_id, each.reason) for each in found]
    first = found[0].transaction
    advice = (
        f"strandline transaction abort {first.partition.topic} {first.partition.partition} --start-offset {first.start_offset} "
        f"ends the first one"
    )
    return View(document, [Table(HANGING, rows, spare=("EPOCH", "LAST-RECORD"))], [advice], UNHEALTHY)


def _open_row(each: OpenTransaction) -> tuple[object, ...]:
    tp = each.partition
    return tp.topic, tp.partition, each.producer_id, each.producer_epoch, each.start_offset, time_text(each.last_timestamp_ms)


def _hanging_json(each: HangingTransaction) -> dict[str, Any]:
    opened = each.transaction
    return {
        **opened.partition._asdict(),
        "producer_id": opened.producer_id,
        "producer_epoch": opened.producer_epoch,
        "start_offset": opened.start_offset,
        "last_timestamp_ms": opened.last_timestamp_ms,
        "coordinator_epoch": opened.coordinator_epoch,
        "transactional_id": each.transactional_id,
        "reason": each.reason,
    }


app.command()(abort)
app.command()(fence)
