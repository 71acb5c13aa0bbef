"""What a disk in memory holds: files and directories, each as the page cache has it and as the platter has it.

A file is kept once, as the cache has it. The platter differs from that only in what was written since the last fsync, so
only this difference is kept: the platter's length, and what the platter has in those sectors below it that were written
over. An append beyond that length has nothing to remember, and an fsync nothing to copy.

    cache      [aaaaaaaaaaaa|bbbb|aaaaaaaa|cccccc)      b: written over, c: appended since the last fsync
    platter    [aaaaaaaaaaaa|AAAA|aaaaaaaa)             A: kept in `undo`
                                   durable_size

A power cut (`lose`) makes an image out of both: of each sector the new or the old content, of a sector that was never
written zeros or whatever lay there before, and any length that the file has had in between. A directory keeps the
changes of its names since its last fsync in a journal, of which a power cut leaves a prefix.

A third image is needed for a disk that lies. After a failed fsync, or a write that landed elsewhere, the kernel takes a
page for written that is not: `lies` has what the platter holds there. It comes to light when the cache forgets the page
(`evict`, a power cut), and is mended when the page is written again.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from random import Random

SECTOR = 512
_EVERYWHERE = 1 << 62
_SURVIVAL = (0.0, 0.1, 0.5, 0.9, 1.0)


def sectors(start: int, end: int) -> range:
    """The numbers of the sectors that the bytes [start, end) touch."""
    return range(start // SECTOR, -(-end // SECTOR))


class Inode:
    __slots__ = ("cache", "dirty", "durable_size", "guarded", "lies", "previous", "shortest", "undo")

    def __init__(self, data: bytes | bytearray | memoryview = b"") -> None:
        self.cache = bytearray(data)
        """What a process reads."""
        self.durable_size = 0
        """The platter's length."""
        self.shortest = 0
        """The least length since the last fsync: a truncation may reach the platter by itself."""
        self.undo: dict[int, bytes] = {}
        """Sector -> the platter's content, of those below `durable_size` that were written since the last fsync."""
        self.lies: dict[int, bytes] = {}
        """Sector -> the platter's content where the kernel believes that it is the cache's."""
        self.guarded = 0
        """A write that begins below this has something to remember first."""
        self.dirty = bool(data)
        """Whether an fsync has anything to do."""
        self.previous: dict[int, bytes] | None = None
        """Sector -> what was read there before the last write; kept where reads may be stale."""

    # -- writing --------------------------------------------------------------------------------------------------

    def replace_tail(self, position: int, data: bytes | bytearray | memoryview) -> None:
        """The file ends with `data` at `position`; what it had there and behind is gone."""
        self._remember(position, max(len(self.cache), position + len(data)))
        if position < len(self.cache):
            del self.cache[position:]
            self.shortest = min(self.shortest, position)
        self.cache += data

    def overwrite(self, position: int, data: bytes | bytearray | memoryview) -> None:
        self._remember(position, position + len(data))
        self.cache.extend(bytes(max(0, position - len(self.cache))))
        self.cache[position : position + len(data)] = data

    def truncate(self, size: int) -> None:
        self._remember(size, len(self.cache))
        del self.cache[size:]
        self.cache.extend(bytes(size - len(self.cache)))
        self.shortest = min(self.shortest, size)

    def _remember(self, start: int, end: int) -> None:
        """The cache is about to change in [start, end)."""
        self.dirty = True
        if start >= self.guarded:
            return
        for sector in sectors(start, end):
            if self.previous is not None:
                self.previous[sector] = self._cached(sector, len(self.cache))
            lie = self.lies.pop(sector, None)
            if sector not in self.undo and sector * SECTOR < self.durable_size:
                self.undo[sector] = lie if lie is not None else self._cached(sector, self.durable_size)
        self._guard()

    def keep_previous(self) -> None:
        """From now on, so that a read can be answered with what is no longer true."""
        if self.previous is None:
            self.previous = {}
            self._guard()

    def _cached(self, sector: int, end: int) -> bytes:
        return bytes(self.cache[sector * SECTOR : min((sector + 1) * SECTOR, end)])

    def _guard(self) -> None:
        self.guarded = _EVERYWHERE if self.lies or self.previous is not None else self.durable_size

    # -- the platter ----------------------------------------------------------------------------------------------

    def sync(self) -> None:
        if self.dirty:
            self.durable_size = self.shortest = len(self.cache)
            self.undo.clear()
            self.dirty = False
            self._guard()

    def drop_dirty(self) -> None:
        """An fsync has failed, and the kernel takes the dirty pages for clean: what the platter has stays there."""
        self._drop(self._unsynced(len(self.cache)))
        self.dirty = False

    def misplace(self, start: int, end: int) -> None:
        """What was written to [start, end) is in the cache and will never reach its place on the platter."""
        self._drop(iter(sectors(start, end)))

    def plant(self, sector: int, contents: Sequence[bytes]) -> None:
        """A write that was meant for elsewhere lands here, as far as the file goes."""
        for number, content in enumerate(contents, sector):
            if number * SECTOR < len(self.cache):
                self.undo.pop(number, None)
                self.lies[number] = content
        self._guard()

    def _drop(self, numbers: Iterator[int]) -> None:
        for sector in numbers:
            old = self.undo.pop(sector, None)
            if sector not in self.lies:
                self.lies[sector] = old if old is not None else self._cached(sector, self.durable_size)
        self._guard()

    def evict(self) -> None:
        """The cache forgets its clean pages and reads them again."""
        for sector, content in self.lies.items():
            _put(self.cache, sector, content, len(self.cache))
        self.lies.clear()
        self._guard()

    @property
    def durable(self) -> bytearray:
        """What the platter has, as far as it was ever told to."""
        image = self.cache[: self.durable_size]
        image.extend(bytes(self.durable_size - len(image)))
        for kept in (self.undo, self.lies):
            for sector, content in kept.items():
                _put(image, sector, content, self.durable_size)
        return image

    def flip(self, bit: int) -> None:
        """The disk rots: one bit changes on the platter, and in the cache as if it had been read again."""
        position, mask = bit // 8, 1 << (bit % 8)
        self.cache[position] ^= mask
        for kept in (self.undo, self.lies):
            old = kept.get(position // SECTOR)
            if old is not None and position % SECTOR < len(old):
                kept[position // SECTOR] = _flipped(old, position % SECTOR, mask)

    def _unsynced(self, end: int) -> Iterator[int]:
        """The sectors below `end` in which cache and platter may differ without a lie, in order."""
        beyond = sectors(min(self.durable_size, self.shortest), end)
        return itertools.chain(sorted(sector for sector in self.undo if sector < beyond.start), beyond)

    def lose(self, random: Random) -> None:
        """The power goes."""
        if not self.dirty and not self.lies and self.durable_size == len(self.cache):
            return
        image = self.durable
        if self.shortest < len(image) and random.random() < 0.5:
            del image[self.shortest :]  # the truncation was on the platter, what came after it was not
        low, high = sorted((len(image), len(self.cache)))
        size = random.choice((low, high, random.randint(low, high)))
        written = len(image)
        del image[size:]
        image.extend(bytes(size - len(image)))
        self._survive(image, written, random)
        self.cache, self.dirty = image, True
        self.lies.clear()
        self.sync()

    def _survive(self, image: bytearray, written: int, random: Random) -> None:
        """Of the unsynced sectors some are on the platter; of the others, those beyond `written` hold nothing of ours."""
        size = len(image)
        survival, garbage = random.choice(_SURVIVAL), random.random() < 0.25
        last = random.randint(0, size // SECTOR) if random.random() < 0.3 else _EVERYWHERE  # in order, up to there
        for sector in self._unsynced(size):
            if sector in self.lies:
                continue
            if sector < last if last != _EVERYWHERE else random.random() < survival:
                _put(image, sector, self._cached(sector, len(self.cache)), size)
            elif garbage and sector * SECTOR >= written:
                _put(image, sector, random.randbytes(SECTOR), size)


def _put(image: bytearray, sector: int, content: bytes, end: int) -> None:
    """`content`, filled up with zeros, into the sector's place below `end`."""
    start = sector * SECTOR
    room = min(SECTOR, end - start)
    if room > 0:
        image[start : start + room] = content[:room].ljust(room, b"\0")


def _flipped(data: bytes, position: int, mask: int) -> bytes:
    changed = bytearray(data)
    changed[position] ^= mask
    return bytes(changed)


class Directory:
    __slots__ = ("durable", "entries", "journal")

    def __init__(self) -> None:
        self.entries: dict[str, Inode | Directory] = {}
        self.durable: dict[str, Inode | Directory] = {}
        self.journal: list[dict[str, Inode | Directory | None]] = []
        """Changes since the last fsync, in order; each is atomic (a rename is one change of two names)."""

    def change(self, names: dict[str, Inode | Directory | None]) -> None:
        _apply(self.entries, names)
        self.journal.append(names)

    def sync(self) -> None:
        self.durable = dict(self.entries)
        self.journal.clear()

    def lose(self, random: Random) -> None:
        survived = random.choice((0, len(self.journal), random.randint(0, len(self.journal))))
        for names in self.journal[:survived]:
            _apply(self.durable, names)
        self.journal.clear()
        self.entries = dict(self.durable)
        for _, node in sorted(self.entries.items()):
            node.lose(random)

    def sync_all(self) -> None:
        """The names of this and all below."""
        self.sync()
        for node in self.entries.values():
            if isinstance(node, Directory):
                node.sync_all()

    def files(self, path: str = "") -> Iterator[tuple[str, Inode]]:
        """Every file below, with its path, in order."""
        for name, node in sorted(self.entries.items()):
            if isinstance(node, Directory):
                yield from node.files(f"{path}/{name}")
            else:
                yield f"{path}/{name}", node


def _apply(entries: dict[str, Inode | Directory], names: dict[str, Inode | Directory | None]) -> None:
    for name, node in names.items():
        if node is None:
            entries.pop(name, None)
        else:
            entries[name] = node
