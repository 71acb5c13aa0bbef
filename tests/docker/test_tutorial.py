"""Runs docs/failover.md command by command in new containers, and tests the runner itself."""

from __future__ import annotations

import pytest
import tutorial
from tutorial import PAGE, Step, run_page, shape, steps_of, with_outputs

PAGE_OF_TWO = """# A page

```console
$ cat << 'END'
> one
>
> END
one
$ echo two
```

```
$ this is a picture
```

```console
$ echo three
3
```
"""


@pytest.mark.docker
@pytest.mark.processes
def test_every_command_of_the_tutorial_prints_what_the_page_shows(image: str) -> None:
    """Readers lose their trust in a tutorial whose output is outdated."""
    wrong = []
    for step, output in run_page(image, PAGE.read_text()):
        print(f"$ {step.command}", *output, sep="\n", flush=True)
        if shape(step.command, output) != shape(step.command, step.shown):
            wrong.append(f"{PAGE.name}:{step.line}: $ {step.command}\n" + "\n".join(output))
    assert not wrong, "\n\n".join(wrong)


def test_continued_commands_and_their_outputs_are_parsed() -> None:
    assert list(steps_of(PAGE_OF_TWO)) == [
        Step(4, "cat << 'END'\none\n\nEND", ["one"]),
        Step(9, "echo two", []),
        Step(17, "echo three", ["3"]),
    ]


def test_writing_replaces_only_the_outputs() -> None:
    printed = {4: ["uno"], 9: ["dos", "dos"], 17: []}
    expected = PAGE_OF_TWO.replace("> END\none\n", "> END\nuno\n").replace("$ echo two\n", "$ echo two\ndos\ndos\n")
    assert with_outputs(PAGE_OF_TWO, printed) == expected.replace("three\n3\n", "three\n")
    assert with_outputs(PAGE_OF_TWO, {4: ["one"], 9: [], 17: ["3"]}) == PAGE_OF_TWO


@pytest.mark.parametrize(
    ("command", "one", "other"),
    [
        ("strandline topic describe", " orders   0   1   2,3,1 ", "orders 0 1 1,2,3"),
        ("facts broker-1 x", "partition_epoch: 3   isr: [2, 1]", "partition_epoch: 14 isr: [1, 2]"),
        ("python send.py", "(40 attempts, after 4017 ms, X)", "(39 attempts, after 4003 ms, X)"),
        ("strandline cluster describe", "cluster pH4tv-iQ5W6cmVE7mZZPQA", "cluster 5e3WwK9VRRaL80mteODDQA"),
        ("strandline cluster describe", "cluster FyXNXvnxUPXbQQJPEZlqPA, active", "cluster -e3WwK9VRRaL80mteODDQA, active"),
        ("strandline chaos run x", "0.505 s > kill broker-3", "1.2 s > kill broker-1"),
    ],
)
def test_varying_values_compare_as_equal(command: str, one: str, other: str) -> None:
    assert shape(command, [one]) == shape(command, ["", other, ""])


@pytest.mark.parametrize(
    ("command", "one", "other"),
    [
        ("strandline consume orders", "6 3 patience", "6 2 patience"),
        ("strandline topic describe orders", "orders 0 1 2 1,2,3", "orders 0 2 2 1,2,3"),
        ("strandline topic describe orders", "orders 0 1 2 1,2,3", "orders 0 1 2 1,2"),
        ("python send.py", "wine: acknowledged, offset 5", "wine: acknowledged, offset 6"),
        ("facts broker-1 x", "high_watermark: 6 offset: 6", "high_watermark: 7 offset: 6"),
        ("strandline chaos run x", "2244 acknowledged, 0 lost", "2244 acknowledged, 1 lost"),
        ("strandline chaos run x", "lost / doubled / reordered 0 / 0 / 0", "lost / doubled / reordered 0 / 2 / 0"),
        ("strandline chaos run x", "all is well", "Traceback"),
    ],
)
def test_taught_values_must_agree_exactly(command: str, one: str, other: str) -> None:
    assert shape(command, [one]) != shape(command, [other])


def test_the_streams_of_a_command_in_a_container_compare_in_any_order() -> None:
    """`docker exec` carries standard output and standard error, and the order between them is a matter of luck."""
    command, lines = "beside strandline topic describe orders", ["strandline: broker 2 did not answer", "orders 0 1"]
    assert shape(command, lines) == shape(command, lines[::-1])
    assert shape(command, lines) != shape(command, lines[:1])
    assert shape(command.removeprefix("beside "), lines) != shape(command.removeprefix("beside "), lines[::-1])


def test_the_page_has_all_its_steps() -> None:
    commands = [step.command for step in steps_of(PAGE.read_text())]
    assert any("network disconnect" in command for command in commands)
    assert commands[-1].startswith("docker-compose down -v")
    assert all(step.shown for step in steps_of(PAGE.read_text()) if "describe" in step.command and "until" not in step.command)


def test_a_hanging_command_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    class NoProject:
        name, environment, ports = "x", dict[str, str](), dict[str, int]()

        def down(self, *options: str) -> None: ...

    monkeypatch.setattr(tutorial, "COMMAND_MAX_S", 0.2)
    monkeypatch.setattr(tutorial, "PORTS", {"PORT": ()})
    shell = tutorial.Shell(NoProject())  # type: ignore[arg-type]
    try:
        assert shell.run("export A=1; cat; echo A is $A") == ["A is 1"]
        assert shell.run("echo $A; echo no >&2; false") == ["1", "no"]
        with pytest.raises(TimeoutError, match="sleep 60"):
            shell.run("sleep 60")
    finally:
        shell.close()
