"""The outcome model of the doubly robust estimate: the logged predictions, put right by a small regression.

    q(x, a) = prediction of the measure + a ridge regression of what it was off by, on SHOWN, a and products

The prediction of attainment is P(TTFT met) * P(ITL met), each a logistic function of the logarithm of
prediction over objective, as in `policy.score`. Cross-fitted: what is predicted of a row comes from models
fitted on other folds, so that its own outcome has no part in it.
"""

import numpy as np

from kvferry.models.offpolicy.logged import SHOWN, Floats, Logged
from kvferry.policy.score import ITL_SIGMA, LOGISTIC, TTFT_SIGMA

FOLDS = 5
# In standardised columns, as if so many more rows had said that the prediction is right.
RIDGE = 3.0


def outcome(logged: Logged, value: Floats, measure: str, block: int) -> Floats:
    """q, [2, N]. `block`: so many rows that follow each other are in one fold."""
    prior = np.array([_prior(shown, measure) for shown in logged.predicted])
    design = np.array([_design(shown, action) for action, shown in enumerate(logged.predicted)])
    taken = logged.split.astype(np.intp)
    rows = np.arange(len(logged))
    own, off = design[taken, rows], value - prior[taken, rows]
    fold = rows // block % FOLDS
    found = prior.copy()
    for part in range(FOLDS):
        here, rest = fold == part, fold != part
        found[:, here] += design[:, here] @ _ridge(own[rest], off[rest])
    np.clip(found, 0.0, 1.0 if measure == "slo_attainment" else np.inf, out=found)
    return found


def _prior(shown: Floats, measure: str) -> Floats:
    known = dict(zip(SHOWN, np.nan_to_num(shown).T, strict=True))
    if measure != "slo_attainment":
        return np.asarray(known[measure])
    met = [
        1.0 / (1.0 + np.maximum(known[name], 1e-9) ** (LOGISTIC / sigma))
        for name, sigma in (("ttft_over_slo", TTFT_SIGMA), ("itl_over_slo", ITL_SIGMA))
    ]
    return np.asarray(met[0] * met[1])


def _design(shown: Floats, action: int) -> Floats:
    """[N, 14]: 1 and SHOWN (times as logarithms), and the same again for splits."""
    columns = np.nan_to_num(shown)
    columns = np.column_stack((np.ones(len(columns)), np.log(columns[:, :4] + 1e-4), columns[:, 4:]))
    return np.column_stack((columns, columns * action))


def _ridge(design: Floats, target: Floats) -> Floats:
    """Coefficients of the design as it is; the penalty is on standardised columns, the constant excepted."""
    if not len(design):
        return np.zeros(design.shape[1])
    scale = design.std(axis=0) + 1e-9
    middle = np.where(np.arange(design.shape[1]) == 0, 0.0, design.mean(axis=0))
    standard = (design - middle) / np.where(np.arange(len(scale)) == 0, 1.0, scale)
    penalty = np.full(len(scale), RIDGE)
    penalty[0] = 1e-9
    found = np.linalg.solve(standard.T @ standard + np.diag(penalty), standard.T @ target)
    found[1:] /= scale[1:]
    found[0] -= found[1:] @ middle[1:]
    return np.asarray(found)
