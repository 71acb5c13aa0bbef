"""Which fetcher copies which partition."""

from __future__ import annotations

import asyncio
from typing import Any

from strandline.broker.replication.fetcher import FetcherSettings
from strandline.broker.replication.fetcher_manager import FetcherManager, fetcher_id


class Partition:
    def __init__(self, index: int, topic: str = "orders") -> None:
        self.topic, self.key = topic, (b"t" * 16, index)


def manager(fetchers_per_leader: int = 1) -> FetcherManager:
    return FetcherManager(
        broker_id=1,
        broker_epoch=lambda: 5,
        fetchers_per_leader=fetchers_per_leader,
        settings=FetcherSettings(),
        address_of=lambda broker_id: None,
        on_progress=lambda keys: None,
        on_disk_error=lambda error: None,
    )


def add(fetchers: FetcherManager, index: int, leader: int) -> None:
    partition: Any = Partition(index)
    fetchers.add(partition, leader)


def sizes(fetchers: FetcherManager) -> dict[tuple[int, int], int]:
    return {key: len(fetcher.core) for key, fetcher in fetchers._fetchers.items()}


def test_the_fetcher_of_a_partition_is_the_same_in_every_process() -> None:
    """Python's own hash of a string differs from process to process."""
    assert [fetcher_id("orders", p, 4) for p in range(6)] == [2, 3, 0, 1, 2, 3]
    assert fetcher_id("payments", 0, 1000) == 286


async def test_partitions_of_one_leader_share_a_fetcher_and_others_have_their_own() -> None:
    fetchers = manager()
    for index, leader in enumerate([2, 2, 3]):
        add(fetchers, index, leader)
    assert sizes(fetchers) == {(2, 0): 2, (3, 0): 1}
    fetchers.close()


async def test_several_fetchers_spread_the_partitions_of_a_leader() -> None:
    fetchers = manager(fetchers_per_leader=2)
    for index in range(10):
        add(fetchers, index, 2)
    assert sizes(fetchers) == {(2, 0): 5, (2, 1): 5}
    fetchers.close()


async def test_a_partition_moves_to_its_new_leaders_fetcher() -> None:
    fetchers = manager()
    add(fetchers, 0, 2)
    add(fetchers, 0, 3)
    await asyncio.sleep(0)
    assert sizes(fetchers) == {(3, 0): 1}
    fetchers.remove((b"t" * 16, 0))
    fetchers.remove((b"t" * 16, 0))
    await asyncio.sleep(0)
    assert sizes(fetchers) == {}
    fetchers.close()


async def test_a_new_epoch_of_the_same_leader_keeps_the_fetcher() -> None:
    fetchers = manager()
    add(fetchers, 0, 2)
    before = fetchers._fetchers[2, 0]
    fetchers.remove((b"t" * 16, 0))
    add(fetchers, 0, 2)
    await asyncio.sleep(0)
    assert fetchers._fetchers[2, 0] is before
    fetchers.close()


async def test_more_or_fewer_fetchers_take_effect_at_once() -> None:
    """Only partitions that change their fetcher start over, and no fetcher is left without partitions."""
    fetchers = manager()
    for index in range(10):
        add(fetchers, index, 2)
    add(fetchers, 10, 3)
    before = {key: fetchers._fetcher_of[key].core._entries[key] for key in fetchers._fetcher_of}
    fetchers.resize(2)
    assert sizes(fetchers) == {(2, 0): 5, (2, 1): 5, (3, 0): 1}
    same = [key for key in before if fetchers._fetcher_of[key].core._entries[key] is before[key]]
    assert len(same) == 6
    fetchers.resize(1)
    await asyncio.sleep(0)
    assert sizes(fetchers) == {(2, 0): 10, (3, 0): 1}
    fetchers.close()


async def test_partition_that_was_given_up_is_not_fetched_again_by_a_resize() -> None:
    """Its leader epoch has ended, or its disk has failed, so only new metadata starts the fetching again."""
    fetchers = manager()
    for index in range(2):
        add(fetchers, index, 2)
    fetchers._fetchers[2, 0].core.remove((b"t" * 16, 1))
    fetchers.resize(2)
    await asyncio.sleep(0)
    assert sum(sizes(fetchers).values()) == 1
    assert fetchers.given_up == 1
    fetchers.close()


async def test_a_closed_manager_starts_no_fetcher_any_more() -> None:
    """A stopping broker applies metadata until its connections are closed. A fetcher that was created then used to outlive it."""
    fetchers = manager()
    fetchers.close()
    add(fetchers, 0, 2)
    assert sizes(fetchers) == {}
