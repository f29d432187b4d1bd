"""Keys and values of one run or of several: R rows in buffers that are written in place, each row at its own position."""

from __future__ import annotations

import torch
from torch import Tensor

FIRST_CAPACITY = 512  # positions of a new cache

Where = tuple[Tensor, Tensor] | slice  # rows and positions (same shape), or positions of every row


class KeyValueCache:
    """One buffer a layer, for R rows; it grows by doubling.

    `lengths[r]` positions of row r are valid. Rolling back is lowering it: what lies behind is overwritten, never read.
    """

    def __init__(self, buffers: list[Tensor], lengths: list[int]) -> None:
        self.buffers = buffers  # each (2, R, kv_heads, capacity, head_dim)
        self.lengths = lengths

    @classmethod
    def empty(cls, n_layers: int, rows: int, kv_heads: int, capacity: int, head_dim: int, like: Tensor) -> KeyValueCache:
        """A cache of nothing, of the type and on the device of `like`."""
        # Zeros: what a mask hides is multiplied by 0, which does not remove a NaN that lay there.
        shape = (2, rows, kv_heads, capacity, head_dim)
        return cls([torch.zeros(shape, dtype=like.dtype, device=like.device) for _ in range(n_layers)], [0] * rows)

    @property
    def length(self) -> int:
        """Valid positions of the first row: of the run, where there is but one."""
        return self.lengths[0]

    @property
    def capacity(self) -> int:
        """Positions that there is room for."""
        return self.buffers[0].shape[3]

    def reserve(self, capacity: int) -> None:
        """Makes room for that many positions. Where it has to grow, the buffers are other ones afterwards."""
        for layer in range(len(self.buffers)):
            self._grow(layer, capacity)

    def rows(self, indices: list[int]) -> KeyValueCache:
        """A copy with only these rows."""
        return KeyValueCache([buffer[:, indices] for buffer in self.buffers], [self.lengths[i] for i in indices])

    def put(self, row: int, other: KeyValueCache, other_row: int = 0) -> None:
        """Row `row` becomes a copy of a row of another cache, or of this one."""
        length = other.lengths[other_row]
        for layer, theirs in enumerate(other.buffers):
            self._grow(layer, length)
            self.buffers[layer][:, row, :, :length] = theirs[:, other_row, :, :length]
        self.lengths[row] = length

    def write(self, layer: int, keys: Tensor, values: Tensor, where: Where, *, rows: int, end: int) -> tuple[Tensor, Tensor]:
        """Put keys and values (…, kv_heads, head_dim) at `where`; return those of the first rows: (rows, kv_heads, end, …).

        where: row and position of each, both of shape (…); or positions, the same of every row, for keys (rows, n, …).
        """
        self._grow(layer, end)
        buffer = self.buffers[layer]
        if isinstance(where, slice):
            buffer[0, :rows, :, where] = keys.transpose(1, 2)
            buffer[1, :rows, :, where] = values.transpose(1, 2)
        else:
            row, position = where
            buffer[0, row, :, position] = keys
            buffer[1, row, :, position] = values
        return buffer[0, :rows, :, :end], buffer[1, :rows, :, :end]

    def _grow(self, layer: int, end: int) -> None:
        buffer = self.buffers[layer]
        if end > buffer.shape[3]:
            shape = [*buffer.shape[:3], max(end, 2 * buffer.shape[3]), buffer.shape[4]]
            self.buffers[layer] = buffer.new_zeros(shape)
            self.buffers[layer][:, :, :, : buffer.shape[3]] = buffer
