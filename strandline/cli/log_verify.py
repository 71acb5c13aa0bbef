"""`strandline log verify`: reads every byte of a stopped node's data directory. Exit code 1 if something is damaged."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from strandline.cli.common import fail
from strandline.cli.output import Form, Output, print_document
from strandline.cli.progress import show_step
from strandline.protocol.errors import UsageError

if TYPE_CHECKING:
    from strandline.pipeline.jobs.verify_result import Verification


def verify(
    directory: Annotated[
        str, typer.Argument(metavar="DIR", show_default=False, help="The data directory of a stopped broker or controller.")
    ],
    output: Output = Form.table,
) -> None:
    """Read every byte of a stopped broker's logs: headers, checksums, epochs, offsets, records, indexes, producer snapshots and
    checkpoints; of a controller the metadata log, its snapshots and quorum-state. A line per finding; exit code 1 if something is
    damaged."""
    from strandline.pipeline.jobs.verify_folders import is_controllers

    path = Path(directory)
    if path.is_dir() and is_controllers(path):
        _verify_controller(path, output)
        return
    found = _verified(directory)
    if output.is_document:
        print_document(found.document, output)
    else:
        for finding in found.all_findings:
            print(("damage: " if finding.is_bad else "note: ") + finding.sentence)
    if not found.is_ok:
        fail(found.verdict)
    if not output.is_document:
        print(found.verdict)


def _verify_controller(path: Path, output: Form) -> None:
    from strandline.cli.log_verify_controller import ControllerCheck
    from strandline.pipeline.jobs.results import counted
    from strandline.pipeline.jobs.verify_folders import held

    check = ControllerCheck(path)
    with held(path, "a controller"):
        check.run()
    bad = sum(fault.is_bad for fault in check.faults)
    if output.is_document:
        findings = [{"bad": fault.is_bad, "sentence": fault.sentence} for fault in check.faults]
        print_document({"directory": str(path), "ok": not bad, "end_offset": check.end, "findings": findings}, output)
    else:
        for fault in check.faults:
            print(("damage: " if fault.is_bad else "note: ") + fault.sentence)
    if bad:
        fail(f"not sound: {counted(bad, 'finding')}")
    if not output.is_document:
        sizes = f"{counted(check.records, 'record')}, {counted(check.snapshots, 'snapshot')}"
        print(f"sound: the metadata log up to offset {check.end}, {sizes}")


def _verified(path: str) -> Verification:
    from strandline.pipeline.jobs.verify import verify as job
    from strandline.pipeline.jobs.verify_folders import find, held

    directories = find([path])
    if len(directories) > 1:
        raise UsageError(f"{path} holds {len(directories)} data directories: give one of them, such as {directories[0].path}")
    with held(directories[0].path):
        watched = show_step if sys.stderr.isatty() else None
        return _of_one_replica(job([directories[0].path], reads_records=True, progress=watched))


def _of_one_replica(found: Verification) -> Verification:
    """The findings without their statements about other replicas: those are not in this directory, and may have the records."""
    partitions = []
    for partition in found.partitions:
        findings = [replace(finding, others=None) for finding in partition.findings if finding.kind != "lost"]
        partitions.append(replace(partition, findings=tuple(findings) if partition.is_ok or findings else partition.findings))
    return replace(found, partitions=tuple(partitions))
