"""Where a trace comes from: a file, standard input, a folder or an archive; packed or plain.

Everything is read once, from front to back, so that pipes will do and nothing has to fit memory.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import sys
import tarfile
import zlib
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from sim.errors import UsageError

HEAD = 1 << 16
"""Bytes that can be looked at before they are read."""

STDIN = "-"
_BOM = b"\xef\xbb\xbf"
_GZIP = b"\x1f\x8b"
_ZSTD = b"\x28\xb5\x2f\xfd"
_WIDE = {
    b"\xff\xfe\0\0": "UTF-32",
    b"\0\0\xfe\xff": "UTF-32",
    b"\xff\xfe": "UTF-16",
    b"\xfe\xff": "UTF-16",
    b"{\0": "UTF-16LE",
    b"[\0": "UTF-16LE",
    b"\0{": "UTF-16BE",
    b"\0[": "UTF-16BE",
}
"""How text of other widths begins, with a byte order mark or with JSON."""
_EMPTY_ZSTD = 20
"""Bytes that a frame of nothing takes at most."""
_PACKED = {
    b"PK\x03\x04": "is a zip archive; unpack it first",
    b"BZh": "is compressed with bzip2; unpack it first (bzip2 -d)",
    b"\xfd7zXZ": "is compressed with xz; unpack it first (xz -d)",
    b"\x04\x22\x4d\x18": "is compressed with LZ4; unpack it first (lz4 -d)",
    b"PAR1": "is a Parquet file; convert it to JSON lines first",
}
_MEMBERS = (".json", ".jsonl", ".csv", ".ndjson", ".gz", ".zst")


class DamagedError(Exception):
    """Compressed data that cannot be unpacked to its end; says what it is compressed with."""


@dataclass(slots=True)
class Part:
    """One file of a source: all of it, or a member of a folder or archive.

    Attributes
    ----------
    name
        As messages spell it.
    stem
        Its own name without folder and endings.
    file
        Its content, unpacked.
    """

    name: str
    stem: str
    file: io.BufferedReader


class Source:
    """A trace as bytes, told apart by a digest of what was read.

    Parameters
    ----------
    path
        A file, a folder, or ``-`` for standard input.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        self.is_stdin = self.path == STDIN
        self.name = "standard input" if self.is_stdin else self.path
        self.stem = "stdin" if self.is_stdin else stem_of(self.path)
        self._sha256 = hashlib.sha256()

    @property
    def digest(self) -> str:
        """SHA-256 of the bytes read so far, as they lie in the source, names of members too."""
        return self._sha256.hexdigest()

    def parts(self) -> Generator[Part, None, None]:
        """Yield the files in turn; each has to be read before the next is asked for.

        Raises
        ------
        UsageError
            If something cannot be read or is plainly no trace.
        """
        if not self.is_stdin and Path(self.path).is_dir():
            yield from self._folder(Path(self.path))
            return
        try:
            raw: IO[bytes] = (
                sys.stdin.buffer if self.is_stdin else Path(self.path).open("rb", buffering=0)  # noqa: SIM115 - closed below
            )
        except OSError as error:
            raise UsageError(self._unreadable(error)) from None
        try:
            yield from self._unpacked(self.name, self.stem, raw)
        finally:
            if not self.is_stdin:
                raw.close()

    def _folder(self, folder: Path) -> Iterator[Part]:
        paths = sorted(p for p in folder.rglob("*") if p.is_file() and _is_member(p.name))
        if not paths:
            raise UsageError(
                f"{folder} is a directory without a file whose name ends in"
                f" {', '.join(_MEMBERS)}; give a trace file, or a folder of them."
            )
        for path in paths:
            self._sha256.update(path.relative_to(folder).as_posix().encode("utf-8", "replace"))
            try:
                with path.open("rb", buffering=0) as raw:
                    yield from self._unpacked(str(path), stem_of(path.name), raw)
            except OSError as error:
                raise UsageError(self._unreadable(error)) from None

    def _unpacked(self, name: str, stem: str, raw: IO[bytes]) -> Iterator[Part]:
        file = _buffered(_Hashing(raw, self._sha256))
        try:
            file = unpack(file)
            if file.peek(HEAD)[257:262] == b"ustar":
                yield from self._archive(name, file)
            else:
                yield Part(name, stem, file)
        except DamagedError as fault:
            raise UsageError(f"{name} is {fault}; fetch it anew.") from None
        except OSError as error:
            raise UsageError(self._unreadable(error)) from None

    def _archive(self, name: str, file: io.BufferedReader) -> Iterator[Part]:
        try:
            with tarfile.open(fileobj=file, mode="r|") as archive:
                for member in archive:
                    if not (member.isfile() and _is_member(member.name)):
                        continue
                    content = archive.extractfile(member)
                    assert content is not None  # as it is a file
                    inner = unpack(_buffered(_Plain(content)))
                    yield Part(f"{name}/{member.name}", stem_of(member.name), inner)
        except (tarfile.TarError, DamagedError, EOFError) as error:
            reason = str(error) or "it ends too early"
            raise UsageError(f"{name} is a damaged archive ({reason}); fetch it anew.") from None

    def _unreadable(self, error: OSError) -> str:
        return f"{self.name} cannot be read ({error.strerror or error}); give a file that can."


def unpack(file: io.BufferedReader) -> io.BufferedReader:
    """Unpack gzip and zstd, whatever the file is called; other files stay as they are."""
    head = file.peek(HEAD)
    if head.startswith(_GZIP):
        return _buffered(_Plain(gzip.GzipFile(fileobj=file), "gzip"))
    if head.startswith(_ZSTD):
        import pyarrow as pa  # noqa: PLC0415 - slow to import

        stream = pa.CompressedInputStream(pa.PythonFile(file, mode="r"), "zstd")
        unpacked = _buffered(_Plain(stream, "zstd"))
        # Where a frame breaks off before its first block is whole, the unpacker says nothing.
        if len(head) > _EMPTY_ZSTD and not unpacked.peek(1):
            raise DamagedError("damaged or cut-off zstd data")
        return unpacked
    return file


def check_head(part: Part) -> bytes:
    """Return the beginning without BOM and blanks, and refuse what is plainly no trace.

    Raises
    ------
    UsageError
        Naming the part and what it is instead.
    """
    try:
        head = part.file.peek(HEAD)
    except DamagedError as fault:
        raise UsageError(f"{part.name} is {fault}; fetch it anew.") from None
    except IsADirectoryError:
        raise UsageError(f"{part.name} is a directory; give a trace file in it.") from None
    for magic, fault_text in _PACKED.items():
        if head.startswith(magic):
            raise UsageError(f"{part.name} {fault_text}.")
    for start, encoding in _WIDE.items():
        if head.startswith(start):
            raise UsageError(
                f"{part.name} is {encoding} text; convert it to UTF-8"
                f" (iconv -f {encoding} -t UTF-8)."
            )
    # Elsewhere zeros spoil one line, as where a machine stopped in the middle of writing.
    if b"\0" in head.split(b"\n", 1)[0]:
        raise UsageError(
            f"{part.name} is binary or not UTF-8 text; give a trace in one of the known formats."
        )
    head = head.removeprefix(_BOM).lstrip()
    if head.startswith(b"<"):
        raise UsageError(
            f"{part.name}:1: looks like HTML or XML, a web page saved in place of the trace;"
            " download the file itself (its raw link)."
        )
    if head.startswith(b"version https://git-lfs"):
        raise UsageError(
            f"{part.name}:1: is a Git LFS pointer, not the trace itself; fetch it with git lfs"
            " pull."
        )
    return head


def lines(part: Part) -> Iterator[tuple[int, bytes]]:
    """Yield the lines with their numbers from 1, without a BOM and with their ends.

    Lines end with a line feed, or with a carriage return where the beginning of the file has no
    line feed at all; other separators may stand inside strings.

    Raises
    ------
    DamagedError
        Where the compressed data breaks off.
    """
    head = part.file.peek(HEAD)
    source = _lines_by_return(part.file) if b"\r" in head and b"\n" not in head else part.file
    for number, line in enumerate(source, 1):
        yield number, line.removeprefix(_BOM) if number == 1 else line


def _lines_by_return(file: io.BufferedReader) -> Iterator[bytes]:
    rest = b""
    while data := file.read1(HEAD):
        *whole, rest = (rest + data).split(b"\r")
        for line in whole:
            yield line + b"\n"
    if rest:
        yield rest


def stem_of(path: str) -> str:
    """Cut folders and endings off a name."""
    name = os.path.basename(path.rstrip("/\\")) or path
    return name.split(".")[0] or name


def _is_member(name: str) -> bool:
    base = os.path.basename(name)
    return base.lower().endswith(_MEMBERS) and not base.startswith(".")


def _buffered(raw: io.RawIOBase) -> io.BufferedReader:
    return io.BufferedReader(raw, HEAD)


class _Plain(io.RawIOBase):
    """Any readable thing as a raw stream that fills what it is asked to fill."""

    def __init__(self, file: Any, packing: str | None = None) -> None:  # noqa: ANN401
        self._file = file
        self._packing = packing

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:  # noqa: ANN401
        view = memoryview(buffer)
        count = 0
        try:
            while count < len(view):
                data = self._read(len(view) - count)
                if not data:
                    break
                view[count : count + len(data)] = data
                count += len(data)
        except (EOFError, zlib.error, gzip.BadGzipFile, OSError) as error:
            # Errors of the file system have a number, those of the unpackers have none.
            if self._packing is None or getattr(error, "errno", None):
                raise
            if not count:
                raise DamagedError(f"damaged or cut-off {self._packing} data") from None
        return count

    def _read(self, size: int) -> bytes:
        data: bytes = self._file.read(size)
        return data


class _Hashing(_Plain):
    """A raw stream whose bytes go into a digest."""

    def __init__(self, file: Any, sha256: Any) -> None:  # noqa: ANN401
        super().__init__(file)
        self._sha256 = sha256

    def _read(self, size: int) -> bytes:
        data = super()._read(size)
        self._sha256.update(data)
        return data
