"""The order of the training data: every epoch all items, and the same after a resumption."""

from __future__ import annotations

from penumbra.offline.training.distributed import DistributedContext
from penumbra.offline.training.loop import _Order
from penumbra.offline.training.settings import TrainingSettings


def test_every_epoch_sees_every_item_once():
    order = iter(_Order(12, TrainingSettings(batch=5), DistributedContext(), seen=0))
    keys = [key for _ in range(12) for key in next(order)]
    for epoch in range(5):
        part = keys[epoch * 12 : (epoch + 1) * 12]
        assert {e for e, _ in part} == {epoch} and sorted(i for _, i in part) == list(range(12))
    later = iter(_Order(12, TrainingSettings(batch=5), DistributedContext(), seen=35))
    assert next(later) == keys[35:40]
