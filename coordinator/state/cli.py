"""The commands of `lipt state`, on a state directory whose coordinator need not run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from platformdirs import user_state_path

from lipt.common.terminal import CommandGroup, print_line
from lipt.common.text import format_bytes

app = typer.Typer(
    cls=CommandGroup,
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Check, clean and back up a coordinator's state directory.",
)

StateDir = Annotated[
    Path,
    typer.Option(
        "--state-dir",
        envvar="LIPT_STATE_DIR",
        default_factory=lambda: user_state_path("lipt"),
        show_default="the user's state directory",
        help="The coordinator's --state-dir.",
    ),
]


@app.command()
def check(state_dir: StateDir) -> None:
    """Verify every record, reference and digest.

    The status is 1 when something is wrong. Works while a coordinator serves the directory, and
    changes nothing.
    """
    from lipt.coordinator.state.maintenance import check_state

    checked = check_state(state_dir)
    for line in checked.problems:
        print_line(line)
    print_line(
        f"{state_dir}: {checked.num_runs} runs, {checked.num_subsets} subsets, "
        f"{checked.num_diagnoses} diagnoses, {checked.num_mixtures} mixtures and "
        f"{checked.num_blobs} blobs ({format_bytes(checked.num_bytes)}; "
        f"{checked.num_unnamed} in no record), "
        f"{len(checked.problems) or 'no'} problem{'' if len(checked.problems) == 1 else 's'}"
    )
    if checked.problems:
        raise typer.Exit(1)


@app.command()
def gc(
    state_dir: StateDir,
    min_age_hours: Annotated[
        float, typer.Option(min=0.0, help="Spare what is younger: its sender may still want it.")
    ] = 24.0,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would go, and leave it.")
    ] = False,
) -> None:
    """Remove what no run needs; refused while a coordinator serves the directory."""
    from time import time

    from lipt.coordinator.state.maintenance import collect_garbage

    collected = collect_garbage(
        state_dir, min_age_seconds=3600 * min_age_hours, now=time(), dry_run=dry_run
    )
    files = (*collected.blobs, *collected.parts)
    print_line(
        f"{'would remove' if dry_run else 'removed'} {len(files)} files "
        f"({format_bytes(sum(file.size_bytes for file in files))}), spared {collected.num_spared} "
        f"younger than {min_age_hours:g} h"
    )


@app.command()
def backup(
    destination: Annotated[
        Path, typer.Argument(metavar="DEST", help="A directory that is yet to be made.")
    ],
    state_dir: StateDir,
) -> None:
    """Copy a state directory, also while it is served; a coordinator can start on the copy."""
    from lipt.coordinator.state.maintenance import back_up

    made = back_up(state_dir, destination)
    print_line(
        f"{destination}: {made.num_runs} runs and {made.num_blobs} blobs "
        f"({format_bytes(made.num_bytes)}), verified. "
        f"Check it with: lipt state check --state-dir {destination}"
    )
