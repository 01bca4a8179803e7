"""Runs a workload under observation; puts workload, policy and story together."""

from __future__ import annotations

import json
from collections.abc import Sequence as Many
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np

from sim import experiment
from sim.config import RunConfig
from sim.cost import LinearCost
from sim.demand import load_workload, prepare_requests
from sim.errors import UsageError
from sim.experiment import build_engine
from sim.explain import Enough, Observer, Story
from sim.explain.examples import EXAMPLES, Example
from sim.explain.page import page
from sim.inputs import num_blocks_of
from sim.jsonable import without_nan
from sim.recorder import Recorder, rejection
from sim.types import Allocator, Clock, Request
from workloads.content import Interner, TokenIds

MAX_BLOCKS = 256
"""Larger pools cannot be shown whole."""

_STEP_NS = 1_000_000


def check(config: RunConfig, example: str | None = None) -> None:
    """Fail early on what can be seen without running; see `sim.experiment.check`."""
    experiment.check(config if example is None else replace(config, workload="shared-prefix"))


def tell(config: RunConfig, *, example: str | None = None, limit: int | None = None) -> Story:
    """Run a configuration and tell its first events.

    Parameters
    ----------
    config
        What to simulate; of an example, only the policy and its options count.
    example
        Of `sim.explain.examples.EXAMPLES`, instead of the configuration's workload.
    limit
        Events to tell at most; the run ends with the last one.

    Raises
    ------
    UsageError
        No such example, or a pool too large to be shown.
    """
    config, requests, num_blocks = _prepare(config, example)
    if num_blocks > MAX_BLOCKS:
        raise UsageError(
            f"--kv-capacity {config.kv_capacity!r} is {num_blocks} blocks, more than the "
            f"{MAX_BLOCKS} that can be shown; give a smaller one, such as --kv-capacity 20blocks, "
            "or ask for one request with --request ID."
        )
    story = Story(config.policy, config.block_size, num_blocks)
    _run(config, requests, num_blocks, is_example=example is not None, story=story, limit=limit)
    return story


def tell_request(config: RunConfig, request_id: str, *, example: str | None = None) -> list[str]:
    """Run a configuration and say where the cached tokens of one request came from.

    Raises
    ------
    UsageError
        No such request, or it was never admitted.
    """
    config, requests, num_blocks = _prepare(config, example)
    if request_id not in {request.request_id for request in requests}:
        shown = ", ".join(request.request_id for request in requests[:3])
        raise UsageError(
            f"--request {request_id!r} is not in the workload; its requests are {shown}, ..."
        )
    observer = _run(
        config, requests, num_blocks, is_example=example is not None, request_id=request_id
    )
    if not observer.admission:
        raise UsageError(
            f"--request {request_id!r} was never admitted: it needs more than the pool's "
            f"{num_blocks} blocks; raise --kv-capacity."
        )
    return observer.admission


def write(stories: Many[Story], path: Path, title: str, command: str) -> None:
    """Write stories as a page (.html), a storyboard (.png and .svg, both) or data (.json).

    Raises
    ------
    UsageError
        The file cannot be written.
    """
    try:
        if path.suffix == ".html":
            path.write_text(page(stories, title, command), encoding="utf-8")
        elif path.suffix == ".json":
            data = without_nan({"stories": [story.to_dict() for story in stories]})
            path.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
        else:
            from sim.plots.storyboard import storyboard  # noqa: PLC0415 - matplotlib is slow
            from sim.plots.style import save  # noqa: PLC0415

            save(storyboard(stories, title), path.parent, path.stem)
    except OSError as error:
        raise UsageError(
            f"-o {path} cannot be written ({error.strerror}); name a file in a folder that exists."
        ) from error


def _prepare(config: RunConfig, example: str | None) -> tuple[RunConfig, Many[Request], int]:
    if example is None:
        workload = load_workload(config)
        requests = prepare_requests(config, workload)
        return config, requests, num_blocks_of(config, workload)
    if example not in EXAMPLES:
        raise UsageError(f"--example {example!r} must be one of {', '.join(EXAMPLES)}.")
    told = EXAMPLES[example]
    config = replace(
        config,
        workload=example,
        block_size=told.block_size,
        kv_capacity=f"{told.num_blocks}blocks",
        overhead="none",
        policy_args=config.policy_args or _ARTICLE_ARGS.get(config.policy, ()),
    )
    return config, _requests_of(told), told.num_blocks


# Drawings number blocks from 0 and know no watermark.
_ARTICLE_ARGS = {
    "vllm_v1": (("null_block", "false"),),
    "vllm_v1_latest": (("null_block", "false"),),
    "vllm_v0": (("watermark", "0"),),
    "vllm_v0_scan": (("watermark", "0"),),
}


def _requests_of(example: Example) -> tuple[Request, ...]:
    interner = Interner()
    return tuple(
        Request(
            str(index),
            step * _STEP_NS,
            TokenIds(np.array([ord(letter) for letter in prompt + output]), interner),
            len(prompt),
            len(output),
        )
        for index, (step, prompt, output) in enumerate(example.requests)
    )


def _run(
    config: RunConfig,
    requests: Many[Request],
    num_blocks: int,
    *,
    is_example: bool,
    story: Story | None = None,
    limit: int | None = None,
    request_id: str | None = None,
) -> Observer:
    observers: list[Observer] = []

    class Telling(Recorder):
        """Tells of requests that the allocator never sees."""

        def rejected(self, request: Request, num_needed_blocks: int, num_blocks: int) -> None:
            super().rejected(request, num_needed_blocks, num_blocks)
            observers[0].rejected(request, rejection(num_needed_blocks, num_blocks))

    def wrap(allocator: Allocator, clock: Clock) -> Allocator:
        observer = Observer(
            allocator, clock, story, request_id=request_id, limit=limit, letters=is_example
        )
        observers.append(observer)
        return observer

    cost = LinearCost(_STEP_NS, 0, 0) if is_example else None
    engine = build_engine(config, num_blocks, Telling(), wrap=wrap, cost=cost)
    with suppress(Enough):
        engine.run(requests)
    return observers[0]
