"""Two writes never share a producer name, and a retry of a write always has the same name."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from strandline.pipeline.errors import WriteNotDistinct
from strandline.pipeline.write_identity import (
    APP_ID,
    BATCH_ID,
    EXECUTION_ID,
    QUERY_ID,
    WriteIdentity,
    WriteNote,
    decode_note,
    options_of,
    write_identity,
)
from strandline.protocol.errors import UsageError
from strandline.protocol.producer_names import NAME_LENGTH_MAX, NOTE_BYTES_MAX

RUN, NEXT_RUN = ("local-1795416103766", "2"), ("local-1795416440810", "2")
"""Application and SQL execution."""
QUERY = "8c1c1c7e-4f0b-4a53-8df3-90f2a6b3c003"


def identity(
    job: str = "j1", run: tuple[str | None, str | None] = RUN, *, is_stream: bool = False, in_query: bool = True, **options: Any
) -> WriteIdentity:
    known = {QUERY_ID: QUERY, BATCH_ID: "7", APP_ID: run[0], EXECUTION_ID: run[1]} if in_query else {}
    chosen: dict[str, Any] = {"topic": "orders", "producer_name": None, "write_name": None, **options}
    return write_identity(known.get, is_stream=is_stream, job=job, **chosen)


def note_of(write: WriteIdentity) -> WriteNote:
    return WriteNote("orders", [0], 0, write.run_id, write.job)


def test_stream_is_identified_by_query_and_batch() -> None:
    assert identity(is_stream=True) == WriteIdentity(f"spark/{QUERY}", 7)
    assert identity(is_stream=True, producer_name="nightly") == WriteIdentity("spark/nightly", 7)


def test_batch_job_is_identified_by_its_random_id() -> None:
    assert identity(in_query=False) == WriteIdentity("spark/j1", 0)
    assert identity("j2", in_query=False) != identity("j1", in_query=False)
    assert identity("j2", in_query=False, producer_name="load") == identity("j1", in_query=False, producer_name="load")


@pytest.mark.parametrize(
    "option", [{"topic": "refunds"}, {"topic": None}, {"write_name": "totals"}, {"producer_name": "nightly"}]
)
def test_writes_in_foreach_batch_differ_by_topic_and_write_name(option: dict[str, Any]) -> None:
    assert identity().name != identity(**option).name


def test_three_options_identify_a_write_without_sparks_properties() -> None:
    """On a thread of its own or with Spark Connect, the write then has the same identity as inside foreachBatch."""
    options: dict[str, Any] = {"producer_name": "split", "write_name": "odd", "batch_id": 7}
    alone = identity("j1", in_query=False, **options)
    assert alone == identity("j2", in_query=False, **options)
    assert (alone.name, alone.work_epoch) == (identity(**options).name, 7)
    with pytest.raises(UsageError, match="option batchId is 8, and Spark runs batch 7"):
        identity(**{**options, "batch_id": 8})


def test_retried_task_continues_its_own_write() -> None:
    assert not identity("j1").must_claim(note_of(identity("j1")))


def test_second_write_of_the_same_run_is_rejected() -> None:
    """It would skip as many rows as the first write has written."""
    with pytest.raises(WriteNotDistinct, match="with the option writeName"):
        identity("j2").must_claim(note_of(identity("j1")))


def test_second_write_is_rejected_when_the_batch_runs_again() -> None:
    """The notes are those of the earlier run, so the claim of this run decides."""
    note = note_of(identity("j1", RUN))
    first, second = identity("j3", NEXT_RUN), identity("j4", NEXT_RUN)
    assert first.must_claim(note)
    assert second.must_claim(note)
    assert first.claim_name == second.claim_name != identity("j5", RUN).claim_name
    first.check_claim("j3")
    with pytest.raises(WriteNotDistinct):
        second.check_claim("j3")


@pytest.mark.parametrize("run", [(None, None), ("local-1", None), (None, "2")])
def test_run_without_an_id_is_rejected(run: tuple[str | None, str | None]) -> None:
    with pytest.raises(WriteNotDistinct):
        identity("j2", run).must_claim(note_of(identity("j1", run)))


def test_same_batch_in_another_execution_is_another_run() -> None:
    """This happens if a query is stopped and started again in the same Spark application."""
    assert identity("j2", ("local-1", "9")).must_claim(note_of(identity("j1", ("local-1", "2"))))


def test_rows_without_a_note_are_claimed() -> None:
    """An earlier release stored no note if the topic is a column."""
    assert identity().must_claim(None)
    assert not identity(is_stream=True).must_claim(None)


def test_note_of_an_earlier_release_is_read() -> None:
    note = decode_note(msgspec.msgpack.encode(["orders", [4, 5]]))
    assert note == WriteNote("orders", [4, 5])
    assert decode_note(None) is None


def test_offsets_that_exceed_the_note_are_left_out() -> None:
    note = WriteNote("orders", [2**40] * 300, 1, "run", "j1").encode()
    assert len(note) <= NOTE_BYTES_MAX
    assert decode_note(note) == WriteNote("orders", None, 1, "run", "j1")


def test_producer_names_fit_for_any_topic() -> None:
    long = identity(topic="t" * 249, write_name="w" * 100)
    assert long.name != identity(topic="t" * 249, write_name="v" * 100).name
    assert len(options_of(long, 2**31 - 1, None)["producer_name"]) <= NAME_LENGTH_MAX
    assert len(long.claim_name) <= NAME_LENGTH_MAX
