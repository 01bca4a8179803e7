"""From text to token ids, with a tokenizer that the user names.

Nothing is downloaded: a Hugging Face tokenizer is read from its ``tokenizer.json``, an encoding of
tiktoken from its cache. Without a name, a token is a byte of UTF-8: prefixes are exact, lengths are
three to five times those of a real tokenizer.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from sim.errors import UsageError
from workloads.content import Ints

Tokenize = Callable[[str], Ints]

BYTES = "bytes"
_TIKTOKEN = "tiktoken:"
_INSTALL = "pip install 'prefixsim[tokenizers]'"


def load_tokenizer(name: str | None) -> Tokenize:
    """Load a tokenizer.

    Parameters
    ----------
    name
        ``bytes`` or None; a path to a ``tokenizer.json``; ``tiktoken:NAME`` for an encoding of
        tiktoken such as ``tiktoken:cl100k_base``.

    Raises
    ------
    UsageError
        If there is none of the name, or its library is missing.
    """
    if name in (None, BYTES):
        return _bytes
    assert name is not None
    if name.startswith(_TIKTOKEN):
        return _tiktoken(name.removeprefix(_TIKTOKEN))
    path = Path(name)
    if path.is_dir() and (path / "tokenizer.json").is_file():
        path = path / "tokenizer.json"
    if not path.is_file():
        raise UsageError(
            f"--tokenizer {name!r} is not a file; give a Hugging Face tokenizer.json,"
            f" {_TIKTOKEN}cl100k_base or another encoding of tiktoken, or {BYTES}."
        )
    return _hugging_face(path)


def _bytes(text: str) -> Ints:
    return np.frombuffer(text.encode("utf-8", "surrogatepass"), dtype=np.uint8).astype(np.int64)


def _hugging_face(path: Path) -> Tokenize:
    try:
        import tokenizers  # noqa: PLC0415 - an extra
    except ImportError:
        raise UsageError(f"--tokenizer {path} needs tokenizers: {_INSTALL}.") from None
    try:
        tokenizer: Any = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:
        raise UsageError(
            f"--tokenizer {path} is no tokenizer.json ({str(error).splitlines()[0]}); give one as"
            " Hugging Face writes it."
        ) from None

    def tokenize(text: str) -> Ints:
        ids = tokenizer.encode(_printable(text), add_special_tokens=False).ids
        return np.array(ids, dtype=np.int64)

    return tokenize


def _tiktoken(name: str) -> Tokenize:
    try:
        import tiktoken  # noqa: PLC0415 - an extra
    except ImportError:
        raise UsageError(f"--tokenizer {_TIKTOKEN}{name} needs tiktoken: {_INSTALL}.") from None
    try:
        encoding: Any = tiktoken.get_encoding(name)
    except ValueError:
        raise UsageError(
            f"--tokenizer {_TIKTOKEN}{name} is unknown; give one of"
            f" {', '.join(tiktoken.list_encoding_names())}."
        ) from None
    except Exception as error:
        raise UsageError(
            f"--tokenizer {_TIKTOKEN}{name} is not in tiktoken's cache and cannot be fetched"
            f" ({type(error).__name__}); set TIKTOKEN_CACHE_DIR, or give a tokenizer.json."
        ) from None

    def tokenize(text: str) -> Ints:
        return np.array(encoding.encode_ordinary(_printable(text)), dtype=np.int64)

    return tokenize


def _printable(text: str) -> str:
    """Replace lone surrogates, which no tokenizer takes."""
    return text.encode("utf-8", "replace").decode("utf-8")
