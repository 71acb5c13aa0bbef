"""The controller's APIs: each request becomes a decision, and the decision's reply becomes the response.

A request to elect the preferred leaders of very many partitions becomes several decisions, one after the other, because
heartbeats must not wait for all of them.

A controller that is not active answers each of these requests with NOT_CONTROLLER, and names the active one if it knows it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from strandline.controller.cluster_control import heartbeat, register_broker, unregister_broker
from strandline.controller.config_control import describe_configs, incremental_alter_configs
from strandline.controller.controller import ActiveState, Controller
from strandline.controller.decision import Decision
from strandline.controller.directory_control import assign_replicas_to_dirs
from strandline.controller.leader_balance import ELECTIONS_MAX
from strandline.controller.metadata.cluster_describe import describe_brokers
from strandline.controller.metadata.group_configs import NODE_DEFAULTS
from strandline.controller.metadata.security.budgets import StrictWindow
from strandline.controller.producer_id_control import allocate_producer_ids, init_named_producer
from strandline.controller.reassignment_control import (
    alter_partition_reassignments,
    complete_after_configs,
    list_partition_reassignments,
)
from strandline.controller.replication_control import (
    alter_partition,
    asked_partitions,
    drop_elrs_after_configs,
    elect_leaders,
)
from strandline.controller.security.mutation_quota import Charge, MutationQuota
from strandline.controller.topic_control import TopicControl, delete_topics
from strandline.protocol import apis
from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.messages.admin import (
    DescribeClusterRequest,
    DescribeClusterResponse,
    ElectLeadersResponse,
    ElectLeadersResult,
)
from strandline.protocol.messages.common import Message

Decide = Callable[[ActiveState, Any], Decision[Any]]
DecideAtCost = Callable[[ActiveState, Any, Charge], Decision[Any]]
"""A decision that a quota limits (`security/mutation_quota.py`)."""


class Request(Protocol):
    """The part of ServerRequest (`protocol/rpc/server.py`) that this module uses."""

    @property
    def body(self) -> Any: ...

    def reply(self, body: Message) -> None: ...

    def refuse(self, code: ErrorCode, message: str | None = None) -> None: ...


class ControllerApis:
    """The requests that only the active controller answers."""

    def __init__(
        self,
        controller: Controller,
        topics: TopicControl,
        cluster_id: str,
        wall_clock_ms: Callable[[], int],
        call_soon: Callable[[Callable[[], None]], object],
        more: Mapping[int, Decide] | None = None,
        mutation_window: StrictWindow = StrictWindow(),  # noqa: B008 - frozen
        node_values: Mapping[str, Any] = NODE_DEFAULTS,
    ) -> None:
        """`call_soon`: calls a function in the next turn of the event loop, after the requests that have arrived. `more`:
        decisions about other APIs (`security/decisions.py`). `mutation_window`: the window of `controller_mutation_rate`.
        `node_values`: the values of the controller's own keys."""
        self._controller = controller
        self._call_soon = call_soon
        self._topics = topics
        self._cluster_id = cluster_id
        self._wall_clock_ms = wall_clock_ms
        self._more = more or {}
        self._node_values = node_values
        self.mutations = MutationQuota(mutation_window, controller.now)

    def handlers(self) -> Mapping[int, Callable[[Request], None]]:
        """The handler of each API. It decides at once, and replies when the records of the decision are committed; the error of a
        decision becomes the reply."""
        c, topics = self._controller, self._topics
        decisions: dict[int, Decide] = {
            apis.BROKER_REGISTRATION: self._register_broker,
            apis.BROKER_HEARTBEAT: self._heartbeat,
            apis.ALTER_PARTITION: lambda active, body: alter_partition(c.image, body),
            apis.ASSIGN_REPLICAS_TO_DIRS: lambda active, body: assign_replicas_to_dirs(c.image, body),
            apis.ALLOCATE_PRODUCER_IDS: lambda active, body: allocate_producer_ids(c.image, body),
            apis.INIT_NAMED_PRODUCER: lambda active, body: init_named_producer(c.image, body, self._wall_clock_ms()),
            apis.INCREMENTAL_ALTER_CONFIGS: self._alter_configs,
            apis.DESCRIBE_CONFIGS: lambda active, body: Decision(describe_configs(c.image, body)),
            apis.ALTER_PARTITION_REASSIGNMENTS: lambda active, body: alter_partition_reassignments(c.image, body),
            apis.LIST_PARTITION_REASSIGNMENTS: lambda active, body: Decision(
                list_partition_reassignments(c.image, active.index, body)
            ),
            apis.UNREGISTER_BROKER: lambda active, body: unregister_broker(
                c.image, active.index, active.sessions, body, now=c.now()
            ),
            apis.DESCRIBE_CLUSTER: lambda active, body: Decision(self._describe_cluster(body)),
            **self._more,
        }
        limited: dict[int, DecideAtCost] = {
            apis.CREATE_TOPICS: lambda active, body, charge: topics.create_topics(c.image, active.index, body, charge),
            apis.DELETE_TOPICS: lambda active, body, charge: delete_topics(c.image, body, charge),
            apis.CREATE_PARTITIONS: lambda active, body, charge: topics.create_partitions(c.image, body, charge),
        }
        by_api = {
            apis.ELECT_LEADERS: self._elect_preferred,
            **{key: self._handler(decide) for key, decide in decisions.items()},
            **{key: self._limited_handler(decide) for key, decide in limited.items()},
        }
        if apis.ALTER_CLIENT_QUOTAS in by_api:
            by_api[apis.ALTER_CLIENT_QUOTAS] = self._followed_by_quotas(by_api[apis.ALTER_CLIENT_QUOTAS])
        return by_api

    def _followed_by_quotas(self, alter_quotas: Callable[[Request], None]) -> Callable[[Request], None]:
        """The handler that changes quotas. The new quotas count from then on, not only from the next request that they limit."""

        def handle(request: Request) -> None:
            alter_quotas(request)
            self.mutations.use(self._controller.image.client_quotas)

        return handle

    def _handler(self, decide: Decide) -> Callable[[Request], None]:
        def handle(request: Request) -> None:
            def on_reply(reply: Message | BrokerError) -> None:
                if isinstance(reply, BrokerError):
                    request.refuse(reply.code, reply.message)
                else:
                    request.reply(reply)

            self._controller.submit(lambda active: decide(active, request.body), on_reply)

        return handle

    def _limited_handler(self, decide: DecideAtCost) -> Callable[[Request], None]:
        """The handler of requests that cost a client a part of its quota."""

        def handle(request: Request) -> None:
            def decide_at_cost(active: ActiveState, body: Any) -> Decision[Any]:
                charge = self.mutations.charge_of(request, self._controller.image.client_quotas)
                decision = decide(active, body, charge)
                self.mutations.on_reply(charge, decision.reply)
                return decision

            self._handler(decide_at_cost)(request)

        return handle

    def _elect_preferred(self, request: Request) -> None:
        c, response = self._controller, ElectLeadersResponse(0, [])
        asked = asked_partitions(c.image, request.body)

        def elect_next() -> None:
            part = asked[:ELECTIONS_MAX]
            del asked[:ELECTIONS_MAX]
            is_for_all = request.body.partitions is None
            c.submit(lambda active: elect_leaders(c.image, part, leave_out_needless=is_for_all), on_reply)

        def on_reply(reply: list[ElectLeadersResult] | BrokerError) -> None:
            if isinstance(reply, BrokerError):
                request.refuse(reply.code, reply.message)
                return
            response.results += reply
            if asked:
                self._call_soon(elect_next)
            else:
                request.reply(response)

        elect_next()

    def _register_broker(self, active: ActiveState, body: Any) -> Decision[Any]:
        c = self._controller
        return register_broker(
            c.image,
            active.index,
            active.sessions,
            body,
            cluster_id=self._cluster_id,
            next_offset=active.next_offset,
            now=c.now(),
        )

    def _heartbeat(self, active: ActiveState, body: Any) -> Decision[Any]:
        c = self._controller
        return heartbeat(c.image, active.index, active.sessions, body, committed_offset=c.committed_offset, now=c.now())

    def _alter_configs(self, active: ActiveState, body: Any) -> Decision[Any]:
        image = self._controller.image
        decision = incremental_alter_configs(image, body, self._node_values)
        completed = complete_after_configs(image, active.index, decision.records)
        decision.records += completed
        dropped = drop_elrs_after_configs(image, active.index, decision.records)
        decision.records += dropped
        if completed or dropped:
            decision.cause = "min_isr_lowered"
        return decision

    def _describe_cluster(self, body: DescribeClusterRequest) -> DescribeClusterResponse:
        image = self._controller.image
        by_id = (broker for _, broker in sorted(image.brokers.items()))
        brokers = describe_brokers(image, by_id, None, include_fenced=body.include_fenced_brokers)
        return DescribeClusterResponse(0, None, self._cluster_id, self._controller.node_id, brokers)
