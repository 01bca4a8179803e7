"""Short names for what blocks hold."""

from __future__ import annotations

from sim.types import Request, Sequence


class Labels:
    """Names content: by its letters where tokens are letters, else by who had it first.

    ``r0[16:32]`` is what request ``r0``, the first to have that prefix, has at those positions.

    Parameters
    ----------
    block_size
        Tokens in a block.
    letters
        Token ids are those of characters, as in drawings: a block is named such as ``EFGH``.
    """

    def __init__(self, block_size: int, *, letters: bool = False) -> None:
        self._block_size = block_size
        self._letters = letters
        self._first: dict[int, tuple[Request, int]] = {}

    def know(self, seq: Sequence) -> None:
        """Take note of who has the full blocks of this prompt, if it is the first to have them."""
        for index in range(min(seq.num_tokens // self._block_size, len(seq.block_keys))):
            self._first.setdefault(seq.block_keys[index], (seq.request, index))

    def of_block(self, seq: Sequence, index: int, num_tokens: int) -> str:
        """Name the block at ``index`` of a request's table, which ``num_tokens`` tokens fill."""
        if not num_tokens:
            return ""
        if num_tokens < self._block_size or index >= len(seq.block_keys):
            return self._spell(seq.request, index, num_tokens)
        request, index = self._first.setdefault(seq.block_keys[index], (seq.request, index))
        return self._spell(request, index, num_tokens)

    def _spell(self, request: Request, index: int, num_tokens: int) -> str:
        start = index * self._block_size
        stop = start + num_tokens
        if self._letters:
            return "".join(map(chr, request.content.token_ids(start, stop).tolist()))
        return f"{request.request_id}[{start}:{stop}]"
