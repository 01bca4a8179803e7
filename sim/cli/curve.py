"""``prefixsim curve``: hit rate against KV capacity, for every capacity in one pass."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sim.cli.options import settings_of, with_settings
from sim.cli.output import note, out, print_json, table, warn
from sim.config import Group, RunConfig
from sim.errors import UsageError

if TYPE_CHECKING:
    from sim.cli.curve_rows import Measured

_GROUPS: tuple[Group, ...] = ("Workload",)
_SHOWN = (
    "mark",
    "num_blocks",
    "kv_capacity_tokens",
    "kv_capacity_gib",
    "working_set_share",
    "hit_rate",
    "ceiling_share",
    "belady_hit_rate",
    "num_refused",
)


@with_settings(_GROUPS)
def command(  # noqa: PLR0917 - the command line passes them by name
    policy: Annotated[
        str | None,
        typer.Option(
            "--policy",
            metavar="TEXT,...",
            help="vllm_v1, vllm_v1_latest or both (default: vllm_v1).",
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
    model: Annotated[str, typer.Option("--model", help="Model whose KV fills the capacity.")] = (
        "llama-3-8b"
    ),
    gpu: Annotated[str, typer.Option("--gpu", help="GPU, for --kv-capacity auto.")] = "h100",
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
    from sim import experiment  # noqa: PLC0415 - keeps --help quick
    from sim.cli.curve_rows import RELEASES, STORE, Asked, concat, measure  # noqa: PLC0415
    from sim.curve import before_compiling  # noqa: PLC0415
    from sim.presets import load_preset  # noqa: PLC0415

    head_first = _head_first(order, policy, reuse, sample)
    names = [STORE] if head_first else _policies(policy or "vllm_v1", list(RELEASES))
    if sample < 1:
        raise UsageError(f"--sample {sample} must be at least 1: one in so many blocks is drawn.")
    # Settings of a run parse these, so that a bad value is named in the same words. An arrival
    # process makes no difference, but with one a row needs no time stamp.
    given = {**settings_of(chosen), "seed": seed, "reuse": reuse or "all"}
    configs = [
        RunConfig(**given, arrival="constant", rate=1.0, block_size=size)  # type: ignore[arg-type]
        for size in _split("--block-size", block_size)
    ]
    asked_for = tuple(_split("--kv-capacity", kv_capacity)) if kv_capacity is not None else ()
    preset = load_preset(model, gpu)
    workload = experiment.load_workload(configs[0])
    if not workload.has_prefix_info:
        raise UsageError(
            f"{workload.name} says nothing about shared prefixes, so there is no curve; give a "
            "trace with hash_ids, or a generator."
        )
    asked = Asked(
        workload=workload,
        reuse="prefill" if head_first else configs[0].reuse,
        head_first=head_first,
        stride=sample,
        seed=seed,
        every_small_pool=every_small_pool,
        capacities=asked_for,
        preset=preset,
    )
    if output is not None:
        _prepare(output)
    measured: list[Measured] = []
    with before_compiling(_say_compiling):
        for config in configs:
            measured += measure(asked, names, config.block_size)
    warn(workload.warnings)
    for sentence in workload.notes:
        note(sentence)
    warn(dict.fromkeys(_doubts(asked, measured)))
    if output is not None:
        _write(output, measured, asked)
    rows = concat(measured)
    if as_json:
        print_json(rows.to_dict("records"))
        return
    for one in measured:
        title = f"{workload.name} through {one.policy}, block size {one.block_size}"
        ceiling = f"ceiling {one.curve.ceiling:.4f}, reuse of {asked.reuse}"
        values = one.rows[list(_SHOWN)].to_numpy(dtype=object).tolist()
        out().print(table(f"{title}: {ceiling}", _SHOWN, values))


def _say_compiling() -> None:
    note("compiling the curve for this machine, once; some 20 s.")


def _head_first(order: str, policy: str | None, reuse: str | None, sample: int) -> bool:
    if order not in ("tail", "head"):
        raise UsageError(f"--order {order!r} must be one of tail, head.")
    if order == "tail":
        return False
    if policy is not None:
        raise UsageError(
            f"--policy {policy!r} has no meaning with --order head, which is a store of prompts "
            "beside the engine; leave one of them out."
        )
    if reuse == "all":
        raise UsageError(
            "--reuse 'all' has no meaning with --order head, a store of prompts; leave it out."
        )
    if sample != 1:
        raise UsageError(
            f"--sample {sample} is for --order tail only; leave it out to get the exact curve."
        )
    return True


def _policies(text: str, known: list[str]) -> list[str]:
    names = _split("--policy", text)
    for name in names:
        if name not in known:
            raise UsageError(
                f"--policy {name!r} has no curve in one pass; choose {' or '.join(known)}, or use "
                "'prefixsim sweep' over several --kv-capacity."
            )
    return names


def _split(option: str, text: str) -> list[str]:
    parts = list(dict.fromkeys(part.strip() for part in text.split(",")))
    if not all(parts):
        raise UsageError(f"{option} {text!r} has an empty value in its list; leave it out.")
    return parts


def _doubts(asked: Any, measured: list[Measured]) -> list[str]:  # noqa: ANN401
    from sim.experiment import doubts_about_sharing  # noqa: PLC0415 - keeps --help quick

    doubts = []
    for one in measured:
        doubts += doubts_about_sharing(asked.workload, one.block_size)
        refusing = one.rows[one.rows["num_refused"] > 0]
        if len(refusing):
            smallest = int(one.curve.num_blocks[one.curve.first])
            doubts.append(
                f"pools of less than {smallest:,} blocks of {one.block_size} tokens refuse the "
                "largest requests, which then count in no rate: rates do not compare below that."
            )
        if asked.stride > 1:
            doubts.append(
                f"hit rates are estimates from one in {asked.stride} blocks; leave --sample out "
                "for the exact curve."
            )
    return doubts


def _prepare(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / ".part").write_bytes(b"")
        (folder / ".part").unlink()
    except OSError as error:
        raise UsageError(
            f"-o {folder} cannot be written ({error.strerror}); name a folder that can."
        ) from None


def _write(folder: Path, measured: list[Measured], asked: Any) -> None:  # noqa: ANN401
    import pandas as pd  # noqa: PLC0415 - keeps --help quick

    from sim.cli.curve_rows import concat  # noqa: PLC0415
    from sim.plots.curve import CurveLine, draw_curves  # noqa: PLC0415
    from sim.plots.style import save  # noqa: PLC0415

    rows = concat(measured)
    rows.to_parquet(folder / "curve_points.parquet", index=False)
    rows.to_csv(folder / "curve_points.csv", index=False)
    everything = [one.all_capacities for one in measured]
    pd.concat(everything, ignore_index=True).to_parquet(folder / "curve.parquet", index=False)
    lines = [
        CurveLine(
            label=f"{one.policy}, block size {one.block_size}",
            points=frame,
            ceiling=one.curve.ceiling,
            knee_tokens=one.curve.knee() * one.block_size if one.curve.ceiling else None,
            belady=one.belady,
        )
        for one, frame in zip(measured, everything, strict=True)
    ]
    figure = draw_curves(
        lines,
        setting=f"{asked.workload.name}, one request at a time, reuse of {asked.reuse}",
        gib_per_token=asked.preset.model.kv_bytes_per_token / 2**30,
        model=asked.preset.model_name,
    )
    save(figure, folder, "curve")
    note(f"curve.parquet (all capacities), curve_points and curve.png are in {folder}.")
