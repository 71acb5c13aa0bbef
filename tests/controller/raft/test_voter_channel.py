"""The connection of a controller to one other voter."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random

from strandline.controller.metadata.voters import Voter
from strandline.controller.raft.channel import VoterChannel
from strandline.controller.raft.config import RaftConfig
from strandline.protocol.apis import API_VERSIONS
from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.messages.admin import ApiVersionsRequest
from strandline.protocol.messages.common import Message
from strandline.protocol.security.client_security import ClientSecurity


async def test_each_request_gets_its_error_while_a_certificate_cannot_be_read(tmp_path: Path) -> None:
    """Otherwise the voter would never send to this peer again, although the file is complete a moment later."""
    security = ClientSecurity(security_protocol="SSL", ssl_cafile=str(tmp_path / "missing.pem"))
    config = RaftConfig(retry_backoff_ms=1, reconnect_backoff_ms_max=1)
    channel = VoterChannel(Voter(2, "127.0.0.1", 1), "controller-1", config, Random(1), security)
    answers: asyncio.Queue[Message | Exception] = asyncio.Queue()
    for _ in range(2):
        channel.send(API_VERSIONS, ApiVersionsRequest("test", "1"), answers.put_nowait)
        error = await asyncio.wait_for(answers.get(), 10)
        assert isinstance(error, BrokerError)
        assert error.code == ErrorCode.NETWORK_EXCEPTION
        assert "missing.pem" in str(error)
    await channel.close()
