import threading

import pytest

from kvferry.integrations.handoff.gate import LayerGate


def test_watchers_hear_of_further_layers_only():
    gate, heard = LayerGate(), []

    def changed() -> None:
        heard.append(gate.layers)

    gate.watch(changed)
    gate.computed(3)
    gate.computed(2)
    gate.computed(3)
    gate.computed(5)
    gate.unwatch(changed)
    gate.computed(6)
    assert heard == [3, 5]
    assert gate.layers == 6
    with pytest.raises(ValueError, match="not in list"):
        gate.unwatch(changed)


def test_settling_waits_for_what_covers_the_layers_and_no_more():
    gate, waited = LayerGate(), []
    for layers in (2, 4, 8, 9):
        gate.computed(layers, lambda layers=layers: waited.append(layers))
    for layers, wanted in ((1, [2]), (2, [2]), (3, [2, 4]), (8, [2, 4, 8]), (9, [2, 4, 8, 9])):
        waited.clear()
        gate.settle(layers)
        assert waited == wanted


def test_settling_blocks_until_the_layers_are_there():
    gate, queued, settled = LayerGate(), threading.Event(), threading.Event()
    gate.computed(2)
    gate.computed(4, queued.wait)
    gate.settle(2)
    waiter = threading.Thread(target=lambda: (gate.settle(3), settled.set()))
    waiter.start()
    assert not settled.wait(0.05)
    queued.set()
    assert settled.wait(10)
    waiter.join()
