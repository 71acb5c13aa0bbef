"""`walk.py` and `splits.py`: every byte of a segment belongs to one batch or one named damage, in one walk and in split walks."""

from __future__ import annotations

import struct

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from segment_files import batch, index_of, positions, reader, segment, walk

from strandline.pipeline.segments.splits import Index, cuts, ranges
from strandline.pipeline.segments.walk import CHUNK, Extent, Found, Walk, Wanted, possible_header
from strandline.protocol.errors import BrokerError
from strandline.protocol.records.batch import HEADER_SIZE
from strandline.protocol.records.filler import make_fillers

BATCHES = 12
DATA = segment(BATCHES)
STARTS = positions(DATA)
FIFTH, SIXTH = STARTS[5], STARTS[6]


def changed(data: bytes, at: int, new: bytes) -> bytes:
    return data[:at] + new + data[at + len(new) :]


def kinds(found: list[Found]) -> list[str | None]:
    return [each.damage and each.damage.split(":")[0] for each in found]


def covered(found: list[Found], size: int, start: int = 0) -> None:
    """Asserts that the `Found`s cover all bytes from `start` to `size`, without a gap and without an overlap."""
    for each in found:
        assert each.position == start
        start += each.size
    assert start == size


@pytest.mark.parametrize("wanted", list(Wanted))
def test_sound_batches_come_in_order(wanted: Wanted) -> None:
    found = walk(DATA, wanted)
    assert [each.position for each in found] == STARTS
    assert kinds(found) == [None] * BATCHES
    assert [each.header.base_offset for each in found if each.header] == list(range(0, 3 * BATCHES, 3))
    covered(found, len(DATA))


def test_crc_is_computed_only_when_it_is_wanted() -> None:
    assert all(each.crc is None for each in walk(DATA, Wanted.HEADERS))
    assert all(each.header is not None and each.crc == each.header.crc for each in walk(DATA))


def test_changed_payload_is_checksum_damage_of_one_batch() -> None:
    found = walk(changed(DATA, FIFTH + 80, b"!"))
    assert kinds(found) == [None] * 5 + ["checksum"] + [None] * 6
    assert found[5].header is not None
    assert found[5].crc != found[5].header.crc
    assert found[5].size == SIXTH - FIFTH


@pytest.mark.parametrize(
    ("at", "new", "kind"),
    [
        (16, b"\x01", "header"),  # magic
        (8, b"\xff\xff\xff\xff", "header"),  # a negative length
        (8, b"\x00\x00\x00\x05", "header"),  # shorter than a header
        (8, b"\x00\x00\x00\x70", "checksum"),  # shorter than the batch: no possible header follows
        (8, b"\x00\x00\x01\x70", "checksum"),  # longer than the batch, inside of the file
        (8, b"\x00\x70\x00\x00", "header"),  # longer than the file
        (23, b"\xff\xff\xff\xff", "header"),  # last offset delta
        (57, b"\x00\x00\x00\x63", "header"),  # more records than offsets
        (0, b"\xff", "header"),  # a negative offset
        (0, b"\x7f", "offsets"),  # an offset that cannot be in this segment
    ],
)
def test_damaged_header_ends_at_the_next_sound_batch(at: int, new: bytes, kind: str) -> None:
    data = changed(DATA, FIFTH + at, new)
    found = walk(data)
    assert kinds(found) == [None] * 5 + [kind] + [None] * 6
    assert (found[5].position, found[5].size) == (FIFTH, SIXTH - FIFTH)
    covered(found, len(data))


def test_offsets_that_go_back_are_damage() -> None:
    data = segment(3) + batch(4, [b"again"]) + batch(9, [b"next"])
    assert kinds(walk(data)) == [None, None, None, "offsets", None]


def test_gap_in_offsets_is_not_damage() -> None:
    """Compaction leaves gaps, and Kafka's logs may be compacted."""
    assert kinds(walk(segment(2) + batch(100, [b"later"]))) == [None, None, None]


@pytest.mark.parametrize("left", [1, HEADER_SIZE - 1, HEADER_SIZE, 100])
def test_incomplete_last_batch_is_a_torn_tail(left: int) -> None:
    data = DATA[: STARTS[-1] + left]
    assert kinds(walk(data)) == [None] * 11 + ["torn tail"]
    assert kinds(walk(data, is_last=False)) == [None] * 11 + ["cut off"]
    covered(walk(data), len(data))


def test_zeros_up_to_the_end_have_their_own_kind() -> None:
    """Kafka preallocates segments if `log.preallocate` is set, so zeros in the last segment are normal."""
    data = DATA + bytes(3 * CHUNK)
    assert kinds(walk(data)) == [None] * BATCHES + ["preallocated"]
    assert kinds(walk(data, is_last=False)) == [None] * BATCHES + ["zeros"]
    assert kinds(walk(data + b"\1")) == [None] * BATCHES + ["header"]


@pytest.mark.parametrize("size", [2 * CHUNK + 7, *(CHUNK - FIFTH - left for left in (1, 30, 60, 61, 62))])
def test_hole_of_zeros_ends_at_the_next_batch(size: int) -> None:
    """A power failure may leave such a hole if pages were lost. The next header may lie across two chunks."""
    hole = bytes(size)
    found = walk(DATA[:FIFTH] + hole + DATA[SIXTH:])
    assert kinds(found) == [None] * 5 + ["header"] + [None] * 6
    assert found[5].size == len(hole)


def test_batch_inside_a_damaged_batch_is_ignored() -> None:
    """A value may contain the bytes of a batch."""
    data = segment(2) + batch(6, [batch(7, [b"inner"]), b"x"]) + batch(8, [b"next"])
    at = positions(data)[2]
    found = walk(changed(data, at + 70, b"\xff"))
    assert kinds(found) == [None, None, "checksum", None]


def test_older_batch_inside_a_damaged_batch_is_ignored() -> None:
    """The search after a damaged header accepts only a batch with later offsets."""
    data = segment(2) + batch(6, [batch(1, [b"inner"]), b"x"]) + batch(8, [b"next"])
    at = positions(data)[2]
    found = walk(changed(data, at + 16, b"\7"))
    assert kinds(found) == [None, None, "header", None]


def test_file_that_became_shorter_is_reported() -> None:
    extent = Extent(0, len(DATA), True)
    part = next(iter(ranges(cuts(reader(DATA), extent, [], len(DATA)), len(DATA), 0, None)))
    found = list(Walk(reader(DATA[:SIXTH]), extent, part, Wanted.CRC))
    assert kinds(found) == [None] * 6 + ["shortened"]


def test_large_batch_is_read_in_pieces() -> None:
    sizes: list[int] = []
    data = segment(2) + batch(6, [bytes(3 * CHUNK)]) + batch(7, [b"next"])

    def read(position: int, size: int) -> memoryview:
        sizes.append(size)
        return reader(data)(position, size)

    extent = Extent(0, len(data), True)
    part = next(iter(ranges(cuts(read, extent, [], len(data)), len(data), 0, None)))
    assert kinds(list(Walk(read, extent, part, Wanted.CRC))) == [None] * 4
    assert max(sizes) <= CHUNK


# -- any bytes -------------------------------------------------------------------------------------------------------


def split_walk(data: bytes, split_bytes: int, index: Index, wanted: Wanted = Wanted.CRC) -> list[Found]:
    extent = Extent(0, len(data), True)
    found: list[Found] = []
    for part in ranges(cuts(reader(data), extent, index, split_bytes), len(data), 0, None):
        found += Walk(reader(data), extent, part, wanted)
    return found


pieces = st.one_of(
    st.binary(max_size=200),
    st.integers(0, BATCHES - 1).map(lambda n: DATA[STARTS[n] : [*STARTS, len(DATA)][n + 1]]),
    st.integers(0, 40).map(lambda n: batch(n, [b"value"])),
    st.integers(0, 300).map(bytes),
    st.binary(min_size=1, max_size=1).map(lambda byte: byte * 100),
)
damages = st.lists(st.tuples(st.integers(0, len(DATA) - 1), st.binary(min_size=1, max_size=8)), min_size=1, max_size=4)


@given(st.lists(pieces, max_size=12).map(b"".join), st.sampled_from(Wanted), st.integers(1, 600))
@settings(deadline=None)
def test_any_split_of_any_bytes_finds_the_same(data: bytes, wanted: Wanted, split_bytes: int) -> None:
    found = walk(data, wanted)
    covered(found, len(data))
    assert split_walk(data, split_bytes, [], wanted) == found


lengths = st.tuples(st.sampled_from(STARTS), st.integers(0, len(DATA)))


def claims_too_high_offsets(data: bytes) -> bool:
    """Whether a possible header in a damaged copy of DATA has higher offsets than the one in DATA."""
    for start in STARTS:
        try:
            header = possible_header(memoryview(data), start)
        except BrokerError:
            continue
        if header.next_offset > possible_header(memoryview(DATA), start).next_offset:
            return True
    return False


def damaged(changes: list[tuple[int, bytes]]) -> bytes:
    data = DATA
    for at, new in changes:
        data = changed(data, at, new)[: len(DATA)]
    return data


def test_a_walk_skips_more_than_split_walks_after_too_high_offsets() -> None:
    """A known weakness of the walk: no checksum covers a base offset, so a batch of too high ones is taken for sound."""
    data = damaged([(STARTS[2] + 4, b"\1"), (STARTS[3] + 41, b"\0")])
    assert claims_too_high_offsets(data)
    assert len(split_walk(data, 151, index_of(DATA))) > len(walk(data))


@given(damages, st.integers(1, 600))
@example(changes=[(STARTS[3] + 41, b"\0")], split_bytes=151)
@settings(deadline=None)
def test_splits_by_index_find_the_same_in_a_damaged_segment(changes: list[tuple[int, bytes]], split_bytes: int) -> None:
    data = damaged(changes)
    assume(not claims_too_high_offsets(data))
    found = split_walk(data, split_bytes, index_of(DATA))
    covered(found, len(data))
    assert [(each.position, each.size) for each in found] == [(each.position, each.size) for each in walk(data)]


@given(st.lists(lengths, min_size=1, max_size=3), st.sampled_from(Wanted), st.integers(1, 600))
@settings(deadline=None)
def test_wrong_length_reaches_into_no_other_split(changes: list[tuple[int, int]], wanted: Wanted, split_bytes: int) -> None:
    """Otherwise two tasks would return the same rows. This must hold without CRCs as well."""
    data = DATA
    for start, length in changes:
        data = changed(data, start + 8, struct.pack(">i", length))
    found = split_walk(data, split_bytes, index_of(DATA), wanted)
    covered(found, len(data))
    assert [each.position for each in found] == [each.position for each in walk(data, wanted)]


@pytest.mark.parametrize("wanted", list(Wanted))
@pytest.mark.parametrize("left", [0, 20])
def test_wrong_length_up_to_the_end_hides_no_batch(wanted: Wanted, left: int) -> None:
    """Otherwise the tasks of the later ranges would return the same rows again. This must hold without CRCs as well."""
    data = changed(DATA, FIFTH + 8, struct.pack(">i", len(DATA) - FIFTH - 12 - left))
    found = walk(data, wanted)
    assert [each.position for each in found] == STARTS
    assert split_walk(data, SIXTH, index_of(DATA), wanted) == found


@given(st.lists(st.tuples(st.integers(0, 200), st.integers(0, 3000)), max_size=6), st.integers(1, 600))
@settings(deadline=None)
def test_wrong_index_changes_nothing(index: Index, split_bytes: int) -> None:
    assert split_walk(DATA, split_bytes, sorted(index)) == walk(DATA)


def test_index_entry_inside_a_batch_is_not_a_cut() -> None:
    """A batch inside of a value looks sound, but the headers before it lead past it."""
    inner = batch(7, [b"inner"])
    data = segment(2) + batch(6, [b"." * 200 + inner, b"x"]) + batch(8, [b"next"])
    starts = positions(data)
    index = [(5, starts[1]), (7, data.index(inner))]
    assert split_walk(data, starts[2] + 50, index) == walk(data)


def test_index_entry_of_a_damaged_batch_is_not_a_cut() -> None:
    """The search after a damaged header skips batches with wrong CRCs, so no range may begin at such a batch."""
    data = changed(DATA, STARTS[3] + 16, b"\7")
    for n in (4, 5, 6):
        data = changed(data, STARTS[n] + 80, b"!")
    assert split_walk(data, STARTS[5], index_of(DATA, every=2)) == walk(data)


def test_cut_knows_where_the_batch_before_it_ends() -> None:
    for index in ([], index_of(DATA)):
        found = cuts(reader(DATA), Extent(0, len(DATA), True), index, 300)
        assert len(found) > 3
        assert [cut.next_offset for cut in found] == [cut.base_offset for cut in found]


def test_cuts_lie_at_entries_of_a_sound_index() -> None:
    """Then a cut costs little: only the headers between two entries, and one batch, are read."""
    index = index_of(DATA)
    asked: list[int] = []

    def read(position: int, size: int) -> memoryview:
        asked.append(position)
        return reader(DATA)(position, size)

    found = cuts(read, Extent(0, len(DATA), True), index, 2 * (SIXTH - FIFTH))
    assert {cut.position for cut in found[1:]} <= {position for _, position in index} | {STARTS[2], STARTS[11]}
    assert len(found) > 2


def test_ranges_without_wanted_offsets_are_left_out() -> None:
    found = cuts(reader(DATA), Extent(0, len(DATA), True), [], SIXTH - FIFTH)
    assert len(found) == BATCHES
    kept = list(ranges(found, len(DATA), 10, 16))
    assert (kept[0].start, kept[-1].end) == (STARTS[3], STARTS[6])


def test_extreme_lengths_never_raise() -> None:
    for length in (-(2**31), -1, 0, 48, 49, 2**31 - 1):
        data = changed(DATA, FIFTH + 8, struct.pack(">i", length))
        covered(walk(data), len(data))


@pytest.mark.parametrize("wanted", list(Wanted))
def test_fillers_are_sound_batches(wanted: Wanted) -> None:
    """Compaction leaves batches without records, alone, side by side and at the ends."""
    data = b"".join([*make_fillers(0, 5, 0), batch(5, [b"a"]), *make_fillers(6, 9, 0), *make_fillers(9, 2**31, 0)])
    found = walk(data, wanted)
    assert kinds(found) == [None] * 4
    assert [(each.header.base_offset, each.header.record_count) for each in found if each.header] == [
        (0, 0),
        (5, 1),
        (6, 0),
        (9, 0),
    ]
    covered(found, len(data))
