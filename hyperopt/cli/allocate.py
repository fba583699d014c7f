"""Commands on addresses: allocate."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from hyperopt.cli.files import INFEASIBLE, MOST_BYTES, MOST_SEED, STANDARD_OUTPUT, AsJson, check_output, say
from hyperopt.documents import DocumentError, write_bytes

NOT_FOUND = 4

LIMIT_S, LARGE_LIMIT_S, CAPACITY_LIMIT_S, LARGE = 4.0, 6.5, 10.0, 3000
"""Seconds of search unless told: for less than so many buffers, for more, and to meet a capacity, where it ends."""


def register(app: typer.Typer) -> None:
    app.command("allocate")(allocate)


def allocate(
    buffers: Annotated[Path, typer.Argument(metavar="BUFFERS", help="CSV with the columns id,lower,upper,size")],
    output: Annotated[Path, typer.Option("-o", "--output", help="where to write the table with its offsets")],
    capacity: Annotated[
        int | None, typer.Option(min=0, max=MOST_BYTES, help="bytes of each pool; the search ends once it is met")
    ] = None,
    time_limit: Annotated[
        float | None,
        typer.Option(min=0, help="seconds of search; 10 with a capacity, else 4, or 6.5 from 3000 buffers on"),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, max=MOST_SEED, help="of the search")] = 0,
    as_json: AsJson = False,
) -> int:
    """Offsets for buffers. Exit 0: written; 3: proven not to fit the capacity; 4: none found that fits."""
    from solver.addresses import AddressError, table
    from solver.addresses import allocate as place

    check_output(output)
    try:
        given = table.read(buffers.read_bytes())
        if time_limit is None:
            time_limit = LARGE_LIMIT_S if len(given.buffers) >= LARGE else LIMIT_S
            time_limit = time_limit if capacity is None else CAPACITY_LIMIT_S
        found = place(given.buffers, capacity, time_limit, seed)
    except AddressError as error:
        raise DocumentError(f"{buffers}: column {error.field}, {error.place}", error.problem, error.remedy) from error
    if found.fits:
        write_bytes(given.with_offsets(found.offsets), output)
    met = "proven" if found.proven else "feasible"
    status = met if found.fits else "impossible" if found.impossible else "not found"
    summary = {
        "buffers": len(given.buffers),
        "peak_bytes": found.peak_bytes,
        "lower_bound_bytes": found.lower_bound_bytes,
        "gap": found.gap,
        "status": status,
        "capacity_bytes": capacity,
        "fits": found.fits,
        "seconds": round(found.seconds, 3),
        "output": str(output) if found.fits else None,
        "pools": {
            name: {"peak_bytes": peak, "lower_bound_bytes": bound} for name, (peak, bound) in found.pools.items()
        },
    }
    line = (
        f"peak {found.peak_bytes} bytes, lower bound {found.lower_bound_bytes}, gap {100 * found.gap:.3f} %, "
        f"{status}, {len(given.buffers)} buffers, {found.seconds:.2f} s"
    )
    if output not in STANDARD_OUTPUT:
        print(msgspec.json.encode(summary).decode() if as_json else line)
    if found.fits:
        return 0
    why = (
        f"at least {found.lower_bound_bytes} are needed (proven)"
        if found.impossible
        else f"the best found in {found.seconds:.1f} s takes {found.peak_bytes}; give a larger --time-limit or capacity"
    )
    say(f"the buffers do not fit {capacity} bytes: {why}; nothing was written")
    return INFEASIBLE if found.impossible else NOT_FOUND
