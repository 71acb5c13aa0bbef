"""The links, anchors, files and commands that the documents name exist.

A newcomer tries what a page says, once. These tests try it at every change.
"""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from strandline.cli.root import app

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    str(page.relative_to(ROOT))
    for page in ROOT.rglob("*.md")
    if not any(part.startswith(".") or part == "build" for part in page.relative_to(ROOT).parts)
)
ROOMS_AS_PAGES_NAME_THEM = (".", "strandline")
"""`broker/fetch/fetch_handler.py` lies at the root, `observe/http.py` below `strandline/`."""

LINK = re.compile(r"\]\(([^)\s]+)\)")
NAMED_FILE = re.compile(r"`([\w.-]+/(?:[\w.-]+/)*(?:[\w-]+\.(?:py|toml|md|yml|json)|[\w.-]+/))`")
"""A file or folder with the folder before it. A name such as `fetch.py` or `raft/` alone stands in a text about its room."""
FROM_INDEX = re.compile(r"pip install [^`\n]*['\" ]strandline(?![\w-])")
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
END_OF_COMMAND = {"|", ";", "&", "&&", "||", ">", "<", "2>", ">&2", "#"}


def text_of(page: str) -> str:
    return (ROOT / page).read_text()


# -- links ------------------------------------------------------------------------------------------------------------


def anchors(markdown: str) -> set[str]:
    """Return the anchors of a page's headings as GitHub builds them: lower case, dashes for blanks, no other signs."""
    headings = re.findall(r"^#+ (.*)$", FENCE.sub("", markdown), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken_links(page: str, markdown: str) -> list[str]:
    broken = []
    for link in LINK.findall(FENCE.sub("", markdown)):
        if re.match(r"[a-z]+:", link):
            continue  # A page of another site.
        path, _, anchor = link.partition("#")
        target = (ROOT / page).parent / path
        if not target.exists() or (anchor and anchor not in anchors(target.read_text() if path else markdown)):
            broken.append(link)
    return broken


@pytest.mark.parametrize("page", PAGES)
def test_every_link_has_a_target(page: str) -> None:
    assert broken_links(page, text_of(page)) == []


def test_a_broken_link_is_found() -> None:
    page = "# One, two\n[a](README.md) [b](nowhere.md) [c](#one-two) [d](#three) [e](https://example.net/x)\n"
    assert broken_links("README.md", page) == ["nowhere.md", "#three"]


# -- files ------------------------------------------------------------------------------------------------------------


def missing_files(page: str, markdown: str) -> list[str]:
    """Return the missing files and folders among those in backticks, relative to the root, `strandline/` or the page."""
    places = [ROOT / place for place in ROOMS_AS_PAGES_NAME_THEM] + [(ROOT / page).parent]
    named = NAMED_FILE.findall(FENCE.sub("", markdown))
    return [name for name in named if not any((place / name).exists() for place in places)]


@pytest.mark.parametrize("page", ["ARCHITECTURE.md", "CONTRIBUTING.md", "README.md", "CHANGELOG.md", "docs/failover.md"])
def test_every_named_file_exists(page: str) -> None:
    assert missing_files(page, text_of(page)) == []


def test_a_missing_file_is_found() -> None:
    page = "`broker/fetch/fetch_handler.py` `observe/http.py` `broker/gone.py` `gone/away/` `raft/`"
    assert missing_files("README.md", page) == ["broker/gone.py", "gone/away/"]


# -- promises ---------------------------------------------------------------------------------------------------------


def test_the_guarantees_are_the_same_on_both_pages() -> None:
    tables = [
        re.findall(r"^\| `(?:acks|all|1|0)` \| .*$", text_of(page), re.MULTILINE) for page in ("README.md", "docs/delivery.md")
    ]
    readme, page = ([row for row in rows if row.count("|") == 9] for rows in tables)
    assert readme == page
    assert len(readme) == 7


# -- installation -----------------------------------------------------------------------------------------------------


def test_no_page_installs_our_package_from_an_index() -> None:
    """The package is on no index: `pip install 'strandline[spark]'` would fail, or install another package of this name."""
    names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
    files = [ROOT / name for name in names if name.endswith((".md", ".py", ".ipynb", ".toml", ".yml"))]
    told = [str(file.relative_to(ROOT)) for file in files if file != Path(__file__) and FROM_INDEX.search(file.read_text())]
    assert told == []
    assert FROM_INDEX.search("pip install 'strandline[spark]'")
    assert not FROM_INDEX.search("pip install strandline-0.1.0-py3-none-any.whl")


# -- commands ---------------------------------------------------------------------------------------------------------


CALL = re.compile(r"""
    ^ (?: [ ]{4} | \$[ ] | >[ ] )                                  # code: indented, or at a prompt
    (?: .*? [|;&] [ ]* | until[ ] )? (?: [A-Z_]+=\S+ [ ] )*        # behind a pipe, with an environment,
    (?: docker[ ]exec[ ].*? (?=strandline) )?                      # in a container
    (?: strandline | docker-compose[ ]run[ ]--rm[ ]client ) [ ] ( [a-z] .* ) $
""", re.VERBOSE)  # fmt: skip


def commands_in(markdown: str) -> Iterator[str]:
    """Return the calls of our command line in lines of code and in backticks."""
    for line in markdown.splitlines():
        call = CALL.match(line)
        if call is not None:
            yield call[1]
    yield from re.findall(r"`strandline ([a-z][^`]*)`", FENCE.sub("", markdown))


def words_of(command: str) -> list[str]:
    """Split a command into words, up to the first operator of the shell."""
    words: list[str] = []
    for word in shlex.split(command.replace(";", " ; "), comments=True):
        if word in END_OF_COMMAND or word == "...":
            break
        words.append(word)
    return words


def check(command: str) -> None:
    """Parse the command and its options as a call would, without running it."""
    words, group = words_of(command), get_command(app)
    context = group.make_context("strandline", [], resilient_parsing=True)
    found: Any = group
    while words and not words[0].startswith("-") and hasattr(found, "get_command"):
        found = found.get_command(context, words[0])
        assert found is not None, f"there is no command {words[0]!r}"
        words = words[1:]
    known = {option for parameter in found.params for option in parameter.opts} | {"--help"}
    options = {word.partition("=")[0] for word in words if word.startswith("--")}
    assert options <= known, f"there is no {', '.join(sorted(options - known))}"


@pytest.mark.parametrize("page", PAGES)
def test_every_shown_command_exists_with_its_options(page: str) -> None:
    for command in commands_in(text_of(page)):
        try:
            check(command)
        except AssertionError as e:
            pytest.fail(f"strandline {command}: {e}")


def test_a_wrong_command_is_found() -> None:
    assert len([command for page in PAGES for command in commands_in(text_of(page))]) > 50
    check("topic describe orders --under-replicated | head")
    for wrong in ("topic explode orders", "explode", "topic describe --over-replicated"):
        with pytest.raises(AssertionError, match="there is no"):
            check(wrong)
