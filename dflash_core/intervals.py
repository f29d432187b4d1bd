"""Confidence intervals for figures of clustered data: what comes from one prompt hangs together, prompts do not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from scipy import special

from .metrics import CONFIDENCE

RESAMPLES = 1000
LEAST = 3  # clusters for an interval: Student's t of two is 12.7 standard errors wide on either side, and says nothing
FEW = 6  # clusters; with fewer, too many resamples hold one or two of them only
Array = np.ndarray[Any, np.dtype[np.float64]]


def cluster_interval(
    sums: Array, figure: Callable[[Array], Array], *, resamples: int = RESAMPLES
) -> tuple[float, float | None, float | None]:
    """A figure of sums over clusters, and its 95 % interval over the population of clusters.

    sums: (n, m), a row for each cluster, such as tokens and blocks of each prompt.
    figure: sums (…, m) over clusters → the figure (…), such as their ratio; a smooth function.
    Without an interval (None, None) for one or two clusters, and for clusters that all agree: they do not say how far others may
    be.

    The studentised bootstrap over clusters (Efron and Tibshirani 1993, chapter 12.5), with the standard error of the jackknife
    that leaves one cluster out. Its quantiles are those of the bootstrap or of Student's t, whichever lie further out; below 6
    clusters Student's alone. On skewed clusters the first are right and the second too narrow, on few clusters of a coarse figure
    the other way round; the percentile bootstrap is too narrow on both (coverage 75 … 91 % with 3 … 12). Deterministic.
    """
    n = len(sums)
    with np.errstate(divide="ignore", invalid="ignore"):
        (value,), (error,) = _jackknife(sums, figure, np.ones((1, n)))
        if n < LEAST or not np.isfinite(error) or error <= 1e-12 * abs(value):
            return float(value), None, None
        quantile = float(special.stdtrit(n - 1, (1 + CONFIDENCE) / 2))
        if n < FEW:
            return float(value), float(value - quantile * error), float(value + quantile * error)
        weights = np.random.default_rng(0).multinomial(n, np.full(n, 1 / n), size=resamples).astype(float)
        values, errors = _jackknife(sums, figure, weights)
        # A resample of one cluster alone has no error of its own: it says nothing.
        right = np.isfinite(values) & np.isfinite(errors) & (errors > 0)
        low, high = np.quantile((values[right] - value) / errors[right], ((1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2))
    return float(value), float(value - max(high, quantile) * error), float(value - min(low, -quantile) * error)


def ratio(sums: Array) -> Array:
    """The figure that most are: the first column over the second."""
    return np.asarray(sums[..., 0] / sums[..., 1])


def _jackknife(sums: Array, figure: Callable[[Array], Array], weights: Array) -> tuple[Array, Array]:
    """The figure and its standard error for each row of weights (k, n), how often each cluster counts."""
    n = len(sums)
    totals = weights @ sums
    # A cluster that a row does not have is left out nowhere: its place must not be computed with.
    without = figure(np.where(weights[..., None] > 0, totals[:, None] - sums, totals[:, None]))
    mean = (weights * without).sum(1, keepdims=True) / n
    variance = (n - 1) / n * (weights * (without - mean) ** 2).sum(1)
    return figure(totals), np.sqrt(variance)
