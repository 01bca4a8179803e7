"""KV memory that blocks waste: slots of a request's last block that never hold a token."""

from __future__ import annotations

import pandas as pd


def unfilled_share(summary: pd.DataFrame, requests: pd.DataFrame) -> pd.Series[float]:
    """Compute the share of unfilled slots in the blocks of finished requests, at their end.

    Blocks count once for every request that holds them, shared or not, and all requests weigh by
    the blocks that they hold. The last output token has no slot, since it is never fed back.

    Parameters
    ----------
    summary, requests
        Rows of the tables of these names; requests of other runs are left out.

    Returns
    -------
    pd.Series[float]
        Unfilled / all slots, 0 to 1, with the index of ``summary``; NaN where nothing finished.
    """
    mine = requests["run_id"].isin(summary["run_id"])
    done = requests[mine & (requests["status"] == "finished")]
    sizes = done["run_id"].map(summary.set_index("run_id")["block_size"]).astype("int64")
    tokens = done["num_prompt_tokens"] + (done["num_output_tokens"] - 1).clip(lower=0)
    slots = -(-tokens // sizes) * sizes
    sums = pd.DataFrame({"tokens": tokens, "slots": slots}).groupby(done["run_id"]).sum()
    return summary["run_id"].map(1 - sums["tokens"] / sums["slots"]).astype("float64")
