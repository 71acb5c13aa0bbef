"""At most one line per minute about a misbehaving peer, however often it fails and however many addresses it uses."""

from __future__ import annotations

import pytest

from strandline.protocol.log_limits import LineLimits, Suppressed, host_of, printable


def test_a_subject_has_one_line_per_minute_with_a_count() -> None:
    limits = LineLimits()
    answers = [limits.admit("10.0.0.1", now / 100) for now in range(1000)]
    assert answers == [Suppressed(0, 0)] + [None] * 999
    assert limits.admit("10.0.0.1", 59.9) is None
    assert limits.admit("10.0.0.1", 60.0) == Suppressed(1000, 0)
    assert limits.admit("10.0.0.1", 61.0) is None
    assert limits.admit("10.0.0.2", 61.0) == Suppressed(0, 0), "another one is not silenced by it"


def test_the_count_of_a_silent_subject_is_due() -> None:
    """Otherwise a storm that ends within its minute would look like one bad connection."""
    limits = LineLimits()
    for now in range(10):
        limits.admit("a", now)
    limits.admit("b", 1)
    assert limits.due(59) == []
    assert limits.due(61) == [("a", Suppressed(9, 0))]
    assert limits.due(62) == []
    assert limits.admit("a", 120) is None, "that was its line of this minute"


def test_many_subjects_have_a_bounded_number_of_lines_and_of_entries() -> None:
    """A hundred thousand addresses fill neither the disk nor the memory."""
    limits = LineLimits(lines_max=100)
    lines = [limits.admit(f"2001:db8::{n:x}", n / 1000) for n in range(100_000)]
    assert sum(line is not None for line in lines) == 100 * 2, "100 s: two intervals"
    assert len(limits) <= 200
    others = [line.others for line in lines if line is not None]
    assert sum(others) + limits.admit("me", 1000).others == 100_000 - 200, "none is forgotten in the counts"  # type: ignore[union-attr]
    for n in range(1000):
        for _ in range(3):
            limits.admit(f"host-{n}", 10_000 + n * 61)
    assert len(limits) <= 200
    assert len(limits._suppressed) <= len(limits)


def test_time_that_goes_back_suppresses_no_line() -> None:
    limits = LineLimits()
    assert limits.admit("a", 1_000_000) is not None
    assert limits.admit("a", 5) is not None


@pytest.mark.parametrize(
    ("peer", "host"), [("127.0.0.1:4711", "127.0.0.1"), ("::1:4711", "::1"), ("?", "?"), ("/run/socket", "/run/socket")]
)
def test_a_peer_is_identified_by_its_host(peer: str, host: str) -> None:
    assert host_of(peer) == host


def test_text_of_a_peer_is_escaped() -> None:
    """F35: a client id with an escape sequence or a line break, and one of a megabyte."""
    assert printable("me\x1b[2J\n\x07\u202e") == "me\\x1b[2J\\n\\x07\\u202e"
    assert printable("Grüße ✓") == "Grüße ✓"
    assert len(printable("x" * 1_000_000)) < 310
    assert printable(None) == "None"
