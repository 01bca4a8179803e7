"""Tables of measured times: written, read back, laid out as vLLM's."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from sim.errors import UsageError

ENDINGS = (".csv", ".parquet")
CELL = ["block_size_tokens", "prompt_tokens", "target_hit_rate"]


def check_ending(option: str, path: Path) -> None:
    """Refuse a name that does not say how its table is stored.

    Raises
    ------
    UsageError
        Neither .csv nor .parquet.
    """
    if path.suffix not in ENDINGS:
        raise UsageError(
            f"{option} {path} must end in {' or '.join(ENDINGS)}, which says how it is written; "
            "rename it."
        )


def write_table(table: pd.DataFrame, path: Path) -> None:
    """Write a table, times with four digits in a CSV.

    Raises
    ------
    UsageError
        The file cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".csv":
            table.to_csv(path, index=False, float_format="%.4g")
        else:
            table.to_parquet(path, index=False)
    except OSError as error:
        raise UsageError(
            f"--output {path} cannot be written ({error.strerror or error}); name another file."
        ) from error


def read_table(path: Path, columns: tuple[str, ...]) -> pd.DataFrame:
    """Read a table that `write_table` wrote.

    Raises
    ------
    UsageError
        The file cannot be read, or lacks any of ``columns``.
    """
    check_ending("--from", path)
    try:
        table = pd.read_csv(path) if path.suffix == ".csv" else pd.read_parquet(path)
    except (OSError, ValueError) as error:
        # pandas' and pyarrow's own errors for a broken file are ValueErrors.
        raise UsageError(
            f"--from {path} cannot be read ({error}); name a table that 'prefixsim overhead -o' "
            "wrote."
        ) from error
    missing = [name for name in columns if name not in table]
    if missing:
        raise UsageError(
            f"--from {path} lacks the columns {', '.join(missing[:3])}"
            f"{', ...' if len(missing) > 3 else ''}; name a table that 'prefixsim overhead -o' "
            "of this version wrote, or measure again."
        )
    return table


def wide(table: pd.DataFrame) -> pd.DataFrame:
    """Give a row per policy and cell, with the columns of vLLM's table.

    As there, ``allocate`` includes hashing and lookup, and means include the garbage collector.
    ``evicted_blocks`` and ``scanned_entries`` are per admission.
    """
    columns = {"request": "allocate", "append": "append", "free": "free"}
    indexed = table.set_index(["policy", *CELL])
    requests = indexed[indexed["operation"] == "request"]
    result = pd.DataFrame(
        {
            "measured_hit_rate": requests["measured_hit_rate"],
            "num_blocks": requests["num_blocks"],
            "requests_timed": requests["num_samples"],
        }
    )
    for operation, name in columns.items():
        rows = indexed[indexed["operation"] == operation]
        result[f"{name}_us_p50"] = rows["p50_us"]
        result[f"{name}_us_mean"] = rows["mean_us"] + rows["gc_us_mean"]
    result["evicted_blocks"] = requests["evicted_blocks_per_request"]
    result["scanned_entries"] = requests["scanned_entries_per_request"]
    return result.reset_index()
