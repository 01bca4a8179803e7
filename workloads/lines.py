"""From a file to JSON rows, with the line that each stands on."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Generator, Iterator
from contextlib import ExitStack
from io import BufferedReader
from pathlib import Path

from sim.errors import UsageError
from workloads.fields import RowError, show

_File = BufferedReader | gzip.GzipFile

_BOM = b"\xef\xbb\xbf"
_GZIP = b"\x1f\x8b"
_DAMAGED = (EOFError, zlib.error, gzip.BadGzipFile)
_PACKED = {
    b"(\xb5/\xfd": "is compressed with zstd; unpack it first (zstd -d)",
    b"PK\x03\x04": "is a zip archive; unpack it first",
    b"PAR1": "is a Parquet file; convert it to JSON lines first",
}


def read_rows(path: Path, warnings: list[str]) -> Generator[tuple[int, object], None, None]:
    """Yield line number (from 1) and JSON value of each row; blank lines are passed over.

    Reads no further than it is asked to. Lines end with a line feed only, since other separators
    may stand inside strings. Gzip is unpacked on the way, whatever the file is called. A file
    that holds one JSON array yields its elements, each at the line it begins on.

    Parameters
    ----------
    path
        The file; need not be seekable.
    warnings
        Gets a clause for what is unusual about the file as a whole.

    Yields
    ------
    int, object
        A `RowError` in place of the value says why there is none; what follows may be good.

    Raises
    ------
    UsageError
        If the file cannot be read or is no text at all.
    """
    try:
        with ExitStack() as stack:
            raw = stack.enter_context(path.open("rb"))
            file: _File = raw
            if raw.peek(2).startswith(_GZIP):
                file = stack.enter_context(gzip.GzipFile(fileobj=raw))
            if _check_head(path, file).startswith(b"["):
                warnings.append("one JSON array instead of a JSON object per line")
                yield from _array_rows(file.read())
            else:
                yield from _line_rows(file)
    except _DAMAGED:
        raise UsageError(f"{path} is damaged or cut-off gzip data; fetch it anew.") from None
    except IsADirectoryError:
        raise UsageError(f"{path} is a directory; give one trace file in it.") from None
    except OSError as error:
        raise UsageError(
            f"{path} cannot be read ({error.strerror or error}); give a file that can."
        ) from None


def _check_head(path: Path, file: _File) -> bytes:
    """Return the beginning without BOM and blanks, and refuse what is plainly no trace."""
    head = file.peek(4096)
    for magic, fault in _PACKED.items():
        if head.startswith(magic):
            raise UsageError(f"{path} {fault}.")
    if b"\0" in head:
        raise UsageError(
            f"{path} is binary or not UTF-8 text; give a trace of one JSON object per line."
        )
    head = head.removeprefix(_BOM).lstrip()
    if head.startswith(b"<"):
        raise UsageError(
            f"{path}:1: looks like HTML, a web page saved in place of the trace; download the file"
            " itself (its raw link)."
        )
    if head.startswith(b"version https://git-lfs"):
        raise UsageError(
            f"{path}:1: is a Git LFS pointer, not the trace itself; fetch it with git lfs pull."
        )
    return head


def _line_rows(file: _File) -> Iterator[tuple[int, object]]:
    number = 0
    while True:
        number += 1
        try:
            line = file.readline()
        except _DAMAGED:
            yield number, RowError("the compressed data is damaged or cut off here")
            return
        if not line:
            return
        if number == 1:
            line = line.removeprefix(_BOM)
        if line.strip():
            yield number, _parse(line)


def _parse(line: bytes) -> object:
    try:
        return json.loads(line.decode("utf-8"))
    except UnicodeDecodeError:
        return RowError("the line is not UTF-8 text")
    except RecursionError:
        return RowError("the line is nested too deeply")
    except ValueError as error:
        text = line.decode("utf-8").strip()
        if not text.startswith("{"):
            return RowError(
                f"{show(text)} is not a JSON object", "give a trace of one JSON object per line"
            )
        if not line.endswith(b"\n"):
            return RowError(
                "the last line is cut off in the middle of a row", "fetch the file anew"
            )
        reason = error.msg if isinstance(error, json.JSONDecodeError) else "a number is too long"
        return RowError(f"{show(text)} is not a whole JSON object ({reason})")


def _array_rows(data: bytes) -> Iterator[tuple[int, object]]:
    text = data.decode("utf-8-sig", "replace")
    decoder = json.JSONDecoder()
    at = text.index("[") + 1
    counted, line = 0, 1
    while True:
        while at < len(text) and text[at] in ", \t\r\n":
            at += 1
        line += text.count("\n", counted, at)
        counted = at
        if text[at : at + 1] == "]":
            return
        try:
            row, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            yield line, RowError("the JSON array is cut off or broken here")
            return
        yield line, row
