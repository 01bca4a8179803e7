"""Short names for what blocks hold."""

from __future__ import annotations

from sim.types import Sequence

_PRINTABLE = range(33, 127)


class Labels:
    """Names content: by its letters where tokens are letters, else by who had it first.

    A prompt whose token ids are those of printable ASCII characters, as in drawings, gives labels
    such as ``EFGH``. Anything else gives ``r0[16:32]``: what request ``r0``, the first to have that
    prefix, has at those positions.
    """

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._first_seen: dict[int, str] = {}

    def of_key(self, key: int) -> str:
        """Name a full block that was named before."""
        return self._first_seen[key]

    def of_block(self, seq: Sequence, index: int, num_tokens: int) -> str:
        """Name the block at ``index`` of a request's table, which ``num_tokens`` tokens fill."""
        start = index * self._block_size
        stop = start + num_tokens
        if num_tokens < self._block_size or index >= len(seq.block_keys):
            return self._spell(seq, start, stop)
        key = seq.block_keys[index]
        if key not in self._first_seen:
            self._first_seen[key] = self._spell(seq, start, stop)
        return self._first_seen[key]

    @staticmethod
    def _spell(seq: Sequence, start: int, stop: int) -> str:
        tokens = seq.request.content.token_ids(start, stop).tolist()
        if tokens and all(token in _PRINTABLE for token in tokens):
            return "".join(map(chr, tokens))
        return f"{seq.request_id}[{start}:{stop}]"
