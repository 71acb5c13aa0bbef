"""The picture of a run, as a reader of the file sees it: in a real Chromium, with mouse and keyboard.

Skipped where there is no Chromium; STRANDLINE_REQUIRE_CHROMIUM=1 (the build machine) makes that a failure.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from chromium import Page, find_chromium, new_page, running_chromium
from handwritten_traces import ORDERS, HandwrittenTrace, busy, kip_101, kip_279

from strandline.testing.simulation.kernel.trace import Trace
from strandline.testing.simulation.story.timeline import EVENTS_MAX, render


@dataclass
class Violated:
    invariant: str = "I6"
    text: str = "broker 2 truncated <orders-0> to 1 & offset 1 is committed"
    partition: str = ORDERS
    node: int = 2


def data_of(page: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    data: dict[str, Any] = json.loads(found[1])
    return data


def lanes(trace: Trace, partition: int = 0) -> dict[int, dict[str, Any]]:
    return {lane["node"]: lane for lane in data_of(render(trace, "A run"))["partitions"][partition]["lanes"]}


# -- what the page is made of


class Links(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [value or "" for name, value in attrs if name in ("src", "href", "action", "data", "poster", "srcset")]


def test_the_file_refers_to_nothing_outside_of_it() -> None:
    """It is mailed, attached to issues, and opened years later."""
    page = render(kip_279(), "S03")
    links = Links()
    links.feed(page)
    assert links.found == ["data:,"]
    assert not re.search(r"@import|url\((?!#)|https?://(?!www\.w3\.org)", page)


def test_a_log_that_contains_markup_stays_text() -> None:
    """Values of records come from users."""
    written = HandwrittenTrace()
    written.appends(1, 0, 0, 1)
    written.emit("client.acked", 201, ORDERS, offset=0, value="</script><script>alert(1)</script>@@data@@")
    page = render(written.trace, "<b>A title</b>", about={"why": "<i>"})
    assert "<script>alert" not in page
    assert "<b>A title" not in page
    assert (
        data_of(page)["events"][1][5]
        == 'client 201 gets the acknowledgement of "</script><script>alert(1)</script>@@data@@" at offset 0 of orders-0'
    )


def test_a_lane_is_a_stack_of_epochs() -> None:
    areas = lanes(kip_279())[3]["areas"]
    assert [(area["epoch"], area["points"][-1][1:]) for area in areas] == [(1, [0, 12]), (3, [12, 13])]


def test_a_fork_shows_the_epoch_that_was_cut_away() -> None:
    areas = {area["epoch"]: area["points"] for area in lanes(kip_279())[2]["areas"] if area["points"][0][0] > 8}
    (_, base, end), (_, left, right) = areas[2]
    assert ((base, end), (left, right)) == ((10, 12), (10, 10))


def test_a_crash_ends_every_line_of_the_lane() -> None:
    lane = lanes(busy())[1]
    crashed = next(event for event in busy().events() if event.kind == "node.crashed").time
    assert [crashed, None] in lane["leo"]
    assert [crashed, None] in lane["hw"]
    assert all(area["points"][-1][0] <= crashed for area in lane["areas"] if area["points"][0][0] < crashed)


def test_picture_shows_the_isr_of_the_controller() -> None:
    lane = lanes(kip_279())[1]
    assert [(round(start, 1), round(end, 1)) for start, end in lane["isr"]] == [(0.0, 5.0), (8.0, 8.0)]


def test_replica_without_a_reported_hw_has_none() -> None:
    """After a restart the high watermark is unknown until the leader sends it; a line at zero would be wrong."""
    written = HandwrittenTrace()
    written.appends(1, 0, 3, 1)
    written.hw(2, 1)
    written.emit("node.crashed", 1, lossy=False)
    written.starts(1)
    written.emit("log.recovered", 1, ORDERS, end=4)
    assert [value for _, value in lanes(written.trace)[1]["hw"]] == [None, 2, None]


def test_too_many_events_leave_out_the_ordinary_ones() -> None:
    written = HandwrittenTrace()
    written.emit("node.crashed", 9, lossy=False)
    for offset in range(EVENTS_MAX + 500):
        written.appends(1, offset, offset, 1)
    data = data_of(render(written.trace, "Long"))
    assert (len(data["events"]), data["left_out"]) == (EVENTS_MAX, 501)
    assert data["events"][0][1] == "node.crashed"


def test_empty_run_has_a_page() -> None:
    assert data_of(render(HandwrittenTrace().trace, "Nothing"))["partitions"] == []


# -- what is seen


@pytest.fixture(scope="module")
def devtools(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    program = find_chromium()
    if program is None:
        if os.environ.get("STRANDLINE_REQUIRE_CHROMIUM") == "1":
            pytest.fail("there is no Chromium, and STRANDLINE_REQUIRE_CHROMIUM=1")
        pytest.skip("there is no Chromium")
    with running_chromium(program, tmp_path_factory.mktemp("chromium")) as address:
        yield address


@pytest_asyncio.fixture
async def page(devtools: str) -> AsyncIterator[Page]:
    """A page for one test. After the test the console must be empty, and only the file may have been requested."""
    async with new_page(devtools) as page:
        yield page
        assert page.console == []
        assert [url for url in page.requests if not url.startswith("file://")] == []
        assert len(page.requests) <= 1


async def opened(page: Page, tmp_path: Path, trace: Trace, *, violation: Violated | None = None, **how: Any) -> Page:
    file = tmp_path / "run.html"
    file.write_text(render(trace, "S03: a fork", about={"seed": 42}, violation=violation), encoding="utf-8")
    await page.open(file, **how)
    return page


async def box(page: Page, selector: str) -> dict[str, float]:
    found: dict[str, float] = await page.run(f"document.querySelector({json.dumps(selector)}).getBoundingClientRect().toJSON()")
    return found


async def texts(page: Page, selector: str) -> list[str]:
    found: list[str] = await page.run(f"[...document.querySelectorAll({json.dumps(selector)})].map((e) => e.textContent)")
    return found


async def test_each_replica_is_a_lane_with_the_colours_of_its_epochs(page: Page, tmp_path: Path) -> None:
    await opened(page, tmp_path, kip_279())
    assert await texts(page, ".lane > text.bold") == ["broker 1", "broker 2", "broker 3"]
    areas = "[...document.querySelectorAll('.lane[data-node=\"3\"] .committed .area')]"
    fills = await page.run(f"{areas}.map((e) => [e.dataset.epoch, getComputedStyle(e).fill])")
    assert [epoch for epoch, _ in fills] == ["1", "3"]
    assert len({fill for _, fill in fills}) == 2


async def test_a_crash_is_a_gap_in_the_lane(page: Page, tmp_path: Path) -> None:
    """This holds for the pixels, too: no part of the lane's log is drawn while no client could have read it."""
    await opened(page, tmp_path, busy())
    gap = await box(page, '.lane[data-node="1"] .gap')
    assert gap["width"] > 100
    shapes = await page.run(
        "[...document.querySelectorAll('.lane[data-node=\"1\"] .area')].map((e) => e.getBoundingClientRect().toJSON())"
    )
    assert shapes
    assert all(shape["right"] <= gap["left"] + 1 or shape["left"] >= gap["right"] - 1 for shape in shapes)
    other = await page.run("document.querySelectorAll('.lane[data-node=\"2\"] .gap').length")
    assert other == 0


async def test_elections_and_truncations_are_marked_where_they_happened(page: Page, tmp_path: Path) -> None:
    await opened(page, tmp_path, kip_279())
    elected = await page.run("[...document.querySelectorAll('.elected')].map((e) => [e.dataset.node, e.dataset.epoch])")
    assert elected == [["1", "1"], ["2", "2"], ["3", "3"]]
    assert await texts(page, ".truncation .cut-label") == ["truncated to 10"]
    cut, lane = await box(page, ".truncation"), await box(page, '.lane[data-node="2"] .hw')
    assert lane["top"] - 30 < cut["top"] < lane["bottom"]


async def test_the_band_of_a_lane_says_whether_it_is_in_the_isr(page: Page, tmp_path: Path) -> None:
    await opened(page, tmp_path, kip_279())
    isr, log = await box(page, '.lane[data-node="1"] .isr'), await box(page, '.lane[data-node="1"] .hw')
    fenced = (await box(page, '.elected[data-epoch="2"] .election'))["left"]
    assert isr["right"] <= fenced + 1 < log["right"]


async def test_faults_are_shaded_spans_with_their_names(page: Page, tmp_path: Path) -> None:
    await opened(page, tmp_path, busy())
    assert await texts(page, '.lane[data-node="3"] .trouble-label') == ["paused", "brokers 2 and 3 are cut …"]
    paused = await box(page, '.lane[data-node="3"] rect.paused:not(.trouble)')
    assert paused["width"] > 50


async def test_hover_tells_epochs_and_offsets(page: Page, tmp_path: Path) -> None:
    await opened(page, tmp_path, kip_279())
    election = await box(page, '.elected[data-epoch="3"] .election')
    lane = await box(page, '.lane[data-node="3"] .hw')
    await page.mouse(election["left"] + 40, lane["bottom"] - 5)
    tip = (await texts(page, "#tip"))[0]
    assert "broker 3 at " in tip
    assert "leads in epoch 3, in the ISR" in tip
    assert "0..11@e1" in tip
    assert "12@e3" in tip
    assert "LEO 13, HW 10" in tip
    assert await page.run("getComputedStyle(document.querySelector('#tip')).visibility") == "visible"
    await page.mouse(5, 5)
    assert await page.run("getComputedStyle(document.querySelector('#tip')).visibility") == "hidden"


async def test_the_tip_stays_inside_the_picture(page: Page, tmp_path: Path) -> None:
    await opened(page, tmp_path, kip_279(), width=420)
    chart = await box(page, "#chart")
    for share in (0.2, 0.5, 0.98):
        for down in (0.2, 0.5, 0.8):
            await page.mouse(chart["left"] + share * chart["width"], chart["top"] + down * chart["height"])
            tip = await box(page, "#tip")
            assert chart["left"] <= tip["left"]
            assert tip["right"] <= chart["right"] + 1


async def test_keyboard_moves_between_events_and_announces_them(page: Page, tmp_path: Path) -> None:
    """Keyboard and screen reader users get the same information."""
    await opened(page, tmp_path, kip_279())
    await page.run("document.querySelector('#chart').focus()")
    await page.key("End")
    spoken = (await texts(page, "#spoken"))[0]
    assert re.match(r"8\.0\d\d s\. All faults end", spoken)
    for _ in range(3):
        await page.key("ArrowLeft")
    spoken = (await texts(page, "#spoken"))[0]
    assert "ISR {2,3} -> {1,2,3}" in spoken
    assert "log 0..11@e1 12@e3, LEO 13, HW 13" in spoken
    await page.key("ArrowUp")
    assert "broker 2:" in (await texts(page, "#spoken"))[0] or "broker 1:" in (await texts(page, "#spoken"))[0]
    selected = await texts(page, 'tr[aria-selected="true"]')
    assert len(selected) == 1
    assert "ISR {2,3} -> {1,2,3}" in selected[0]


async def test_the_keyboard_reaches_everything(page: Page, tmp_path: Path) -> None:
    await opened(page, tmp_path, busy())
    reached = []
    for _ in range(18):
        await page.key("Tab")
        reached.append(
            await page.run(
                "document.activeElement.id || document.activeElement.className || document.activeElement.dataset.group"
            )
        )
    for wanted in ("theme", "partition", "by-time", "by-event", "in", "out", "fit", "chart", "query", "row"):
        assert wanted in reached


async def test_keys_and_wheel_zoom_pan_and_reset(page: Page, tmp_path: Path) -> None:
    await opened(page, tmp_path, busy())
    thumb = "Number(document.querySelector('#where i').style.width.replace('%', ''))"
    at = "Number(document.querySelector('#where i').style.left.replace('%', ''))"
    await page.run("document.querySelector('#chart').focus()")
    await page.key("+")
    assert await page.run(thumb) == pytest.approx(50)
    before = await page.run(at)
    await page.key("ArrowRight", shift=True)
    assert await page.run(at) > before
    chart = await box(page, "#chart")
    await page.mouse(chart["left"] + 600, chart["top"] + 200, "mouseWheel", deltaX=0, deltaY=-300)
    assert await page.run(thumb) < 40
    await page.until("/^\\d+ of \\d+ events \\([\\d.]+ s to [\\d.]+ s\\)$/.test(document.querySelector('#count').textContent)")
    await page.key("0")
    assert await page.run(thumb) == pytest.approx(100)


async def test_dragging_pans_the_view(page: Page, tmp_path: Path) -> None:
    await opened(page, tmp_path, busy())
    await page.click("#in")
    at = "Number(document.querySelector('#where i').style.left.replace('%', ''))"
    before, chart = await page.run(at), await box(page, "#chart")
    x, y = chart["left"] + 700, chart["top"] + 200
    await page.mouse(x, y, "mousePressed", button="left", clickCount=1)
    await page.mouse(x - 200, y, button="left", buttons=1)
    await page.mouse(x - 200, y, "mouseReleased", button="left", clickCount=1)
    assert await page.run(at) > before + 3


async def test_without_focus_the_wheel_scrolls_the_page(page: Page, tmp_path: Path) -> None:
    """A picture must not catch the wheel of a reader who only scrolls past it."""
    await opened(page, tmp_path, busy(), height=400)
    chart = await box(page, "#chart")
    await page.mouse(chart["left"] + 600, chart["top"] + 100, "mouseWheel", deltaX=0, deltaY=200)
    await page.until("window.scrollY > 0")
    assert await page.run("document.querySelector('#where i').style.width") == "100%"


async def test_table_has_the_events_and_filters_them(page: Page, tmp_path: Path) -> None:
    await opened(page, tmp_path, kip_279())
    everything = len(await texts(page, "#rows tr.row"))
    assert everything == kip_279().emitted - len(kip_279().events(kinds="raft."))
    await page.run(
        "(() => { const q = document.querySelector('#query'); q.value = 'truncates'; q.dispatchEvent(new Event('input')); })()"
    )
    assert await texts(page, "#rows tr.row td:nth-child(2)") == [
        "broker 2 truncates orders-0 from 12 to 10: on the leader, epoch 1 ends at 12, here at 10"
    ]
    await page.run("(() => { const q = document.querySelector('#query'); q.value = ''; q.dispatchEvent(new Event('input')); })()")
    await page.click("#groups button:nth-child(2)")
    kinds = await texts(page, "#rows tr.row td:nth-child(3)")
    assert kinds
    assert not [kind for kind in kinds if kind in ("log.appended", "log.truncated", "hw.advanced")]


async def test_a_row_leads_to_its_place_in_the_picture(page: Page, tmp_path: Path) -> None:
    await opened(page, tmp_path, kip_279())
    await page.run("[...document.querySelectorAll('#rows tr')].find((r) => r.textContent.includes('truncates')).click()")
    await page.frame()
    cursor, cut = await box(page, "#over .cursor"), await box(page, ".truncation .cut")
    assert abs(cursor["left"] - (cut["left"] + cut["width"] / 2)) < 2
    assert "broker 2 truncates" in (await texts(page, "#tip"))[0]


async def test_the_story_is_read_under_the_picture(page: Page, tmp_path: Path) -> None:
    """A number in a circle says nothing; the sentence that it stands for is one click or key away."""
    await opened(page, tmp_path, kip_279())
    assert await texts(page, ".said-label") == ["1", "2", "3", "4", "5", "6"]
    await page.click(".heading:nth-of-type(3) circle")
    await page.frame()
    assert (await texts(page, "#chapter"))[0].startswith("3Broker 1 falls silent")
    await page.run("document.querySelector('#chart').focus()")
    await page.key("n")
    await page.frame()
    assert (await texts(page, "#chapter"))[0].startswith("4Broker 2 dies before anybody")
    await page.key("p")
    await page.frame()
    assert (await texts(page, "#chapter"))[0].startswith("3Broker 1 falls silent")


async def test_table_shows_warnings_and_other_lines_on_request(page: Page, tmp_path: Path) -> None:
    await opened(page, tmp_path, kip_101())
    rows = await texts(page, "#rows tr.row")
    assert [row for row in rows if "fetcher.connection_lost" in row]
    assert not [row for row in rows if "became_follower" in row]
    await page.click("#groups button:last-child")
    assert [row for row in await texts(page, "#rows tr.row") if "became_follower" in row]


async def test_another_partition_can_be_chosen(page: Page, tmp_path: Path) -> None:
    await opened(page, tmp_path, busy())
    assert await page.run("[...document.querySelector('#partition').options].map((o) => o.text)") == ["orders-0", "orders-1"]
    await page.run(
        "(() => { const s = document.querySelector('#partition'); s.value = '1'; s.dispatchEvent(new Event('change')); })()"
    )
    await page.frame()
    assert await page.run("[...document.querySelectorAll('.elected')].map((e) => e.dataset.node)") == ["2"]
    await page.until("!document.querySelector('#rows').textContent.includes('orders-0')")


async def test_one_partition_needs_no_choice(page: Page, tmp_path: Path) -> None:
    await opened(page, tmp_path, kip_279())
    assert (await box(page, "#which"))["width"] == 0


async def test_bursts_can_be_stretched_and_time_be_even(page: Page, tmp_path: Path) -> None:
    """A fail-over has milliseconds of events between seconds of waiting."""
    await opened(page, tmp_path, kip_279())

    async def between_elections() -> float:
        second, third = [await box(page, f'.elected[data-epoch="{epoch}"] .election') for epoch in (2, 3)]
        return third["left"] - second["left"]

    stretched = await between_elections()
    await page.click("#by-time")
    even = await between_elections()
    chart = await box(page, "#chart")
    assert even == pytest.approx((chart["width"] - 150) * 1.0 / 8.027, rel=0.05)
    assert stretched != pytest.approx(even, rel=0.2)


CONTRAST = """(() => {
  const style = getComputedStyle(document.documentElement), probe = document.body.appendChild(document.createElement("i"));
  const linear = (v) => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
  const light = (name) => {
    probe.style.color = style.getPropertyValue(name);
    const [r, g, b] = getComputedStyle(probe).color.match(/[\\d.]+/g).map((v) => linear(v / 255));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  return PAIRS.map(([one, other]) => {
    const [a, b] = [light(one), light(other)];
    return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  });
})()"""


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
async def test_text_can_be_read_in_light_and_in_dark(page: Page, tmp_path: Path, dark: bool) -> None:
    """Contrast by the rules of WCAG: 4.5 for text, 3 for bold words on colours and for drawings."""
    await opened(page, tmp_path, kip_279(), dark=dark)
    text = [(ink, ground) for ink in ("--ink", "--soft") for ground in ("--page", "--card")] + [("--bad", "--card")]
    epochs = [(f"--e{number}", ground) for number in range(8) for ground in ("--on-epoch", "--card")]
    for pairs, least in ((text, 4.5), ([*epochs, ("--focus", "--card"), ("--bad", "--bad-soft")], 3.0)):
        ratios = await page.run(CONTRAST.replace("PAIRS", json.dumps(pairs)))
        assert [pair for pair, ratio in zip(pairs, ratios, strict=True) if ratio < least] == []


async def test_theme_follows_the_system_and_a_button(page: Page, tmp_path: Path) -> None:
    await opened(page, tmp_path, kip_279(), dark=True)
    colour = "getComputedStyle(document.body).backgroundColor"
    assert await page.run(colour) == "rgb(17, 20, 24)"
    await page.click("#theme")
    assert await page.run(colour) == "rgb(251, 251, 250)"


@pytest.mark.parametrize("width", [360, 760, 1600])
async def test_the_page_fits_every_window(page: Page, tmp_path: Path, width: int) -> None:
    await opened(page, tmp_path, busy(), width=width)
    assert await page.run("document.documentElement.scrollWidth") <= width
    assert await page.run("document.querySelectorAll('.lane').length") == 3


async def test_violation_is_printed_and_marked(page: Page, tmp_path: Path) -> None:
    await opened(page, tmp_path, kip_101(), violation=Violated())
    assert "I6 is violated. broker 2 truncated <orders-0> to 1 & offset 1 is committed" in (await texts(page, ".violation"))[0]
    assert await texts(page, ".violated text") == ["I6 is violated"]


async def test_the_run_is_there_as_text(page: Page, tmp_path: Path) -> None:
    await opened(page, tmp_path, kip_279())
    summary = (await texts(page, "#summary"))[0]
    assert summary.startswith("orders-0: 3 replicas over 8.0")
    assert "3 elections, 1 truncations, 1 crashes" in summary
    await page.click("summary")
    assert "broker 2 truncates its log from 12 to 10" in (await texts(page, "#text"))[0]
    assert (await box(page, "#text"))["height"] > 300


async def test_a_run_without_partitions_opens(page: Page, tmp_path: Path) -> None:
    written = HandwrittenTrace()
    written.comes_up()
    await opened(page, tmp_path, written.trace)
    assert len(await texts(page, "#rows tr.row")) == written.trace.emitted - 1  # a vote is one of the other things


async def test_twenty_seconds_with_five_thousand_events_are_drawn_at_once(page: Page, tmp_path: Path) -> None:
    """Dragging must feel immediate. Measured in the page's own processor time, so other processes do not count."""
    await opened(page, tmp_path, busy(10_000, partitions=2))
    await page.ask("Performance.enable", timeDomain="threadTicks")

    async def worked_s() -> float:
        metrics = (await page.ask("Performance.getMetrics"))["metrics"]
        return float(next(metric["value"] for metric in metrics if metric["name"] == "TaskDuration"))

    before, pictures = await worked_s(), 10
    for number in range(pictures):
        await page.run(f"document.querySelector('{'#out' if number % 2 else '#in'}').click()")
        await page.frame()
    assert (await worked_s() - before) / pictures < 0.15
