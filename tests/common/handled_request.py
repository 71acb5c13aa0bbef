"""A request that a test hands to a handler by itself, without a server: it records how the handler answers it.

It stands in for `ServerRequest` (`protocol/rpc/server_connection.py`), its connection for `ServerConnection`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.security.principal import ANONYMOUS


class HandledConnection:
    """Records whether a handler closes the connection or holds it, and which complaints it logs about it."""

    peer = "test"
    closed_by_peer = True

    def __init__(self, id: int = 1, listener_name: str = "PLAINTEXT") -> None:
        self.id, self.listener_name = id, listener_name
        self.tag: Any = None
        self.closed = False
        self._holds = 0
        self.complaints: list[str] = []

    def on_malformed(self, reason: str, client_id: str | None) -> None:
        self.complaints.append(reason)

    def close_because(self, reason: str, client_id: str | None) -> None:
        self.complaints.append(reason)
        self.close()

    def close(self) -> None:
        self.closed = True

    def mute(self, duration_s: float) -> None:
        """Nothing arrives on this connection anyway."""

    @property
    def held(self) -> bool:
        return self._holds > 0

    def hold(self) -> None:
        self._holds += 1

    def release(self) -> None:
        assert self.held, "released without being held"
        self._holds -= 1


class HandledRequest:
    """Fails the test if it is answered twice."""

    client_id = "test"
    is_open = True
    principal = ANONYMOUS
    client_host = "127.0.0.1"
    ownership: Any = None

    def __init__(
        self,
        body: Any,
        *,
        api_key: int = -1,
        api_version: int = 0,
        connection: HandledConnection | None = None,
        received_at: float = 0.0,
    ) -> None:
        self.body, self.api_key, self.api_version, self.received_at = body, api_key, api_version, received_at
        self.connection = connection or HandledConnection()
        self.answers: list[Any] = []
        """The response; None if the handler sends none, a BrokerError if it refuses the request. Empty until it answers."""
        self.records: Sequence[Sequence[Any]] = ()

    def reply(self, body: Any, records: Any = None) -> None:
        self._answer(body)
        self.records = records or ()

    def refuse(self, code: ErrorCode, message: str | None = None) -> None:
        self._answer(BrokerError(code, message))

    def no_reply(self) -> None:
        self._answer(None)

    def _answer(self, answer: Any) -> None:
        assert not self.answers, "answered twice"
        self.answers.append(answer)

    @property
    def is_answered(self) -> bool:
        return bool(self.answers)

    @property
    def answer(self) -> Any:
        assert self.answers, "not answered yet"
        return self.answers[0]
