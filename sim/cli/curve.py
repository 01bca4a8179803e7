"""``prefixsim curve``: hit rate against KV capacity, for every capacity in one pass."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sim.cli.completion import gpus, models, one_of, some_of, these
from sim.cli.options import settings_of, with_settings
from sim.cli.output import note, out, print_json, table, warn
from sim.config import Group
from sim.errors import UsageError

if TYPE_CHECKING:
    import pandas as pd

    from sim.curves import Curves

_GROUPS: tuple[Group, ...] = ("Workload",)


@with_settings(_GROUPS)
def command(  # noqa: PLR0917 - the command line passes them by name
    policy: Annotated[
        str | None,
        typer.Option(
            "--policy",
            metavar="TEXT,...",
            help="vllm_v1, vllm_v1_latest or both (default: vllm_v1).",
            autocompletion=some_of(these("vllm_v1", "vllm_v1_latest")),
            show_default=False,
        ),
    ] = None,
    block_size: Annotated[
        str,
        typer.Option("--block-size", metavar="INTEGER,...", help="Tokens in a KV cache block."),
    ] = "16",
    kv_capacity: Annotated[
        str | None,
        typer.Option(
            "--kv-capacity",
            metavar="TEXT,...",
            help="Capacities to show: tokens, 10000blocks, 40GiB, 5% of the working set, "
            "infinite, auto. (default: chosen from the curve)",
            show_default=False,
        ),
    ] = None,
    reuse: Annotated[
        str | None,
        typer.Option(
            "--reuse",
            metavar="all|prefill",
            help="Blocks that are cached: 'all', or only those of prompts. (default: all)",
            autocompletion=one_of(these("all", "prefill")),
            show_default=False,
        ),
    ] = None,
    order: Annotated[
        str,
        typer.Option(
            "--order",
            metavar="tail|head",
            help="'tail': vLLM's. 'head': a store of prompts in the order in which blocks are "
            "touched, so that a prompt's head is evicted before its tail (Mooncake's Figure 9).",
            autocompletion=one_of(these("tail", "head")),
        ),
    ] = "tail",
    sample: Annotated[
        int,
        typer.Option(
            "--sample", metavar="N", help="Estimate from one in N blocks, for very large traces."
        ),
    ] = 1,
    every_small_pool: Annotated[
        bool,
        typer.Option(
            "--every-small-pool",
            help="Measure every pool too small for some request, however long it takes.",
        ),
    ] = False,
    model: Annotated[
        str,
        typer.Option(
            "--model",
            help="Model whose KV fills the capacity.",
            autocompletion=one_of(models),
        ),
    ] = "llama-3-8b",
    gpu: Annotated[
        str,
        typer.Option("--gpu", help="GPU, for --kv-capacity auto.", autocompletion=one_of(gpus)),
    ] = "h100",
    seed: Annotated[int, typer.Option("--seed", help="Seed of generator and sample.")] = 0,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="DIR", help="Write tables, all capacities and a plot here."
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the rows as a JSON array.")
    ] = False,
    **chosen: Any,  # noqa: ANN401
) -> None:
    """Show the hit rate at every capacity, requests served one at a time.

    Exact for vLLM V1's order, with what no policy can exceed (Belady's bound), the ceiling of an
    infinite cache and the knee. Requests come in the order of the trace; time plays no part.
    """
    from sim.curves import SHOWN, ask, measure_curves  # noqa: PLC0415 - keeps --help quick

    asked = ask(
        settings_of(chosen),
        policies=_split("--policy", policy) if policy is not None else None,
        block_sizes=_split("--block-size", block_size),
        capacities=_split("--kv-capacity", kv_capacity) if kv_capacity is not None else None,
        reuse=reuse,
        order=order,
        sample=sample,
        every_small_pool=every_small_pool,
        model=model,
        gpu=gpu,
        seed=seed,
    )
    if output is not None:
        _prepare(output)
    curves = measure_curves(asked)
    for sentence in curves.notes:
        note(sentence)
    warn(curves.warnings)
    if output is not None:
        _write(output, curves)
    if as_json:
        print_json(curves.points.to_dict("records"))
        return
    for one in curves.measured:
        title = f"{asked.workload.name} through {one.policy}, block size {one.block_size}"
        ceiling = f"ceiling {one.curve.ceiling:.4f}, reuse of {asked.reuse}"
        values = one.rows[list(SHOWN)].to_numpy(dtype=object).tolist()
        out().print(table(f"{title}: {ceiling}", SHOWN, values))


def _split(option: str, text: str) -> list[str]:
    parts = list(dict.fromkeys(part.strip() for part in text.split(",")))
    if not all(parts):
        raise UsageError(f"{option} {text!r} has an empty value in its list; leave it out.")
    return parts


def _prepare(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / ".part").write_bytes(b"")
        (folder / ".part").unlink()
    except OSError as error:
        raise UsageError(
            f"-o {folder} cannot be written ({error.strerror}); name a folder that can."
        ) from None


def _write(folder: Path, curves: Curves) -> None:
    from sim.plots.style import save  # noqa: PLC0415 - keeps --help quick

    points = curves.points
    points.to_parquet(folder / "curve_points.parquet", index=False)
    points.to_csv(folder / "curve_points.csv", index=False)
    _write_parts(folder / "curve.parquet", curves.every_capacity_by_parts())
    save(curves.plot(), folder, "curve")
    note(f"curve.parquet (all capacities), curve_points and curve.png are in {folder}.")


def _write_parts(path: Path, frames: Iterator[pd.DataFrame]) -> None:
    """Write frames that are one table; the file of a single one is what pandas writes."""
    import pyarrow as pa  # noqa: PLC0415 - keeps --help quick
    import pyarrow.parquet as pq  # noqa: PLC0415

    with ExitStack() as stack:
        writer = None
        for frame in frames:
            table = pa.Table.from_pandas(frame, preserve_index=False)
            if writer is None:
                writer = stack.enter_context(pq.ParquetWriter(path, table.schema))
            writer.write_table(table)
