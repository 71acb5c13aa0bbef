"""The results of an audit, the report page, and the ledger, without Spark."""

from __future__ import annotations

import json
import re
import zlib
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from chromium import find_chromium, new_page, running_chromium
from cli_world import run

from strandline.client.producer.receipts import BatchMetadata, RecordMetadata
from strandline.pipeline.jobs.audit_ledger import Ledger
from strandline.pipeline.jobs.audit_page import page
from strandline.pipeline.jobs.audit_range import Shown
from strandline.pipeline.jobs.audit_result import Audit, CopyInterval, Finding, Interval, Partition, Seen

HOUR = 1_763_791_200


def interval(partition: int, n: int, lake: int = 100, **kinds: int) -> Interval:
    at_ms = (HOUR + 3600 * n) * 1000
    seen = {
        source: Seen(count, 100 * n, 100 * n + count - 1, at_ms + 17, at_ms + 3_500_000)
        for source, count in (("log", 100), ("lake", lake), ("ledger", 100))
    }
    return Interval(topic="orders", partition=partition, at_s=HOUR + 3600 * n, seen=seen, kinds=kinds)


def copy_interval(n: int) -> CopyInterval:
    return CopyInterval(topic="orders", copy="orders-2", at_s=HOUR + 3600 * n, count=300, copied=300, kinds={})


def any_audit() -> Audit:
    """A day of three partitions. One hour has lost records; the last hour is not yet in the lake."""
    intervals = [interval(p, n) for p in range(3) for n in range(23)] + [interval(p, 23, 0, pending=100) for p in range(3)]
    intervals[30] = interval(1, 7, 97, lost_in_lake=3)
    return Audit(
        made_at_s=HOUR + 86_400,
        interval_s=3600,
        sources=("log", "lake", "ledger"),
        partitions=tuple(Partition(topic="orders", partition=p, log_start=0, log_end=2400, lake_end=2300) for p in range(3)),
        intervals=tuple(intervals),
        copies=tuple(
            CopyInterval(topic="orders", copy="orders-2", at_s=HOUR + 3600 * n, count=300, copied=300, kinds={})
            for n in range(24)
        ),
        findings=(
            Finding(kind="lost_in_lake", where="orders-1", count=3, examples=("offset 700", "offset 701", "offset 702")),
            Finding(kind="pending", where="orders-0", count=100, is_bad=False),
        ),
    )


def test_verdict_counts_bad_findings_only() -> None:
    audit = any_audit()
    assert (audit.is_ok, audit.verdict) == (False, "problems found: 3 lost in lake; 7,200 records in the log")
    assert audit.bad[0].sentence == "orders-1: 3 records missing in the lake"
    well = replace(audit, findings=audit.findings[1:])
    assert (well.is_ok, well.verdict) == (True, "nothing is lost and nothing is doubled: 7,200 records in the log")


def test_gaps_are_counted_as_offsets() -> None:
    """A gap is an offset without a record, so its sentence must not count records."""
    gaps = Finding(kind="gaps", where="orders-0", count=2, is_bad=False)
    assert gaps.sentence.startswith("orders-0: 2 offsets without a record in the log")


def test_json_has_every_row_and_sentence() -> None:
    document = json.loads(json.dumps(any_audit().document))
    assert (document["ok"], len(document["intervals"]), len(document["copies"])) == (False, 72, 24)
    assert document["findings"][1]["sentence"] == "orders-0: 100 records in the log, not yet in the lake"


class Tags(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [value or "" for name, value in attrs if name in ("src", "href", "xlink:href")]


def test_report_is_one_file_without_links() -> None:
    text = page(any_audit(), "Audit of <orders>", [(HOUR + 5000.0, "kill broker-2")])
    tags = Tags(text)
    assert all(link.startswith("#") for link in tags.links)
    assert "script" not in tags.tags
    assert tags.tags.count("svg") == 3
    assert "<title>Audit of &lt;orders&gt;</title>" in text
    assert "kill broker-2" in text
    assert "Problems found: 3 lost in lake" in text
    assert text.count("<tr class=bad>") == 1


def with_one_of_1970(audit: Audit) -> Audit:
    seen = {source: Seen(1, 5000, 5000, 0, 0) for source in audit.sources}
    early = Interval(topic="orders", partition=0, at_s=0, seen=seen, kinds={})
    return replace(audit, intervals=(early, *audit.intervals))


def texts(picture: str) -> list[str]:
    """All texts in the pictures of a page."""
    return re.findall(r"<text [^>]*>([^<]*)</text>", picture)


def test_pictures_leave_out_a_record_of_1970() -> None:
    """With one wrong timestamp the axis would span 55 years, and a day of records would be a thin line."""
    ordinary, text = page(any_audit()), page(with_one_of_1970(any_audit()))
    assert texts(text) == texts(ordinary)
    assert "The pictures leave out 1 record at 1970-01-01 00:00:00 UTC, far from all others; the table has them." in text
    assert "leave out" not in ordinary


@pytest.mark.parametrize(
    ("totals", "shown"),
    [
        ({}, None),
        ({0: 1}, Shown(0, 10)),
        ({0: 1, 100_000: 99}, Shown(100_000, 100_010, (0,), 1)),
        ({0: 1, 100_000: 99, 900_000: 1}, Shown(0, 100_010, (900_000,), 1)),
        ({0: 1, 100_000: 500, 900_000: 2}, Shown(100_000, 100_010, (0, 900_000), 3)),
        ({0: 50, 100_000: 50}, Shown(0, 100_010)),
        ({0: 1, 1990: 999}, Shown(0, 2000)),
        ({n * 10: 5 for n in range(500)}, Shown(0, 5000)),
    ],
    ids=["nothing", "one", "early", "early and late, one too many", "early and late", "halves", "short", "without a gap"],
)
def test_few_distant_records_are_left_out(totals: dict[int, int], shown: Shown | None) -> None:
    assert Shown.of({"log": totals, "lake": {}}, 10) == shown


def test_axes_have_whole_numbers() -> None:
    """matplotlib would write 0.5 and 1.0 below a factor of 1e6, which readers would have to multiply."""
    audit = any_audit()
    many = {source: replace(seen, count=1_500_000) for source, seen in audit.intervals[0].seen.items()}
    text = page(replace(audit, intervals=(replace(audit.intervals[0], seen=many),), copies=()))
    assert "1e6" not in texts(text)
    assert any(re.fullmatch(r"1,\d00,000", each) for each in texts(text))


LOOK = """[...document.querySelectorAll('svg')].map((svg) => {
  const box = svg.getBoundingClientRect(), card = svg.closest('.card').getBoundingClientRect();
  return box.width > 800 && box.height > 60 && box.right <= card.right && svg.textContent.trim().length > 0;
})"""


async def test_browser_shows_the_pictures_without_requests(tmp_path: Path) -> None:
    program = find_chromium()
    if program is None:
        pytest.skip("there is no Chromium")
    file = tmp_path / "report.html"
    # The helper waits for an attribute that pages with a script set when they are drawn; this page has no script.
    file.write_text(page(any_audit()).replace("<html ", "<html data-ready=yes "))
    with running_chromium(program, tmp_path / "chromium") as address:
        async with new_page(address) as shown:
            await shown.open(file)
            assert await shown.run(LOOK) == [True, True, True]
            assert await shown.run("document.documentElement.scrollWidth <= innerWidth")
            assert (shown.console, len(shown.requests)) == ([], 1)


def test_ledger_continues_after_a_torn_line(tmp_path: Path) -> None:
    path = tmp_path / "acks.jsonl"
    with Ledger(path) as ledger:
        ledger.add(RecordMetadata("orders", 1, 7, 17), b"tea")
        ledger.add(BatchMetadata("orders", 0, 20, 64, 18))
    with path.open("ab") as file:
        file.write(b'{"topic": "ord')
    with Ledger(path) as ledger:
        ledger.add(RecordMetadata("orders", 1, 8, 19))
    one, two, _, three = path.read_text().splitlines()
    assert json.loads(one) == {"topic": "orders", "partition": 1, "offset": 7, "timestamp": 17, "crc32": zlib.crc32(b"tea")}
    assert json.loads(two) == {"topic": "orders", "partition": 0, "offset": 20, "count": 64, "timestamp": 18}
    assert json.loads(three)["offset"] == 8


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "topics by name, or copies"),
        (["--topic", "a", "--lake", "nowhere"], "there is no lake in nowhere"),
        (["--topic", "a", "--ledger", "nowhere"], "there is no ledger nowhere"),
        (["--copy", "a"], "--copy takes TOPIC=COPY, not 'a'"),
        (["--copy", "a=a"], "topic a cannot be a copy of itself"),
    ],
)
def test_wrong_arguments_are_rejected_before_spark_starts(words: list[str], message: str) -> None:
    outcome = run("pipeline", "audit", *words)
    assert outcome.code == 2
    assert message in outcome.err
