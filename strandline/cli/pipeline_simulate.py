"""`strandline pipeline simulate`: runs seeds of the simulator on a Spark cluster."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Annotated

import typer

from strandline.cli.common import UNHEALTHY, note
from strandline.cli.output import Form, Output, print_document
from strandline.cli.pipeline_common import DEFAULT_MASTER, Master, spark_for
from strandline.cli.simulate import SEEDS_DRAWN, mutation_named, scenario_named
from strandline.protocol.errors import UsageError

if TYPE_CHECKING:
    from strandline.pipeline.jobs.simulate_task import Seeds


def simulate(
    seeds: Annotated[
        str, typer.Option("--seeds", metavar="N|A..B", help="N seeds that follow from --draw, or all seeds from A to B.")
    ],
    draw: Annotated[
        int | None, typer.Option(metavar="D", help="Number that decides which seeds are drawn. By default a random one.", min=0)
    ] = None,
    share: Annotated[
        float, typer.Option(metavar="PART", help="Share of the drawn runs that are perturbed scenarios.", min=0.0, max=1.0)
    ] = 0.3,
    scenario: Annotated[str | None, typer.Option(metavar="S03", help="Run this scenario with all seeds.")] = None,
    mutation: Annotated[str | None, typer.Option(metavar="M01", help="Run with this guard removed from the code.")] = None,
    to: Annotated[
        str | None, typer.Option("--to", metavar="DIR", help="Append a row for each run to this Parquet table.")
    ] = None,
    output: Output = Form.table,
    master: Master = DEFAULT_MASTER,
) -> None:
    """Run seeds of the simulator on Spark's executors. Exit code 3 when a promise was broken, or a coverage mark stayed at
    zero."""
    wanted = _seeds(seeds, draw, share, scenario, mutation)
    if wanted.draw is not None:
        note(f"seeds are drawn from {wanted.draw}")
    with spark_for("simulate", master) as spark:
        from strandline.pipeline.jobs import simulate as job

        summary = job.summary(spark, wanted, to, progress=note)
    if output.is_document:
        print_document(summary.as_dict(), output)
    else:
        print(job.page(summary))
    if not summary.good:
        raise typer.Exit(UNHEALTHY)


def _seeds(text: str, draw: int | None, share: float, scenario: str | None, mutation: str | None) -> Seeds:
    try:
        from strandline.pipeline.jobs.simulate_task import Seeds
    except ImportError:
        raise UsageError("Spark is not installed: in a clone of Strandline, pip install '.[spark]'") from None
    from strandline.testing.simulation.runs.replay import parse_seeds

    scenario, mutation = scenario_named(scenario), mutation_named(mutation)
    if text.isdecimal() and int(text):
        number = secrets.randbelow(SEEDS_DRAWN) if draw is None else draw
        return Seeds(int(text), number, share=share, scenario=scenario, mutation=mutation)
    if draw is not None:
        raise UsageError(f"--draw is for a number of seeds, but --seeds {text} names the seeds")
    if ".." not in text:
        raise UsageError(f"--seeds takes a number, or a range such as 0..99; not {text!r}")
    numbers = parse_seeds(text)
    return Seeds(len(numbers), first=numbers.start, scenario=scenario, mutation=mutation)
