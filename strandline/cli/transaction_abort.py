"""`strandline transaction abort` and `fence`: end a transaction by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from strandline.cli import names
from strandline.cli.common import (
    CONNECT_TIMEOUT_MS,
    DEFAULT_BOOTSTRAP,
    ERROR,
    Bootstrap,
    TopicName,
    Yes,
    check_terminal,
    confirm,
    run,
)
from strandline.cli.output import Form, Output, View, show
from strandline.protocol.errors import StrandlineError, UsageError
from strandline.reach import reach

if TYPE_CHECKING:
    from strandline.client import OpenTransaction


def abort(
    topic: TopicName,
    partition: Annotated[int, typer.Argument(metavar="PARTITION", help="The partition's number.")],
    start_offset: Annotated[
        int,
        typer.Option("--start-offset", metavar="OFFSET", help="The transaction's first record (`transaction find-hanging`)."),
    ],
    yes: Yes = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: Output = Form.table,
) -> None:
    """End a transaction that hangs in a partition: write a marker that aborts it there. Asks first, unless --yes is given.

    Only for transactions that `transaction find-hanging` has found. The records of a live transaction would be lost in this
    partition, and could be committed in the others: end its producer instead, with `transaction fence`.
    """
    check_terminal(yes, "transaction abort discards the records of the transaction")
    opened = run(_open_at(bootstrap, topic, partition, start_offset))
    what = f"the records of producer {opened.producer_id} from offset {start_offset} on in {topic}-{partition}"
    confirm(f"This discards {what}, for good.", yes, "nothing was changed")
    run(_abort(bootstrap, opened))
    document = {
        **opened.partition._asdict(),
        "producer_id": opened.producer_id,
        "producer_epoch": opened.producer_epoch,
        "start_offset": start_offset,
        "aborted": True,
    }
    show(View(document, [f"the transaction at offset {start_offset} of {topic}-{partition} is aborted"]), output)


async def _open_at(bootstrap: str, topic: str, partition: int, start_offset: int) -> OpenTransaction:
    """The open transaction that begins at this offset. UsageError if there is none."""
    from strandline.client import Admin

    async with Admin(**reach(bootstrap), connect_timeout_ms=CONNECT_TIMEOUT_MS) as admin:
        opened = await admin.open_transactions([(topic, partition)])
    for each in opened:
        if each.start_offset == start_offset:
            return each
    starts = ", ".join(str(each.start_offset) for each in opened)
    known = f"open ones begin at {starts}" if opened else "there is none"
    raise UsageError(f"no open transaction of {topic}-{partition} begins at offset {start_offset}; {known}")


async def _abort(bootstrap: str, opened: OpenTransaction) -> None:
    from strandline.client import Admin

    async with Admin(**reach(bootstrap), connect_timeout_ms=CONNECT_TIMEOUT_MS) as admin:
        await admin.abort_transaction(opened)


def fence(
    ids: Annotated[list[str], typer.Argument(metavar="ID...", help="Transactional ids.", autocompletion=names.transactional_ids)],
    yes: Yes = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: Output = Form.table,
) -> None:
    """Take transactional ids away from their producers, and abort their transactions. Asks first, unless --yes is given.

    The producers fail with their next request (ProducerFenced). A program that is started with the id takes it over as usual.
    """
    check_terminal(yes, "transaction fence ends producers")
    confirm(f"This ends the producers of {', '.join(ids)}, and aborts their transactions.", yes, "nothing was changed")
    found = run(_fence(bootstrap, ids))
    document = {"transactions": [{"transactional_id": key, "error": error and str(error)} for key, error in found.items()]}
    done = [f"{key} fenced" for key, error in found.items() if error is None]
    problems = [f"{key} is not fenced: {error}" for key, error in found.items() if error is not None]
    show(View(document, done, problems, ERROR if problems else 0), output)


async def _fence(bootstrap: str, ids: Sequence[str]) -> dict[str, StrandlineError | None]:
    from strandline.client import Admin

    async with Admin(**reach(bootstrap), connect_timeout_ms=CONNECT_TIMEOUT_MS) as admin:
        known = await admin.describe_transactions(ids)
        unknown = {key: each.error for key, each in known.items() if each.error is not None}
        fenced = await admin.fence_producers([key for key in ids if key not in unknown])
    return {**unknown, **fenced}
