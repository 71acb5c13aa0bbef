"""What the pipeline itself has to say when a job cannot go on: each a sentence that a person can act on."""

from __future__ import annotations

from strandline.client.consumer.records import TopicPartition
from strandline.client.errors import ClientError


class DataLoss(ClientError):
    """Records that were to be read are gone: retention was faster, the log was truncated, a topic or partition was deleted.
    With the option `failOnDataLoss=false` a job goes on behind the gap instead."""

    def __init__(self, what: str, *, topic: str, partition: int) -> None:
        hint = "; to go on without what is missing, set the option failOnDataLoss to false"
        super().__init__(what + hint, topic=topic, partition=partition)


def recreated(place: TopicPartition, offset: int) -> str:
    """What a query is told whose topic is another one than it has read."""
    return (
        f"{place} was read up to offset {offset}, and its topic was deleted and recreated since; to read all of the new "
        "topic, start the query with a new checkpoint"
    )


class WrongColumns(ClientError):
    """A DataFrame does not have the columns that a sink needs, or not of their types."""


class RowsDiffer(ClientError):
    """A task was run again and its rows are not those of the first time, so nobody can tell which of them are written."""


class WriteNotDistinct(ClientError):
    """A write inside of `foreachBatch` may be a retry of an earlier one or another write. Nothing was written."""
