"""Training of the quantile network (`kvferry.models.residual.network` has its form) with torch."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from kvferry.models.residual.tensors import Tensors
from kvferry.models.training.rows import F32
from kvferry.policy.correction import QUANTILES

if TYPE_CHECKING:
    import torch

Progress = Callable[[float], None]
HIDDEN = 32
# The newest part of the training window, which says when to stop.
STOP_SHARE = 0.15
STEPS = 16_000
MAX_EPOCHS = 300
PATIENCE_SHARE = 0.25
LEARNING_RATE = 1e-2
# Of as many rows weights decay by LEARNING_RATE a step, of more by less.
DECAY_ROWS = 1500
MIN_SCALE = 0.02
SPREAD = 1.2816  # of a normal distribution, from the median to the 90th percentile


def fit(features: F32, targets: F32, *, seed: int, progress: Progress = lambda done: None) -> Tensors:
    """The tensors of a network for [N, F] features, oldest first, and [N, k] targets (NaN: unknown).

    Adam on the pinball loss of all targets, each in units of its own spread, a rate that falls as a cosine,
    and the weights of the epoch that was best on the newest STOP_SHARE. The same seed gives the same tensors
    on the same machine. Raises ImportError where torch is not installed.
    """
    import torch

    mean, spread = features.mean(axis=0), np.maximum(features.std(axis=0), 1e-3)
    center, scale = _marginals(targets)
    x = torch.from_numpy((features - mean) / spread)
    y = torch.from_numpy((targets - center) / scale)
    with _alone(seed):
        trunk, heads = _train(x, y, progress)
    (first, first_bias), (second, second_bias) = trunk
    weight, bias = heads
    first = first / spread
    bias[:: len(QUANTILES)] += center / scale
    return {
        "first.weight": first.astype(np.float32),
        "first.bias": (first_bias - first @ mean).astype(np.float32),
        "second.weight": second,
        "second.bias": second_bias,
        "heads.weight": weight,
        "heads.bias": bias.astype(np.float32),
        "scale": scale.astype(np.float32),
    }


def only(tensors: Tensors, targets: Sequence[int]) -> Tensors:
    """The same network with the heads of some of its targets."""
    rows = [len(QUANTILES) * target + place for target in targets for place in range(len(QUANTILES))]
    heads = {name: tensors[name][rows] for name in ("heads.weight", "heads.bias")}
    return {**tensors, **heads, "scale": tensors["scale"][list(targets)]}


def _marginals(targets: F32) -> tuple[F32, F32]:
    """[k] medians, and distances from there to the 90th percentile in units of a normal distribution."""
    median, upper = np.nanquantile(targets, (0.5, 0.9), axis=0).astype(np.float32)
    mad = np.nanmedian(np.abs(targets - median), axis=0) / np.float32(0.6745)
    return median, np.maximum(np.maximum((upper - median) / SPREAD, mad), MIN_SCALE).astype(np.float32)


@contextmanager
def _alone(seed: int) -> Iterator[None]:
    """One thread, for so small layers gain nothing from more, and a random state of our own."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            yield
    finally:
        torch.set_num_threads(threads)


def _train(
    x: "torch.Tensor", y: "torch.Tensor", progress: Progress
) -> tuple[list[tuple[Any, Any]], tuple[Any, Any]]:
    import torch

    wide, rows = x.shape[1], len(x)
    outputs = y.shape[1] * len(QUANTILES)
    layers = [
        torch.nn.Linear(wide, HIDDEN),
        torch.nn.Linear(HIDDEN, HIDDEN),
        torch.nn.Linear(HIDDEN, outputs),
    ]
    with torch.no_grad():
        layers[-1].weight.mul_(0.1)
        layers[-1].bias.zero_()
    net = torch.nn.Sequential(layers[0], torch.nn.ReLU(), layers[1], torch.nn.ReLU(), layers[2])
    fitted = rows - max(1, int(STOP_SHARE * rows))
    batch = int(np.clip(fitted // 16, 32, 1024))
    epochs = int(np.clip(STEPS * batch // fitted, 12, MAX_EPOCHS))
    decay = min(1.0, DECAY_ROWS / fitted)
    optimizer = torch.optim.AdamW(net.parameters(), lr=LEARNING_RATE, weight_decay=decay)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
    best, kept, since = np.inf, [layer.state_dict() for layer in layers], 0
    for epoch in range(epochs):
        order = torch.randperm(fitted)
        for start in range(0, fitted, batch):
            which = order[start : start + batch]
            optimizer.zero_grad()
            _loss(net(x[which]), y[which]).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        schedule.step()
        with torch.no_grad():
            found = float(_loss(net(x[fitted:]), y[fitted:]))
        since += 1
        if found < best:
            best, since = found, 0
            kept = [{name: value.clone() for name, value in layer.state_dict().items()} for layer in layers]
        progress((epoch + 1) / epochs)
        if since > PATIENCE_SHARE * epochs:
            break
    first, second, heads = ((state["weight"].numpy(), state["bias"].numpy()) for state in kept)
    return [first, second], heads


def _loss(out: "torch.Tensor", y: "torch.Tensor") -> "torch.Tensor":
    """Over quantiles the sum, over requests where it is known and then over targets the mean, of
    max(q e, (q - 1) e), e = y - predicted."""
    import torch

    out = out.view(len(out), -1, len(QUANTILES))
    rises = 0.5 * (out[:, :, 1:] + torch.sqrt(out[:, :, 1:] ** 2 + 4.0))
    predicted = torch.cat((out[:, :, :1], rises), dim=2).cumsum(dim=2)
    known = torch.isfinite(y)
    error = torch.where(known, y, torch.zeros_like(y)).unsqueeze(2) - predicted
    levels = torch.tensor(QUANTILES)
    each = torch.maximum(levels * error, (levels - 1.0) * error).sum(dim=2)
    return ((each * known).sum(dim=0) / known.sum(dim=0).clamp(min=1)).mean()
