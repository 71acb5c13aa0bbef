"""The documentation site builds without a warning, shows what GitHub shows, loads nothing from elsewhere, works from a folder.

The strict build finds broken links and anchors, and pages that are not in the navigation (`mkdocs.yml`)."""

from __future__ import annotations

import collections
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from html.parser import HTMLParser
from pathlib import Path

import dialect
import llms
import navigation
import places
import pytest
import pytest_asyncio
from chromium import Page, find_chromium, new_page, running_chromium
from markdown_it import MarkdownIt
from page_session import comparable, examples_of, with_outputs
from test_documents import anchors

ROOT = Path(__file__).parents[2]
SECTIONS = navigation.sections((ROOT / navigation.INDEX).read_text())
PAGES = [page for section in SECTIONS for page in section.pages]
OWN_HOST = re.compile(r"(?:src|href)=\"(?:https?:)?//[^\"]*\"")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    built = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert (built.returncode, "WARNING" in built.stderr) == (0, False), built.stderr
    return folder


# -- what is on the site ----------------------------------------------------------------------------------------------


def test_every_page_of_the_navigation_is_on_the_site(site: Path) -> None:
    uris = [places.uri_of(page.path) for page in PAGES]
    missing = [uri for uri in uris if uri is None or not (site / re.sub(r"(README)?\.md$", _html, uri)).is_file()]
    assert missing == []
    assert len(PAGES) > 40


def _html(ending: re.Match[str]) -> str:
    return "index.html" if ending[1] else ".html"


class _Tags(HTMLParser):
    """Counts the elements that make the structure of a page."""

    COUNTED = ("h1", "h2", "h3", "h4", "li", "ol", "ul", "table", "tr", "td", "pre", "blockquote", "em", "strong")

    def __init__(self) -> None:
        super().__init__()
        self.found: collections.Counter[str] = collections.Counter()

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag in self.COUNTED:
            self.found[tag] += 1


def structure(html: str) -> dict[str, int]:
    tags = _Tags()
    tags.feed(html)
    return dict(tags.found)


def content(site: Path, uri: str) -> str:
    """The part of a page that its Markdown became."""
    html = (site / re.sub(r"(README)?\.md$", _html, uri)).read_text()
    return html[html.index("<article") : html.index("</article>")]


@pytest.mark.parametrize("path", [navigation.INDEX, *(page.path for page in PAGES)])
def test_the_site_shows_what_github_shows(path: str, site: Path) -> None:
    """The two parsers differ in lists, tables and code inside them. What one takes for a list, the other may take for a
    paragraph: a reader of one of the two would see raw Markdown."""
    file = ROOT / path if (ROOT / path).is_file() else ROOT / path / "README.md"
    github = MarkdownIt("commonmark", {"html": True}).enable("table").render(file.read_text())
    assert structure(content(site, places.uri_of(path) or "")) == structure(github)


def test_a_list_without_a_blank_line_would_be_found() -> None:
    assert structure(MarkdownIt().render("text\n- one\n- two\n")) == {"ul": 1, "li": 2}
    assert structure("<p>text - one - two</p>") == {}


def test_no_page_loads_anything_from_elsewhere(site: Path) -> None:
    """Links lead elsewhere, but nothing is loaded: no fonts, no scripts, no pictures."""
    for page in site.rglob("*.html"):
        loaded = [tag for tag in re.findall(r"<(?:script|img|iframe|link)\b[^>]*>", page.read_text()) if OWN_HOST.search(tag)]
        assert loaded == [], page.name


# -- for programs that read -------------------------------------------------------------------------------------------


def test_llms_txt_lists_the_navigation_and_its_links_lead_to_markdown(site: Path) -> None:
    text = (site / "llms.txt").read_text()
    assert text.startswith("# Strandline\n\n> ")
    listed = re.findall(r"^- \[([^\]]+)\]\(([^)]+)\): \S", text, re.MULTILINE)
    assert sorted(listed) == sorted((page.title, places.uri_of(page.path)) for page in PAGES)
    assert [uri for _, uri in listed if not (site / uri).read_text().startswith("# ")] == []
    optional = text.split("\n## Optional\n")[1]
    assert {uri for _, uri in listed if f"({uri})" in optional} == {places.uri_of(path) for path in llms.OPTIONAL}


def test_llms_full_txt_has_every_page_that_is_not_optional(site: Path) -> None:
    text = (site / "llms-full.txt").read_text()
    there = [page.path for page in PAGES if f"<!-- {places.uri_of(page.path)} -->\n" in text]
    assert there == [page.path for page in PAGES if page.path not in llms.OPTIONAL]
    assert "(../" not in places.with_links_of_the_site("docs/x.md", "[a](../deploy/README.md)", {})


# -- in a browser -----------------------------------------------------------------------------------------------------


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
    """Nothing may be written to the console, and nothing be requested but files of the site."""
    async with new_page(devtools) as page:
        yield page
        assert page.console == []
        assert [url for url in page.requests if not url.startswith(("file://", "data:"))] == []


def opened(site: Path, name: str) -> Path:
    """A copy of a page with the attribute that the helper waits for."""
    copy = site / f"opened-{name}"
    copy.write_text((site / name).read_text().replace("<html ", "<html data-ready=yes "))
    return copy


async def test_search_works_from_a_folder(site: Path, page: Page) -> None:
    """The search is a worker, and browsers start none for file://; the site brings a replacement."""
    await page.open(opened(site, "index.html"))
    await page.run("document.querySelector('[name=query]').focus()")
    for letter in "tombstone":
        await page.key(letter)
    await page.until("document.querySelectorAll('.md-search-result__item').length > 3")
    assert "compaction" in (await page.run("document.querySelector('.md-search-result__list').textContent")).lower()


@pytest.mark.parametrize("name", ["index.html", "first-group.html", "cli.html", "from-aiokafka.html", "delivery.html"])
async def test_pages_fit_a_narrow_screen(name: str, site: Path, page: Page) -> None:
    """Wide tables and consoles scroll inside the page; the page itself does not."""
    await page.open(opened(site, name), width=390, height=800)
    assert await page.run("document.documentElement.scrollWidth <= innerWidth")


async def test_clients_stand_side_by_side_where_there_is_room(site: Path, page: Page) -> None:
    beside = "(() => { const [a, b] = document.querySelector('.sides').children; return a.offsetTop === b.offsetTop; })()"
    await page.open(opened(site, "from-aiokafka.html"), width=1400)
    assert await page.run(beside)
    await page.open(opened(site, "from-aiokafka.html"), width=700)
    assert not await page.run(beside)


async def test_colours_follow_the_system(site: Path, page: Page) -> None:
    brightness = "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).slice(0, 3).reduce((a, b) => a + +b, 0)"
    await page.open(opened(site, "index.html"), dark=True)
    dark = await page.run(brightness)
    await page.open(opened(site, "index.html"))
    assert dark < 200 < 600 < await page.run(brightness)


# -- the hooks --------------------------------------------------------------------------------------------------------


def test_links_lead_to_the_same_files_on_the_site() -> None:
    page = (
        "[a](../ARCHITECTURE.md#x) [b](client.md) [c](../deploy/systemd/) [d](../deploy/prometheus/rules.yml) "
        "[e](../deploy/grafana/) ![f](compaction.svg) [g](https://example.net/x.md) [h](#there)\n```\n[i](client.md)\n```\n"
    )
    assert places.with_links_of_the_site("docs/x.md", page, {}) == (
        "[a](ARCHITECTURE.md#x) [b](client.md) [c](deploy/systemd/README.md) [d](source/deploy/prometheus/rules.yml.md) "
        "e ![f](compaction.svg) [g](https://example.net/x.md) [h](#there)\n```\n[i](client.md)\n```\n"
    )
    outside = places.with_links_of_the_site("deploy/systemd/README.md", "[a](../../docs/logs.md) [b](../README.md)", {})
    assert outside == "[a](../../logs.md) [b](../README.md)"


def test_a_link_that_names_its_file_gets_the_title_of_the_page() -> None:
    page = "[disks.md](disks.md), [docs/disks.md](disks.md), [the disks](disks.md)"
    shown = places.with_links_of_the_site("docs/x.md", page, {"docs/disks.md": "Several disks"})
    assert shown == "[Several disks](disks.md), [Several disks](disks.md), [the disks](disks.md)"


def test_a_broken_link_stays_for_the_strict_build() -> None:
    assert places.with_links_of_the_site("docs/x.md", "[a](gone.md)", {}) == "[a](gone.md)"


def test_anchors_are_those_of_github() -> None:
    for heading in ("acks x fsync", "`strandline up`", "What's new?", "A, b & c", "KIP-848: groups_2"):
        assert {dialect.anchor(heading.replace("`", ""))} == anchors(f"## {heading}\n")


def test_pipes_and_fences_become_those_of_the_site() -> None:
    page = "| `a\\|b` | c\\|d |\n\n```console up\n$ x\n```\n"
    assert dialect.for_the_site(page) == "| `a|b` | c\\|d |\n\n```console\n$ x\n```\n"


# -- the runner of examples -------------------------------------------------------------------------------------------

SAMPLE = """\
```console
$ echo one
one
$ cat <<E
> two
> E
two
```

```python
print(3)
```

```text
3
```

<!-- not run: there is
no such server -->
```python
# other.py
connect()
```
"""


def test_examples_are_taken_from_a_page_in_its_order() -> None:
    found = list(examples_of(SAMPLE))
    assert [(e.line, e.kind, e.code, e.shown) for e in found] == [
        (2, "console", "echo one", ["one"]),
        (4, "console", "cat <<E\ntwo\nE", ["two"]),
        (11, "python", "print(3)\n", ["3"]),
        (21, "python", "# other.py\nconnect()\n", []),
    ]
    assert [(e.why_not, e.label) for e in found[2:]] == [("", ""), ("there is no such server", "other.py")]


def test_outputs_are_written_where_they_were() -> None:
    one, two, three, _ = examples_of(SAMPLE)
    written = with_outputs(SAMPLE, [(one, ["eins", "1"]), (two, []), (three, ["drei"])])
    assert [e.shown for e in examples_of(written)] == [["eins", "1"], [], ["drei"], []]
    assert with_outputs(SAMPLE, [(e, e.shown) for e in examples_of(SAMPLE)]) == SAMPLE


def test_random_ids_do_not_count_but_everything_else_does() -> None:
    command, row = "strandline group describe kitchen", " kitchen   {}   127.0.0.1   ada   {}"
    shown = [row.format("jJMWOQIQR8SzuFAHu9lk8A", 3), row.format("B6T1HN7bS5Kdf9Z7xer8LA", 4)]
    printed = [row.format("_Hnz4WPxQtK8ZS0rdLu0wQ", 4), row.format("z6C1Sb5rQuKYpCWMwcJPIg", 3)]
    assert comparable(command, shown) == comparable(command, printed)
    assert comparable(command, shown) != comparable(command, [printed[0], row.format("z6C1Sb5rQuKYpCWMwcJPIg", 5)])
