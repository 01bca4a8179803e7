"""From a file to JSON rows, with the line that each stands on."""

from __future__ import annotations

import codecs
import io
import json
from collections.abc import Generator

from workloads.fields import RowError, show
from workloads.source import HEAD, DamagedError, Part, lines

Rows = Generator[tuple[int, object], None, None]
"""Line number (from 1) and JSON value; a `RowError` in its place says why there is none."""

_BLANKS = " \t\r\n"
_ENDS = ("\n", "\r")
_CUT_OFF = "the last line is cut off in the middle of a row"
_decoder = json.JSONDecoder()


def read_rows(part: Part, head: bytes, said: list[str]) -> Rows:
    """Yield line number and JSON value of each row; blank lines are passed over.

    One JSON object a line, or else one JSON array, or objects that each take several lines.

    Parameters
    ----------
    part
        The file; read no further than asked.
    head
        Of `check_head`.
    said
        Gets a clause for what is unusual about the file as a whole.
    """
    if _is_array(head):
        said.append("one JSON array instead of a JSON object per line")
        return _values(part.file, in_array=True)
    if _goes_on_after_its_line(head):
        said.append("JSON objects over several lines instead of one per line")
        return _values(part.file, in_array=False)
    return _line_rows(part)


def has_a_row_per_line(head: bytes) -> bool:
    """Whether `read_rows` takes every line for a row."""
    return not _is_array(head) and not _goes_on_after_its_line(head)


def first_value(head: bytes) -> object:
    """Parse the first row as far as the beginning of the file holds it; None where it does not."""
    text = head.decode("utf-8", "replace").lstrip("[" + _BLANKS)
    try:
        return _decoder.raw_decode(text)[0]
    except (ValueError, RecursionError):
        return None


def _is_array(head: bytes) -> bool:
    """Whether an array of rows begins here, as apart from a line such as ``[INFO] started``."""
    return head.startswith(b"[") and head[1:].lstrip()[:1] in (b"{", b"[", b"]", b"")


def _goes_on_after_its_line(head: bytes) -> bool:
    line, _, rest = head.decode("utf-8", "replace").replace("\r", "\n").partition("\n")
    if not line.startswith("{") or not rest.strip() or rest.lstrip().startswith("{"):
        return False
    try:
        json.loads(line)
    except json.JSONDecodeError as error:
        return error.pos >= len(line.rstrip()) - 1
    except (ValueError, RecursionError):
        pass
    return False


def _line_rows(part: Part) -> Rows:
    number = 0
    try:
        for number, line in lines(part):
            if line.strip():
                yield number, parse(line)
    except DamagedError as fault:
        yield number + 1, RowError(f"{fault}, which ends here", "fetch the file anew")


def parse(line: bytes) -> object:
    """Read the row of a line; a `RowError` where there is none."""
    try:
        text = line.decode("utf-8")
        return json.loads(text)
    except UnicodeDecodeError as error:
        if error.reason == "unexpected end of data" and not line.endswith((b"\n", b"\r")):
            return RowError(_CUT_OFF, "fetch the file anew")
        return RowError("the line is not UTF-8 text")
    except RecursionError:
        return RowError("the line is nested too deeply")
    except ValueError as error:
        return _not_json(text, error)


def _not_json(text: str, error: ValueError) -> RowError:
    """Say why a line is no row, as the parser found."""
    shown = text.strip(_BLANKS)
    if not shown.startswith("{"):
        return RowError(
            f"{show(shown)} is not a JSON object", "give a trace of one JSON object per line"
        )
    reason = "a number is too long"
    if isinstance(error, json.JSONDecodeError):
        if error.msg == "Extra data":
            return RowError(
                f"{show(text[error.pos :].strip(_BLANKS))} follows the JSON object in its line",
                "give one JSON object per line",
            )
        reason = f"{error.msg.removesuffix(' at')} at character {error.pos + 1}"
    if not text.endswith(_ENDS):
        return RowError(_CUT_OFF, "fetch the file anew")
    return RowError(f"{show(shown)} is not a whole JSON object ({reason})")


class _Text:
    """Text of a file that is read on as needed, with the line of a place in it."""

    def __init__(self, file: io.BufferedReader, whole: str) -> None:
        self._file = file
        self._whole = whole
        self._decode = codecs.getincrementaldecoder("utf-8-sig")("strict").decode
        self.text = ""
        self.at = 0
        self.line = 1
        self.ended = False

    def more(self) -> bool:
        """Read on; False at the end. Reads twice as much each time a value is still not whole."""
        if self.ended:
            return False
        data = self._file.read(max(HEAD, len(self.text) - self.at))
        self.ended = not data
        self.line += self.text.count("\n", 0, self.at)
        self.text = self.text[self.at :] + self._decode(data, self.ended)
        self.at = 0
        return True

    def peek(self) -> str:
        """Pass blanks over and return the next character; empty at the end."""
        while True:
            while self.at < len(self.text) and self.text[self.at] in _BLANKS:
                self.at += 1
            if self.at < len(self.text):
                return self.text[self.at]
            if not self.more():
                return ""

    def line_here(self) -> int:
        """Line of the next character."""
        return self.line + self.text.count("\n", 0, self.at)

    def value(self) -> object:
        """Parse a value; a `RowError` where there is none."""
        while True:
            try:
                value, end = _decoder.raw_decode(self.text, self.at)
            except RecursionError:
                return RowError(f"{self._whole} is nested too deeply")
            except ValueError as error:
                if not isinstance(error, json.JSONDecodeError):
                    return RowError("a number is too long")
                # An error well before the end does not go away by reading on.
                is_broken = len(self.text) - error.pos > HEAD
                if is_broken or not self.more():
                    return self._unreadable(error)
                continue
            # A number may go on beyond what was read.
            if end < len(self.text) or not self.more():
                self.at = end
                return value

    def _unreadable(self, error: json.JSONDecodeError) -> RowError:
        """Say that a value is cut off, or where it is broken."""
        rest = "so that nothing after it can be read"
        if not self.text[error.pos :].strip(_BLANKS) or error.msg.startswith("Unterminated"):
            return RowError(f"{self._whole} is cut off here, {rest}", "fetch the file anew")
        line = self.line + self.text.count("\n", 0, error.pos)
        reason = error.msg.removesuffix(" at")
        return RowError(f"{self._whole} is broken in line {line} ({reason}), {rest}")


def _values(file: io.BufferedReader, *, in_array: bool) -> Rows:
    """Yield the elements of an array, or objects that follow one another, each at its line."""
    text = _Text(file, "the JSON array" if in_array else "the JSON object")
    try:
        if in_array:
            text.peek()
            text.at += 1
        first = True
        while True:
            after_comma = False
            if in_array and not first and text.peek() == ",":
                text.at += 1
                after_comma = True
            next_character = text.peek()
            if in_array and next_character == "]" and not after_comma:
                text.at += 1
                if text.peek():
                    yield (
                        text.line_here(),
                        RowError("something follows the end of the JSON array", "remove it"),
                    )
                return
            if not next_character:
                if in_array:
                    yield (
                        text.line_here(),
                        RowError("the JSON array is cut off here", "fetch the file anew"),
                    )
                return
            line = text.line_here()
            if next_character == "]" and after_comma:
                yield line, RowError("a comma stands before the end of the JSON array", "remove it")
                return
            if in_array and not first and not after_comma:
                yield line, RowError("a comma is missing between two elements of the JSON array")
                return
            value = text.value()
            yield line, value
            if isinstance(value, RowError):
                return
            first = False
    except UnicodeDecodeError:
        yield text.line_here(), RowError("what follows is not UTF-8 text")
    except DamagedError as fault:
        yield text.line_here(), RowError(f"{fault}, which ends here", "fetch the file anew")
