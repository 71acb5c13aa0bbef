"""Files and directories of a disk in memory, each with the content of the page cache and of the platter.

A file's bytes are kept once, as the cache has them. The platter differs from the cache only in what was written since the last
fsync, so only this difference is kept: the platter's length, and the platter's content of overwritten sectors below it. An append
beyond that length remembers nothing, and an fsync copies nothing.

    cache      [aaaaaaaaaaaa|bbbb|aaaaaaaa|cccccc)      b: overwritten, c: appended since the last fsync
    platter    [aaaaaaaaaaaa|AAAA|aaaaaaaa)             A: kept in `undo`
                                   durable_size

A power cut (`lose`) makes one image of the two: each sector has its new or its old content, a sector that was never written has
zeros or garbage, and the length is any length between the two. A directory keeps the changes of its names since its last fsync
in a journal, of which a prefix survives a power cut.

A disk that lies needs a third image. After a failed fsync, or a write to a wrong sector, the kernel believes that a page is on
the platter although it is not. `lies` has the platter's content of such sectors. It shows when the cache drops the page (`evict`,
or a power cut), and is corrected when the page is written again.
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
    """A file's content in the cache and on the platter."""

    __slots__ = ("cache", "dirty", "durable_size", "guarded", "lies", "modified_ms", "previous", "shortest", "undo")

    def __init__(self, data: bytes | bytearray | memoryview = b"") -> None:
        self.cache = bytearray(data)
        """The bytes that a process reads."""
        self.durable_size = 0
        """The file's length on the platter."""
        self.shortest = 0
        """The smallest length since the last fsync, because a truncation may reach the platter without an fsync."""
        self.undo: dict[int, bytes] = {}
        """The platter's content of the sectors below `durable_size` that were written since the last fsync."""
        self.lies: dict[int, bytes] = {}
        """The platter's content of the sectors of which the kernel wrongly believes that they are written."""
        self.guarded = 0
        """A write that begins below this position must remember the platter's content first."""
        self.dirty = bool(data)
        """Whether an fsync has anything to do."""
        self.previous: dict[int, bytes] | None = None
        """The content of each sector before its last write; None unless stale reads may be simulated."""
        self.modified_ms: int | None = None
        """The time of the last change that a process has set. None if the file was changed since."""

    # -- writing --------------------------------------------------------------------------------------------------

    def replace_tail(self, position: int, data: bytes | bytearray | memoryview) -> None:
        """Replace everything from `position` on by `data`."""
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
        """Keep what is needed of the platter's content, before the cache changes in [start, end)."""
        self.dirty = True
        self.modified_ms = None
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
        """Keep the previous content of sectors from now on, so that stale reads can be simulated."""
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
        """Mark the dirty pages as clean without writing them, as the kernel does after a failed fsync."""
        self._drop(self._unsynced(len(self.cache)))
        self.dirty = False

    def misplace(self, start: int, end: int) -> None:
        """Let the bytes of [start, end) stay in the cache only: they will never reach their sectors of the platter."""
        self._drop(iter(sectors(start, end)))

    def plant(self, sector: int, contents: Sequence[bytes]) -> None:
        """Let a write that was meant for other sectors overwrite the platter from `sector` on, within the file."""
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
        """Drop the clean pages of the cache and read them again from the platter."""
        for sector, content in self.lies.items():
            _put(self.cache, sector, content, len(self.cache))
        self.lies.clear()
        self._guard()

    @property
    def durable(self) -> bytearray:
        """The file's content on the platter."""
        image = self.cache[: self.durable_size]
        image.extend(bytes(self.durable_size - len(image)))
        for kept in (self.undo, self.lies):
            for sector, content in kept.items():
                _put(image, sector, content, self.durable_size)
        return image

    def flip(self, bit: int) -> None:
        """Flip one bit on the platter, and in the cache, as if the sector had been read again."""
        position, mask = bit // 8, 1 << (bit % 8)
        self.cache[position] ^= mask
        for kept in (self.undo, self.lies):
            old = kept.get(position // SECTOR)
            if old is not None and position % SECTOR < len(old):
                kept[position // SECTOR] = _flipped(old, position % SECTOR, mask)

    def _unsynced(self, end: int) -> Iterator[int]:
        """The sectors below `end` in which cache and platter may differ because they were not fsynced, in order."""
        beyond = sectors(min(self.durable_size, self.shortest), end)
        return itertools.chain(sorted(sector for sector in self.undo if sector < beyond.start), beyond)

    def lose(self, random: Random) -> None:
        """Replace the content by one that may be left after a power cut."""
        if not self.dirty and not self.lies and self.durable_size == len(self.cache):
            return
        image = self.durable
        if self.shortest < len(image) and random.random() < 0.5:
            del image[self.shortest :]  # The truncation reached the platter, the later writes did not.
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
        """Write some of the unsynced sectors into `image`. Of the others, those beyond `written` may hold garbage."""
        size = len(image)
        survival, garbage = random.choice(_SURVIVAL), random.random() < 0.25
        last = random.randint(0, size // SECTOR) if random.random() < 0.3 else _EVERYWHERE  # Written in order, up to there.
        for sector in self._unsynced(size):
            if sector in self.lies:
                continue
            if sector < last if last != _EVERYWHERE else random.random() < survival:
                _put(image, sector, self._cached(sector, len(self.cache)), size)
            elif garbage and sector * SECTOR >= written:
                _put(image, sector, random.randbytes(SECTOR), size)


def _put(image: bytearray, sector: int, content: bytes, end: int) -> None:
    """Write `content`, padded with zeros, into the sector of the image, up to `end`."""
    start = sector * SECTOR
    room = min(SECTOR, end - start)
    if room > 0:
        image[start : start + room] = content[:room].ljust(room, b"\0")


def _flipped(data: bytes, position: int, mask: int) -> bytes:
    changed = bytearray(data)
    changed[position] ^= mask
    return bytes(changed)


class Directory:
    """A directory's names in the cache and on the platter."""

    __slots__ = ("durable", "entries", "journal")

    def __init__(self) -> None:
        self.entries: dict[str, Inode | Directory] = {}
        self.durable: dict[str, Inode | Directory] = {}
        self.journal: list[dict[str, Inode | Directory | None]] = []
        """The changes since the last fsync, in order. Each is atomic: a rename is one change of two names."""

    def change(self, names: dict[str, Inode | Directory | None]) -> None:
        _apply(self.entries, names)
        self.journal.append(names)

    def sync(self) -> None:
        self.durable = dict(self.entries)
        self.journal.clear()

    def lose(self, random: Random) -> None:
        """Replace the names, and everything below, by a state that may be left after a power cut."""
        survived = random.choice((0, len(self.journal), random.randint(0, len(self.journal))))
        for names in self.journal[:survived]:
            _apply(self.durable, names)
        self.journal.clear()
        self.entries = dict(self.durable)
        for _, node in sorted(self.entries.items()):
            node.lose(random)

    def sync_all(self) -> None:
        """Make the names in this directory and all directories below durable."""
        self.sync()
        for node in self.entries.values():
            if isinstance(node, Directory):
                node.sync_all()

    def files(self, path: str = "") -> Iterator[tuple[str, Inode]]:
        """Every file below this directory, with its path, in order of the names."""
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
