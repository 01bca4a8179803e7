"""What a block size gains and costs, as numbers and as a picture."""

import json

import pandas as pd
import pytest

import sim
from sim import plots
from sim.errors import UsageError
from sim.waste import unfilled_share

SMALL = {"num_requests": 20, "workload_args": {"prompt": 60, "output": 5, "num_prefixes": 2}}


@pytest.fixture(scope="module")
def results():
    return sim.sweep(
        policy=["none", "vllm_v1"], block_size=[8, 16, 32], kv_capacity="infinite", **SMALL
    )


def panels(figure):
    """The lines of the policies by the label of their panel."""
    return {
        ax.get_ylabel().split("\n")[0]: {
            line.get_label(): line.get_ydata() for line in ax.get_lines()
        }
        for ax in figure.axes
    }


def test_unfilled_slots_by_hand():
    summary = pd.DataFrame({"run_id": ["b", "a", "c"], "block_size": [4, 8, 4]}, index=[7, 8, 9])
    requests = pd.DataFrame(
        [
            # 5 + 3 - 1 = 7 tokens: one slot of 8 is left
            ("a", "finished", 5, 3),
            ("b", "finished", 5, 3),
            # 4 tokens fill a block of 4; what was rejected held nothing
            ("b", "finished", 4, 0),
            ("b", "rejected", 9, 1),
            ("c", "rejected", 9, 1),
            ("of another run", "finished", 9, 1),
        ],
        columns=["run_id", "status", "num_prompt_tokens", "num_output_tokens"],
    )
    shares = unfilled_share(summary, requests)
    assert shares.index.tolist() == [7, 8, 9]
    assert shares.tolist()[:2] == pytest.approx([1 / 12, 1 / 8])
    assert pd.isna(shares[9])


def test_three_panels_show_the_tables(results):
    shown = panels(results.plot.trade_off())
    assert list(shown) == ["hit rate (%)", "cache management", "unfilled slots"]
    mine = results.summary[results.summary["policy"] == "vllm_v1"].sort_values("block_size")
    assert list(shown["hit rate (%)"]["vllm_v1"]) == pytest.approx(100 * mine["hit_rate"])
    assert list(shown["cache management"]["vllm_v1"]) == pytest.approx(100 * mine["overhead_share"])
    # 64 tokens in a request: 8, 4 and 2 full blocks.
    assert list(shown["unfilled slots"]["none"]) == [0, 0, 0]


def test_one_block_size_is_no_trade_off():
    run = sim.run(**SMALL)
    with pytest.raises(UsageError, match="needs two block sizes at one policy and KV capacity"):
        run.plot.trade_off()


def test_nothing_finished_leaves_nothing_to_draw(results):
    none = results.requests.assign(status="rejected")
    with pytest.raises(UsageError, match="no request finished"):
        plots.block_size_trade_off(results.summary, none)


def test_a_trace_without_prefixes_has_two_panels(tmp_path):
    path = tmp_path / "plain.jsonl"
    row = {"timestamp": 0, "input_length": 64, "output_length": 3}
    path.write_text(json.dumps(row))
    figure = sim.sweep(workload=str(path), block_size=[8, 16]).plot.trade_off()
    assert list(panels(figure)) == ["cache management", "unfilled slots"]
    assert "not known" in plots.notes_of(figure)[0]
    assert list(panels(figure)["unfilled slots"]["vllm_v1"]) == pytest.approx([100 / 12, 17.5])
