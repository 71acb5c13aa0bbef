"""Errors that the pipeline itself raises. docs/spark.md and docs/spark-recipes.md say what to do after each."""

from __future__ import annotations

from strandline.client.consumer.records import TopicPartition
from strandline.client.errors import ClientError


class DataLoss(ClientError):
    """Records that a job has yet to read no longer exist: retention deleted them, the log was truncated, or the topic or
    partition was deleted. With the option `failOnDataLoss=false` the job skips the gap instead, if it can (`may_continue`)."""

    def __init__(self, what: str, *, topic: str, partition: int, may_continue: bool = True) -> None:
        hint = "; to continue without the missing records, set the option failOnDataLoss to false" if may_continue else ""
        super().__init__(what + hint, topic=topic, partition=partition)


def recreated(tp: TopicPartition, offset: int, advice: str = "start the query with a new checkpoint") -> str:
    """The error text for a query or job whose topic was recreated after it had read up to `offset`. `advice` says how to begin
    again."""
    return (
        f"{tp} was read up to offset {offset}, and its topic was deleted and recreated since; to read all of the new "
        f"topic, {advice}"
    )


class WrongColumns(ClientError):
    """A DataFrame lacks a column that the sink needs, or has one of another type or with an illegal null."""


class RowsDiffer(ClientError):
    """A retried task has other rows than the attempt before, so the sink does not know which rows the log already has."""


class WriteNotDistinct(ClientError):
    """A write inside `foreachBatch` may be a retry of an earlier write or a second write of the same batch. Nothing was
    written."""
