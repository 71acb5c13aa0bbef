"""Prints the reference of scenario files from the parser's own tables: `python -m strandline.chaos.reference`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from strandline.chaos.steps import ACTIONS, CAPABILITIES, CLAIMS, CONDITIONS, REQUIRED, TARGET_WORDS, Field, Word


def lines() -> Iterator[str]:
    yield from _words("do", ACTIONS)
    yield from _words("until", CONDITIONS)
    yield from _words("claim", CLAIMS)
    yield from ("| target | node |", "|---|---|")
    yield from (f"| `{word}` | {meaning} |" for word, meaning in TARGET_WORDS.items())
    yield from ("", "| requires | meaning |", "|---|---|")
    yield from (f"| `{word}` | {meaning} |" for word, meaning in CAPABILITIES.items())


def _words(key: str, table: Mapping[str, Word]) -> Iterator[str]:
    yield from (f"| `{key}` | meaning | fields |", "|---|---|---|")
    for name, word in table.items():
        needs = f" Requires `{word.requires}`." if word.requires else ""
        yield f"| `{name}` | {word.meaning}.{needs} | {', '.join(_field(n, f) for n, f in word.fields.items())} |"
    yield ""


def _field(name: str, field: Field) -> str:
    choices = f" ({' or '.join(field.choices)})" if field.choices else ""
    if field.default is REQUIRED:
        return f"`{name}`{choices}"
    return f"[`{name}`{'' if field.default is None else f' = {field.default}'}]{choices}"


if __name__ == "__main__":
    print("\n".join(lines()))
