"""The keys and values of a search's earlier positions."""

from typing import Any

import torch
from transformers.cache_utils import DynamicLayer


class RoomyLayer(DynamicLayer):
    """A cache layer with room at its end, where a new token is written; a `DynamicLayer` copies all for each token."""

    ROOM = 16  # positions

    def update(self, keys: torch.Tensor, values: torch.Tensor, *_: Any, **__: Any) -> tuple[torch.Tensor, torch.Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(keys, values)
            self.held = [keys[:, :, :0], values[:, :, :0]]
        start = self.get_seq_length()
        end = start + keys.shape[2]
        if end > self.held[0].shape[2]:
            more = keys.shape[2] + self.ROOM
            self.held = [
                torch.cat((held[:, :, :start], held.new_empty(*held.shape[:2], more, held.shape[3])), 2)
                for held in self.held
            ]
        for held, new in zip(self.held, (keys, values), strict=True):
            held[:, :, start:end] = new
        self.keys, self.values = (held[:, :, :end] for held in self.held)
        return self.keys, self.values

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        end = self.get_seq_length()
        self.held = [held.index_select(0, beam_idx) for held in self.held]
        self.keys, self.values = (held[:, :, :end] for held in self.held)


__all__ = ["RoomyLayer"]
