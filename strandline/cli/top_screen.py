"""The screen of `strandline top`, by textual: a line about the cluster, and a table for each of brokers, topics, partitions,
groups.

It only shows what `top_rates.py` has calculated. A sample that fails leaves the tables as they are, and says so.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import ClassVar, Literal

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import BindingType
from textual.widgets import DataTable, Footer, Static, TabbedContent, TabPane

from strandline.cli.amounts import show_bytes, show_time
from strandline.cli.top_rates import Overview, Sample, overview
from strandline.protocol.errors import StrandlineError

TakeSample = Callable[[], Awaitable[Sample]]

COLUMNS: dict[str, tuple[str, ...]] = {
    "brokers": ("broker", "state", "leaders", "replicas", "behind", "records/s", "bytes/s", "size", "address"),
    "topics": ("topic", "parts", "replicas", "under-repl.", "offline", "records/s", "bytes/s", "size"),
    "partitions": ("partition", "state", "leader", "replicas", "isr", "records/s", "bytes/s", "end", "size", "epoch"),
    "groups": ("group", "state", "members", "lag", "lag/s", "time to clear"),
}
TEXTS = {"broker", "topic", "partition", "group", "state", "isr", "address", "time to clear"}
"""The columns that are not numbers."""
GOOD = {"ok", "Stable", "Empty", "reassigning", "draining"}
PARTITIONS_MAX = 500
"""The table of partitions has at most this many rows; those with a problem come first."""


class Top(App[None]):
    """The full-screen view. `take`: takes a sample; raises StrandlineError."""

    TITLE = "strandline top"
    ENABLE_COMMAND_PALETTE = False
    CSS = """
    Screen { overflow: hidden; }
    #summary { height: 2; padding: 0 1; }
    TabbedContent { height: 1fr; }
    #error { height: auto; padding: 0 1; color: $text-error; display: none; }
    #error.shown { display: block; }
    TabPane { padding: 0; }
    DataTable { height: 1fr; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        ("q,ctrl+c", "quit", "Quit"),
        ("b", "tab('brokers')", "Brokers"),
        ("t", "tab('topics')", "Topics"),
        ("p", "tab('partitions')", "Partitions"),
        ("g", "tab('groups')", "Groups"),
        ("space", "pause", "Pause"),
    ]

    def __init__(self, take: TakeSample, interval_s: float) -> None:
        super().__init__()
        self._take = take
        self._interval_s = interval_s
        self._before: Sample | None = None
        self._paused = False
        self.latest: Overview | None = None
        """The tables that are shown; None before the first sample."""

    def compose(self) -> ComposeResult:
        yield Static("connecting ...", id="summary")
        yield Static("", id="error")
        with TabbedContent(initial="brokers"):
            for name in COLUMNS:
                with TabPane(name.capitalize(), id=name):
                    yield DataTable(id=f"{name}-table", cursor_type="row", zebra_stripes=True)
        yield Footer()

    def on_mount(self) -> None:
        for name, columns in COLUMNS.items():
            self._table(name).add_columns(*(Text(column, justify=_side(column)) for column in columns))
        self._table("brokers").focus()
        self.set_interval(self._interval_s, self._start_sample)
        self._start_sample()

    def action_tab(self, name: str) -> None:
        self.query_one(TabbedContent).active = name
        self._table(name).focus()

    def action_pause(self) -> None:
        self._paused = not self._paused
        self._summarise()

    def _start_sample(self) -> None:
        """Take a sample, unless one is being taken."""
        if not self._paused and not any(not worker.is_finished for worker in self.workers):
            self.run_worker(self.refresh_sample(), exit_on_error=True)

    async def refresh_sample(self) -> None:
        """Take a sample and show it."""
        error = self.query_one("#error", Static)
        try:
            sample = await self._take()
        except StrandlineError as e:
            error.update(f"the cluster does not answer: {e}")
            error.add_class("shown")
            return
        error.remove_class("shown")
        self.latest = overview(self._before, sample)
        self._before = sample
        self._show(self.latest)

    def _show(self, found: Overview) -> None:
        self._summarise()
        self._fill(
            "brokers",
            [
                (b.broker_id, b.state, b.leaders, b.replicas, b.out_of_sync, _rate(b.records_per_s), _size(b.bytes_per_s),
                 _size(b.size_bytes), b.address)
                for b in found.brokers
            ],
        )  # fmt: skip
        self._fill(
            "topics",
            [
                (t.topic, t.partitions, t.replicas, t.under_replicated, t.offline, _rate(t.records_per_s), _size(t.bytes_per_s),
                 _size(t.size_bytes))
                for t in found.topics
            ],
        )  # fmt: skip
        self._fill(
            "partitions",
            [
                (f"{p.topic}-{p.partition}", p.state, p.leader if p.leader >= 0 else "none", _ids(p.replicas), _ids(p.isr),
                 _rate(p.records_per_s), _size(p.bytes_per_s), p.end_offset, _size(p.size_bytes), p.leader_epoch)
                for p in found.partitions[:PARTITIONS_MAX]
            ],
        )  # fmt: skip
        self._fill(
            "groups",
            [(g.group_id, g.state, g.members, g.lag, _signed(g.lag_per_s), _clear(g.clear_s)) for g in found.groups],
        )

    def _summarise(self) -> None:
        found = self.latest
        if found is None:
            return
        controller = found.controller_id if found.controller_id >= 0 else "none"
        first = f"cluster {found.cluster_id}   controller {controller}   brokers {found.brokers_ok} of {len(found.brokers)}"
        trouble = Text(f"under-replicated {found.under_replicated}   offline {found.offline}")
        trouble.stylize("bold red" if found.under_replicated or found.offline else "green")
        rates = (
            f"{_rate(found.records_per_s)} records/s   {_size(found.bytes_per_s)}/s" if found.records_per_s is not None else ""
        )
        second = Text.assemble(f"partitions {sum(t.partitions for t in found.topics)}   ", trouble, f"   {rates}")
        self.query_one("#summary", Static).update(Text.assemble(first, "   PAUSED" if self._paused else "", "\n", second))

    def _table(self, name: str) -> DataTable[Text]:
        return self.query_one(f"#{name}-table", DataTable)

    def _fill(self, name: str, rows: Sequence[Sequence[object]]) -> None:
        """Replace the rows, and keep the cursor where it is."""
        table = self._table(name)
        row = table.cursor_row
        table.clear()
        for values in rows:
            table.add_row(*(_cell(column, value) for column, value in zip(COLUMNS[name], values, strict=True)))
        table.move_cursor(row=min(row, len(rows) - 1) if rows else 0)


def _side(column: str) -> Literal["left", "right"]:
    return "left" if column in TEXTS else "right"


def _cell(column: str, value: object) -> Text:
    text = Text("" if value is None else str(value), justify=_side(column))
    if column == "state":
        text.stylize("green" if value in GOOD else "bold red")
    elif column in ("under-repl.", "offline", "behind") and value:
        text.stylize("bold red")
    return text


def _ids(ids: Sequence[int]) -> str:
    return ",".join(map(str, ids))


def _rate(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if value >= 10 or value == 0 else f"{value:.1f}"


def _signed(value: float | None) -> str:
    return "" if value is None else f"{value:+,.0f}"


def _size(value: float | None) -> str:
    return "" if value is None else show_bytes(value)


def _clear(seconds: float | None) -> str:
    if seconds is None:
        return ""
    return "nothing left" if seconds == 0 else show_time(seconds)
