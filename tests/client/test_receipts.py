"""A receipt is not tracked by the garbage collector, so nothing that it refers to may refer back to its holder."""

from __future__ import annotations

import asyncio
import gc
import weakref

import pytest

from strandline.client.errors import DeliveryTimeout, UnknownTopic
from strandline.client.producer.batch import Batch
from strandline.client.producer.parking import Failure
from strandline.client.producer.receipts import BatchMetadata, Receipt, Receipts, RecordMetadata, Resolvable


class Marker:
    """An object that the waiting application refers to."""


def failed_batch() -> Batch:
    batch = Batch("t", 3, 0, 0, 0.0, 0.0, 0)
    batch.values = [b"one", b"two"]
    batch.fail(DeliveryTimeout("too late", topic="t", partition=3, attempts=2))
    return batch


def never_sent() -> Failure:
    return Failure(UnknownTopic("no such topic", topic="t"))


@pytest.mark.parametrize("make", [failed_batch, never_sent])
def test_failed_record_does_not_keep_its_waiter(make: type[Resolvable]) -> None:
    """An error that is raised refers to the frames that it passed through, and so to the receipt in them. If each failed batch
    kept its error, then the batch, the frames and all that the application holds in them would never be freed."""

    async def application() -> weakref.ref[Marker]:
        receipt, held = Receipt(make(), 1), Marker()  # type: ignore[call-arg]
        with pytest.raises((DeliveryTimeout, UnknownTopic)):
            await receipt
        return weakref.ref(held)

    held = asyncio.run(application())
    gc.collect()
    assert held() is None


@pytest.mark.parametrize("make", [failed_batch, never_sent])
def test_records_of_a_failed_batch_raise_the_same_error(make: type[Resolvable]) -> None:
    batch = make()
    errors = []
    for index in range(2):
        with pytest.raises((DeliveryTimeout, UnknownTopic)) as raised:
            Receipt(batch, index).result()  # type: ignore[call-arg]
        errors.append(raised.value)
    assert type(errors[0]) is type(errors[1])
    assert str(errors[0]) == str(errors[1])
    assert vars(errors[0]) == vars(errors[1])
    assert errors[0].topic == "t"


async def test_asyncio_wait_rejects_a_receipt() -> None:
    """`asyncio.wait` expects futures. A receipt is not one, and used to fail there with an AttributeError about a private
    name."""
    receipt, receipts = Receipt(failed_batch(), 1), Receipts()  # type: ignore[call-arg, arg-type]
    receipts.add_run(receipt, 2)
    for handed in ([receipt], [receipts], receipts):
        with pytest.raises(
            TypeError, match=r"a receipt is awaitable, but no future: .*asyncio\.gather\(\*receipts\).*ensure_future"
        ):
            await asyncio.wait(handed)  # type: ignore[type-var, call-overload]


async def test_advice_for_receipts_works() -> None:
    receipt = Receipt(failed_batch(), 1)  # type: ignore[call-arg, arg-type]
    assert [type(e) for e in await asyncio.gather(receipt, return_exceptions=True)] == [DeliveryTimeout]
    done, _ = await asyncio.wait({asyncio.ensure_future(receipt)})
    assert [type(future.exception()) for future in done] == [DeliveryTimeout]


def test_metadata_has_aiokafkas_name_of_the_timestamp() -> None:
    assert RecordMetadata("orders", 0, 7, 1234).timestamp == 1234
    assert BatchMetadata("orders", 0, 7, 2, 1234).timestamp == 1234
