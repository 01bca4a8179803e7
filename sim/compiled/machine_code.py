"""A kernel's machine code, loaded and called without numba.

numba takes half a second to import and to look a function up in its own cache, which is as much as
a short run takes in all. What it makes is an object file like any other, and llvmlite alone, on
which numba rests, links one into the process in some milliseconds.

numba compiles a function to one of C, ``status f(result *, error **, ...)``, whose arguments are
those of Python taken apart: a named tuple is its fields, one after the other, and an array is
(owner, owner, number of elements, bytes of one, address, shape, strides); nobody owns ours. Both
are checked against the machine code when it is made.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable
from ctypes import CFUNCTYPE, byref, c_double, c_int32, c_int64, c_uint8, c_void_p
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from llvmlite import binding

_C_NAMES: dict[type[Any], tuple[str, ...]] = {
    c_int64: ("i64", "ptr", "i8*"),
    c_double: ("double",),
    c_uint8: ("i8",),
}
"""What LLVM calls the types that arguments are taken apart into."""

Call = Callable[..., int]


def host() -> tuple[str, str]:
    """Name the processor and what it can do, which machine code depends on."""
    return binding.get_host_cpu_name(), binding.get_host_cpu_features().flatten()


class MachineCode:
    """A function that takes numbers, arrays, and named tuples of these, and returns an int.

    Parameters
    ----------
    function
        What is compiled. It makes no arrays and raises no errors, and whole numbers are int64.
    folder
        Gives the folder where machine code is kept, if any.
    before_compiling
        Called before something is compiled.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        folder: Callable[[], Path | None],
        before_compiling: Callable[[], None],
    ) -> None:
        self._function = function
        self._folder = folder
        self._before_compiling = before_compiling
        self._calls: dict[str, Call] = {}
        # The named tuples of the last call and what they came to: the next call has the same.
        self._tuples: tuple[Any, ...] = ()
        self._call: Call
        self._words: list[Any] = []
        self.__doc__ = function.__doc__

    def __call__(self, *args: Any) -> int:  # noqa: ANN401
        """Call the machine code, which is loaded or made first."""
        tuples = tuple(arg for arg in args if isinstance(arg, tuple))
        numbers = args[len(tuples) :]
        if len(tuples) != len(self._tuples) or any(
            one is not other for one, other in zip(tuples, self._tuples, strict=True)
        ):
            self._take(tuples, args)
        result, error = c_int64(), c_void_p()
        status = self._call(byref(result), byref(error), *self._words, *numbers)
        if status:
            raise RuntimeError(f"{self._function.__qualname__} ended with status {status}")
        return result.value

    def _take(self, tuples: tuple[Any, ...], args: tuple[Any, ...]) -> None:
        """Take apart what is the same in many calls, and find the code for arguments like these."""
        kinds: list[type[Any]] = []
        words: list[Any] = []
        spelt = "".join(_take_apart(arg, kinds, words) for arg in args)
        if spelt not in self._calls:
            symbol, code = self._find(spelt, args, kinds)
            self._calls[spelt] = CFUNCTYPE(c_int32, c_void_p, c_void_p, *kinds)(_load(symbol, code))
        self._call = self._calls[spelt]
        self._words = words[: len(words) - (len(args) - len(tuples))]
        self._tuples = tuples

    def _find(self, spelt: str, args: tuple[Any, ...], kinds: list[type[Any]]) -> tuple[str, bytes]:
        folder = self._folder()
        digest = hashlib.sha256(spelt.encode()).hexdigest()[:16]
        path = folder / f"{self._function.__name__}-{digest}.o" if folder is not None else None
        if path is not None and path.is_file():
            symbol, _, code = path.read_bytes().partition(b"\0")
            return symbol.decode(), code
        self._before_compiling()
        made = _compile(self._function, args, kinds)
        if path is not None and os.access(path.parent, os.W_OK):
            _write_whole(path, made[0].encode() + b"\0" + made[1])
        return made


def _take_apart(value: object, kinds: list[type[Any]], words: list[Any]) -> str:
    """Add the C values that a value is passed as, and spell its type."""
    if isinstance(value, tuple):
        return f"({''.join(_take_apart(field, kinds, words) for field in value)})"
    if isinstance(value, np.ndarray):
        assert value.flags.c_contiguous
        shape, strides = list(value.shape), list(value.strides)
        words += [0, 0, value.size, value.itemsize, value.ctypes.data, *shape, *strides]
        kinds += [c_int64] * (5 + 2 * value.ndim)
        return f"[{value.ndim} {value.flags.aligned} {value.dtype.descr}]"
    kind = {bool: c_uint8, int: c_int64, float: c_double}[type(value)]
    words.append(value)
    kinds.append(kind)
    return f"{type(value).__name__} "


def _compile(
    function: Callable[..., Any], args: tuple[Any, ...], kinds: list[type[Any]]
) -> tuple[str, bytes]:
    """Compile a function for arguments like these; return its symbol and an object file."""
    import numba  # noqa: PLC0415
    from numba.core import compiler, registry  # noqa: PLC0415

    target = registry.cpu_target
    target.typing_context.refresh()
    target.target_context.refresh()
    flags = compiler.Flags()
    # Both wrappers call Python. Without memory management nothing is left that needs numba.
    flags.no_cpython_wrapper = True
    flags.no_cfunc_wrapper = True
    result: Any = compiler.compile_extra(
        target.typing_context,
        target.target_context,
        function,
        tuple(numba.typeof(arg) for arg in args),
        numba.int64,
        flags,
        {},
    )
    symbol: str = result.fndesc.llvm_func_name
    module = result.library._final_module
    needed = [f.name for f in module.functions if f.is_declaration]
    assert all(name.startswith("llvm.") for name in needed), needed
    found = [str(argument.type) for argument in module.get_function(symbol).arguments][2:]
    assert len(found) == len(kinds), (found, kinds)
    assert all(name in _C_NAMES[kind] for name, kind in zip(found, kinds, strict=True)), found
    code: bytes = result.library._get_compiled_object()
    return symbol, code


@cache
def _linker() -> Any:  # noqa: ANN401 - llvmlite has no types
    """Make the engine that holds all machine code of this process."""
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    triple = binding.get_process_triple()
    if os.name == "nt":
        triple += "-elf"  # as numba has it: MCJIT cannot link what Windows calls objects
    machine = binding.Target.from_triple(triple).create_target_machine(jit=True)
    return binding.create_mcjit_compiler(
        binding.parse_assembly(f'target triple = "{triple}"'), machine
    )


def _load(symbol: str, code: bytes) -> int:
    """Link an object file into the process; return the address of its function."""
    linker = _linker()
    linker.add_object_file(binding.ObjectFileRef.from_data(code))
    linker.finalize_object()
    address: int = linker.get_function_address(symbol)
    return address


def _write_whole(path: Path, data: bytes) -> None:
    """Write a file whole or not at all; another process may be writing the same."""
    try:
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as part:
            part.write(data)
        Path(part.name).replace(path)
    except OSError:
        pass  # it is compiled again next time
