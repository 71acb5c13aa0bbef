"""Faults that strike transactions: messages to, from and between coordinators and leaders that are late or lost, and coordinators
that move."""

from __future__ import annotations

from random import Random

from strandline.controller.metadata.internal_topics import TRANSACTION_STATE_TOPIC
from strandline.protocol import apis
from strandline.testing.simulation.nemesis.engine import Effect, Nemesis, kind
from strandline.testing.simulation.nemesis.groups import coordinator_moves, message_held, message_lost
from strandline.testing.simulation.options import FaultPlan

MESSAGES = (
    *[apis.END_TXN] * 4,
    *[apis.WRITE_TXN_MARKERS] * 4,
    *[apis.ADD_PARTITIONS_TO_TXN] * 3,
    *[apis.INIT_PRODUCER_ID] * 2,
    *[apis.PRODUCE] * 2,
)
"""The API keys of the messages that are held or lost; one that is listed more often is drawn more often."""


@kind("transaction_message_held")
def _message_held(nemesis: Nemesis, fault: FaultPlan, draw: Random) -> Effect | None:
    """A message arrives late, and so does everything behind it on its connection."""
    return message_held(nemesis, draw, MESSAGES)


@kind("transaction_message_lost")
def _message_lost(nemesis: Nemesis, fault: FaultPlan, draw: Random) -> Effect | None:
    """The connection breaks when it delivers the message."""
    return message_lost(nemesis, draw, MESSAGES)


@kind("transaction_coordinator_moves")
def _coordinator_moves(nemesis: Nemesis, fault: FaultPlan, draw: Random) -> Effect | None:
    """Another broker becomes the coordinator of transactions, while a message to or from the old one is held back."""
    return coordinator_moves(nemesis, fault, draw, TRANSACTION_STATE_TOPIC, MESSAGES)
