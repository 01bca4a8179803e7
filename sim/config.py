"""One run is one frozen configuration; this is the one list of its settings.

The command line, TOML files of sweeps and the table of docs/settings.md are made from these fields.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import Field, asdict, dataclass, field, fields
from os import PathLike, fspath
from typing import Any, Literal, cast

from sim.capacity import is_nothing
from sim.errors import UsageError

Group = Literal["Workload", "Engine", "Policy", "Tiers", "Cost", "Arrivals"]
Args = tuple[tuple[str, str], ...]

_MAX_INT = 2**31 - 1
"""Largest whole number of a setting: what is counted stays within the 64 bits of a table."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What is known of a field: how to parse, check and explain it."""

    group: Group
    help: str
    choices: tuple[str, ...] = ()
    minimum: float | None = None
    above: float | None = None
    maximum: float | None = None
    optional: bool = False


def _setting(default: Any, group: Group, help: str, **rules: Any) -> Any:  # noqa: ANN401
    return field(default=default, metadata={"setting": Setting(group, help, **rules)})


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig:
    """Everything that decides the result of a run.

    Raises
    ------
    UsageError
        A value of the wrong type or outside its range, named by its command line option.
    """

    workload: str = _setting("shared-prefix", "Workload", "Trace file, or name of a generator.")
    workload_args: Args = field(default=())
    num_requests: int | None = _setting(
        None, "Workload", "Requests to read or generate.", minimum=1, optional=True
    )
    format: str = _setting(
        "auto",
        "Workload",
        "Format of the trace, told from its content ('auto') or given; see docs/traces.md.",
        choices=(
            "auto", "mooncake", "bailian", "burst", "azure", "tokens", "weka", "lmcache",
            "sharegpt", "openai", "text",
        ),
    )  # fmt: skip
    trace_block_size: int | None = _setting(
        None,
        "Workload",
        "Tokens that one hash id of the trace stands for; left out: the format's own.",
        minimum=1,
        optional=True,
    )
    time_unit: str = _setting(
        "auto",
        "Workload",
        "Unit of the trace's time stamps; 'auto': the format's own.",
        choices=("auto", "s", "ms", "us", "ns"),
    )
    turns: str = _setting(
        "auto",
        "Workload",
        "Whether a later turn's row holds the whole prompt or what is new; 'auto': told from the "
        "rows.",
        choices=("auto", "cumulative", "delta"),
    )
    tokenizer: str | None = _setting(
        None,
        "Workload",
        "Tokenizer of traces that hold text: a tokenizer.json, tiktoken:NAME, or bytes of UTF-8 "
        "('bytes', if left out).",
        optional=True,
    )
    lenient: bool = _setting(
        False, "Workload", "Skip and count bad rows of a trace instead of refusing it."
    )
    partial_blocks: str = _setting(
        "own",
        "Workload",
        "A prompt's partial last trace block: its own, or also that of whoever continues the "
        "prompt ('shared', an assumption).",
        choices=("own", "shared"),
    )
    system_prompt: int = _setting(
        0,
        "Workload",
        "Tokens that all prompts of the trace are assumed to begin with; its ids hide where such "
        "a prompt ends inside a block.",
        minimum=0,
    )
    policy: str = _setting(
        "vllm_v1", "Policy", "Policy by name (see 'prefixsim policies') or package.module:Class."
    )
    policy_args: Args = field(default=())
    block_size: int = _setting(16, "Engine", "Tokens in a KV cache block.", minimum=1)
    kv_capacity: str = _setting(
        "auto",
        "Engine",
        "KV cache: tokens (163840), blocks (10000blocks), the model's KV (40GiB), share of the "
        "workload's distinct prompt tokens (5%), 'infinite', or 'auto': what the GPU has left at "
        "90 % utilisation.",
    )
    reuse: str = _setting(
        "all",
        "Engine",
        "Blocks that are cached: 'all', or only those of prompts ('prefill').",
        choices=("all", "prefill"),
    )
    max_num_seqs: int = _setting(
        256, "Engine", "Sequences that run at a time; 1 serves one request at a time.", minimum=1
    )
    max_num_batched_tokens: int = _setting(
        8192, "Engine", "Tokens that a step computes at most.", minimum=1
    )
    long_prefill_token_threshold: int = _setting(
        0, "Engine", "Tokens of one sequence that a step computes at most; 0: no limit.", minimum=0
    )
    engine: str = _setting(
        "auto",
        "Engine",
        "Code that simulates: 'plain', 'fast' (compiled; the same results, for policies that have "
        "it) or 'auto': whichever is quicker.",
        choices=("auto", "plain", "fast"),
    )
    host_memory: str = _setting(
        "0",
        "Tiers",
        "Host memory for blocks that the GPU has lost, behind any policy: the model's KV (64GiB), "
        "tokens, blocks (10000blocks), share of the workload's distinct prompt tokens (50%), "
        "'infinite', or 0: none.",
    )
    host_bandwidth: float = _setting(
        25.0, "Tiers", "GB/s at which blocks are loaded from host memory.", minimum=1e-6
    )
    host_latency: float = _setting(
        20.0,
        "Tiers",
        "Microseconds that a request's load from host memory takes before its first byte.",
        minimum=0.0,
        maximum=1e9,
    )
    ssd: str = _setting(
        "0", "Tiers", "SSD for blocks behind host memory, or behind the GPU; as --host-memory."
    )
    ssd_bandwidth: float = _setting(
        5.0, "Tiers", "GB/s at which blocks are loaded from the SSD.", minimum=1e-6
    )
    ssd_latency: float = _setting(
        100.0,
        "Tiers",
        "Microseconds that a request's load from the SSD takes before its first byte.",
        minimum=0.0,
        maximum=1e9,
    )
    tier_write: str = _setting(
        "through",
        "Tiers",
        "When blocks are written to host memory and SSD: each into both as soon as it is computed "
        "('through'), or into the next tier when one loses it ('evict').",
        choices=("through", "evict"),
    )
    model: str = _setting("llama-3-8b", "Cost", "Model of the cost preset.")
    gpu: str = _setting("h100", "Cost", "GPU of the cost preset.")
    cost: str | None = _setting(
        None,
        "Cost",
        "Cost model instead of the preset's: a JSON file, or a folder of operator tables.",
        optional=True,
    )
    overhead: str = _setting(
        "vllm",
        "Cost",
        "CPU time of cache management: that of the release the policy models ('vllm'), of our own "
        "code ('own'), 'none', a profile's name (see 'prefixsim profiles') or a JSON file.",
    )
    overlap: bool = _setting(
        False, "Cost", "Manage the cache while the GPU works: a step takes the longer of the two."
    )
    cascade: float = _setting(
        0.0,
        "Cost",
        "Share of the reads of a prefix common to all running sequences that are saved by reading "
        "it once (cascade attention), 0 to 1.",
        minimum=0.0,
        maximum=1.0,
    )
    arrival: str = _setting(
        "trace",
        "Arrivals",
        "When requests arrive: as recorded, or by a process with --rate; with --sessions closed, "
        "when sessions start. 'users': --users of them, each of whom sends the next when answered.",
        choices=("trace", "poisson", "gamma", "weibull", "constant", "day", "users"),
    )
    rate: float | None = _setting(
        None, "Arrivals", "Requests per second of the process.", above=0.0, optional=True
    )
    burstiness: float = _setting(
        1.0,
        "Arrivals",
        "Shape of the gamma or Weibull process: 1 is Poisson, smaller is burstier.",
        above=0.0,
    )
    users: int | None = _setting(
        None, "Arrivals", "Users of a closed loop.", minimum=1, optional=True
    )
    duration: float | None = _setting(
        None,
        "Arrivals",
        "Leave out requests that would arrive later than so many seconds; in a closed loop, turns "
        "that would be sent later.",
        above=0.0,
        optional=True,
    )
    rate_scale: float = _setting(
        1.0, "Arrivals", "Speed up recorded arrivals by this factor.", above=0.0
    )
    sessions: str = _setting(
        "open",
        "Arrivals",
        "Turns of a session come as recorded ('open') or after the turn before ('closed').",
        choices=("open", "closed"),
    )
    seed: int = _setting(0, "Arrivals", "Seed of generator and arrival process.", minimum=0)

    def __post_init__(self) -> None:
        for setting_field in settings():
            value = getattr(self, setting_field.name)
            object.__setattr__(self, setting_field.name, _parse(setting_field, value))
        for name in ("workload_args", "policy_args"):
            object.__setattr__(self, name, _normalize_args(name, getattr(self, name)))
        for name in ("host_memory", "ssd"):
            if is_nothing(getattr(self, name)):
                object.__setattr__(self, name, "0")

    @property
    def until_ns(self) -> int | None:
        """Simulated time after which a closed loop sends nothing, ns."""
        if self.duration is None:
            return None
        # A float holds the largest time only nearly.
        return math.floor(min(self.duration * 1e9, 2.0**63 - 1024))

    def to_dict(self) -> dict[str, Any]:
        """Plain data, arguments as mappings; without ``engine``, which decides no result.

        Settings of tiers are left out at their defaults: runs had their names before tiers were.
        """
        data = {
            **asdict(self),
            "workload_args": dict(self.workload_args),
            "policy_args": dict(self.policy_args),
        }
        del data["engine"]
        for setting_field in settings():
            is_default = data.get(setting_field.name) == setting_field.default
            if is_default and setting_of(setting_field).group == "Tiers":
                del data[setting_field.name]
        return data

    @property
    def has_tiers(self) -> bool:
        """Whether there is host memory or SSD behind the policy."""
        return not (is_nothing(self.host_memory) and is_nothing(self.ssd))


def settings() -> tuple[Field[Any], ...]:
    """List the fields that are settings, in the order of their definition."""
    return tuple(f for f in fields(RunConfig) if "setting" in f.metadata)


def setting_of(setting_field: Field[Any]) -> Setting:
    """Look up what is known of a field."""
    return cast(Setting, setting_field.metadata["setting"])


def option_name(name: str) -> str:
    """Spell a setting as a command line option."""
    return "--" + name.replace("_", "-")


def kind_of(setting_field: Field[Any]) -> type:
    """Look up the type that a setting's value has when it is not left out."""
    kinds = {"str": str, "int": int, "float": float, "bool": bool}
    return kinds[str(setting_field.type).removesuffix(" | None")]


def _normalize_args(name: str, args: object) -> Args:
    option = option_name(name).removesuffix("s")
    pairs = list(args.items() if isinstance(args, Mapping) else cast(Args, args))
    if isinstance(args, str) or not all(isinstance(p, tuple | list) and len(p) == 2 for p in pairs):
        raise UsageError(f"{option} {args!r} must be pairs of key and value, such as hit_rate=0.5.")
    seen: dict[str, str] = {}
    for key, value in pairs:
        if key in seen:
            raise UsageError(f"{option} {key} is given twice; leave one out.")
        seen[key] = str(value).lower() if isinstance(value, bool) else str(value)
    return tuple(sorted(seen.items()))


def _parse(setting_field: Field[Any], value: object) -> object:
    setting, kind = setting_of(setting_field), kind_of(setting_field)
    option = option_name(setting_field.name)
    if value is None and setting.optional:
        return None
    parsed = _convert(kind, value)
    if parsed is None:
        names = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
        raise UsageError(
            f"{option} {value!r} must be {names[kind]}, such as {setting_field.default!r}."
            if setting_field.default is not None
            else f"{option} {value!r} must be {names[kind]}."
        )
    if setting.choices and parsed not in setting.choices:
        raise UsageError(f"{option} {parsed!r} must be one of {', '.join(setting.choices)}.")
    # A rate or a factor of 0 would mean that nothing ever arrives, hence `above`.
    if setting.above is not None and parsed <= setting.above:
        raise UsageError(f"{option} {parsed:g} must be greater than {setting.above:g}.")
    if setting.minimum is not None and parsed < setting.minimum:
        raise UsageError(f"{option} {parsed} must be at least {setting.minimum:g}.")
    maximum = _MAX_INT if kind is int and setting.maximum is None else setting.maximum
    if maximum is not None and parsed > maximum:
        shown = f"{maximum:,}" if kind is int else f"{maximum:g}"
        raise UsageError(f"{option} {parsed} must be at most {shown}.")
    return parsed


def _convert(kind: type, value: object) -> Any:  # noqa: ANN401
    """Turn text or a number of TOML into ``kind``; None where it is none."""
    if kind is bool:
        texts = {"true": True, "false": False}
        return texts.get(str(value).lower())
    if kind is str:
        value = fspath(value) if isinstance(value, PathLike) else value
        if isinstance(value, str) and "\0" in value:
            return None
        return str(value) if isinstance(value, str | int | float) and value != "" else None
    if isinstance(value, bool):
        return None
    try:
        number = kind(str(value))
    except ValueError:
        return None
    return number if math.isfinite(number) else None
