"""Finds policies: by file name in this folder, or as ``package.module:Class`` outside it."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import policies
from sim.errors import UsageError
from sim.types import Allocator, Clock

_METHODS = (
    "match_prefix",
    "allocate",
    "cache_blocks",
    "free",
    "usage",
    "block_table",
    "max_request_blocks",
)

_EVERY_POLICY_TAKES = ("num_blocks", "block_size", "clock")


def names() -> list[str]:
    """List the policies that ship with the package."""
    found = (module.name for module in pkgutil.iter_modules(policies.__path__))
    return sorted(name for name in found if not name.startswith("_"))


def load(name: str) -> type[Allocator]:
    """Import a policy class.

    Raises
    ------
    UsageError
        No such policy, module or class, or the class is no allocator.
    """
    if ":" not in name:
        is_loaded = f"policies.{name}" in sys.modules and name[:1] != "_"
        if not is_loaded and name not in names():  # which looks into the folder
            raise UsageError(
                f"--policy {name!r} is not a policy: choose one of {', '.join(names())}, or name "
                "your own class as package.module:Class."
            )
        shipped: type[Allocator] = importlib.import_module(f"policies.{name}").POLICY
        return shipped
    return _load_from_outside(name)


def _load_from_outside(name: str) -> type[Allocator]:
    module_name, _, class_name = name.partition(":")
    # A policy under development lies in the user's working folder.
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        module = importlib.import_module(module_name)
    except (ImportError, ValueError, TypeError) as error:
        raise UsageError(
            f"--policy {name!r}: module {module_name!r} cannot be imported ({error}); run in the "
            "folder that holds it or install its package."
        ) from error
    except (Exception, SystemExit) as error:
        raise UsageError(
            f"--policy {name!r}: importing module {module_name!r} raised {type(error).__name__} "
            f"({error}); mend the module."
        ) from error
    found: Any = getattr(module, class_name, None)
    if not inspect.isclass(found):
        raise UsageError(
            f"--policy {name!r}: module {module_name!r} has no class {class_name!r}; name a class "
            "as package.module:Class."
        )
    missing = [method for method in _METHODS if not hasattr(found, method)]
    if missing:
        raise UsageError(
            f"--policy {name!r}: class {class_name!r} lacks {', '.join(missing)}; implement "
            "sim.types.Allocator."
        )
    policy: Any = found
    return policy  # type: ignore[no-any-return]


def variants() -> dict[str, str]:
    """Map the variants of recorded logs to the policy that reproduces them."""
    return {variant: name for name in names() for variant in getattr(load(name), "variants", ())}


def options(policy: type[Allocator]) -> dict[str, inspect.Parameter]:
    """List the keyword options of a policy beyond what every policy takes."""
    parameters = inspect.signature(policy).parameters.values()
    return {
        p.name: p
        for p in parameters
        if p.kind is inspect.Parameter.KEYWORD_ONLY and p.name not in _EVERY_POLICY_TAKES
    }


def convert_args(
    name: str, policy: type[Allocator], args: Mapping[str, object]
) -> dict[str, object]:
    """Check options against the constructor and turn text into the type of the default.

    Raises
    ------
    UsageError
        An option that the policy does not have, or a value of another type.
    """
    known = options(policy)
    converted: dict[str, object] = {}
    for key, value in args.items():
        if key not in known:
            choice = f"it takes {', '.join(known)}" if known else "it takes none"
            raise UsageError(f"--policy-arg {key}: policy {name!r} has no such option; {choice}.")
        converted[key] = _convert(key, value, known[key].default)
    return converted


def _convert(key: str, value: object, default: object) -> object:
    kind = type(default)
    if default is inspect.Parameter.empty or default is None or isinstance(value, kind):
        return value
    if kind is bool and str(value).lower() in ("true", "false"):
        return str(value).lower() == "true"
    if kind in (int, float) and not isinstance(value, bool):
        try:
            return kind(str(value))
        except ValueError:
            pass
    rules = {bool: "true or false", int: "a whole number", float: "a number"}
    rule = rules.get(kind, f"of type {kind.__name__}")
    shown = str(default).lower() if kind is bool else str(default)
    raise UsageError(f"--policy-arg {key}={value} must be {rule}, such as {shown}.")


def make(
    name: str,
    *,
    num_blocks: int,
    block_size: int,
    clock: Clock,
    args: Mapping[str, object] | None = None,
) -> Allocator:
    """Make the allocator of a policy with ``num_blocks`` usable blocks."""
    policy: Any = load(name)
    options = convert_args(name, policy, args or {})
    try:
        allocator: Allocator = policy(
            num_blocks=num_blocks, block_size=block_size, clock=clock, **options
        )
    except UsageError:
        raise
    except (Exception, SystemExit) as error:
        if ":" not in name:
            raise
        raise UsageError(
            f"--policy {name!r} cannot be made ({type(error).__name__}: {error}); its constructor "
            "takes num_blocks, block_size and clock, and options of its own as keywords with a "
            "default."
        ) from error
    return allocator
