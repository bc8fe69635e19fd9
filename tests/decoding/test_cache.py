"""`RoomyLayer` beside the library's `DynamicLayer`."""

import pytest
import torch
from transformers.cache_utils import DynamicLayer

from modeling_vanilla.decoding.cache import RoomyLayer


@pytest.mark.parametrize("first", [1, 5, 40])
def test_holds_what_a_dynamic_layer_holds(first):
    roomy, dynamic = RoomyLayer(), DynamicLayer()
    rows = 6
    for step in range(50):
        length = first if step == 0 else 1
        keys, values = torch.randn(rows, 2, length, 3), torch.randn(rows, 2, length, 4)
        found, expected = roomy.update(keys, values), dynamic.update(keys, values)
        assert torch.equal(found[0], expected[0])
        assert torch.equal(found[1], expected[1])
        assert roomy.get_seq_length() == dynamic.get_seq_length() == first + step
        if step % 3:
            order = torch.randint(rows, (max(1, rows - step // 20),))
            rows = len(order)
            roomy.reorder_cache(order)
            dynamic.reorder_cache(order)
            assert torch.equal(roomy.keys, dynamic.keys)
            assert torch.equal(roomy.values, dynamic.values)
