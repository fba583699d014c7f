"""Constants of physics, found again from times that they made."""

from __future__ import annotations

import numpy as np
import pytest

from hyperopt.cost.analytic import FEWEST, Link, Near, fit_link, fit_messages, fit_roofline, fit_rooflines
from hyperopt.cost.features import rows_of, samples_of
from hyperopt.cost.work import Table
from tests.cost.synthetic import BANDWIDTH, LATENCY, PEAK, device


def test_a_roofline_is_found_again_although_some_times_were_disturbed() -> None:
    chance = np.random.default_rng(1)
    flops, traffic = 10 ** chance.uniform(3, 10, 300), 10 ** chance.uniform(2, 8, 300)
    us = LATENCY + np.maximum(flops / PEAK, traffic / BANDWIDTH)
    us = us * np.exp(chance.normal(0, 0.02, 300)) * np.where(np.arange(300) % 20 == 0, 5.0, 1.0)
    found = fit_roofline(flops, traffic, us)
    assert found.latency_us == pytest.approx(LATENCY, rel=0.1)
    assert found.flops_per_us == pytest.approx(PEAK, rel=0.1)
    assert found.bytes_per_us == pytest.approx(BANDWIDTH, rel=0.1)


def test_no_rate_is_found_beyond_what_was_seen() -> None:
    """Sums are never bound by arithmetic: their peak is not known, and stays near the best that was seen."""
    traffic = np.geomspace(1e3, 1e8, 50)
    us = LATENCY + traffic / BANDWIDTH
    found = fit_roofline(traffic / 12, traffic, us)
    assert found.flops_per_us <= 1.5 * (traffic / 12 / us).max() * (1 + 1e-9)


def test_a_family_of_few_samples_goes_by_the_whole_device() -> None:
    samples = samples_of(rows_of(device(2, 120), Table.load()))
    few = samples.signatures.families == "matmul"
    keep = ~few
    keep[np.flatnonzero(few)[: FEWEST - 1]] = True
    found = fit_rooflines(samples.signatures.only(keep), samples.us[keep])
    assert set(found.families) == {"elementwise"} and found.counts["matmul"] == FEWEST - 1
    assert np.isfinite(found.us(samples.signatures)).all()
    with pytest.raises(ValueError, match="no durations"):
        fit_rooflines(samples.signatures.only(keep & ~keep), samples.us[keep & ~keep])


def test_who_shares_a_link_gets_less() -> None:
    size, copiers = (a.ravel() for a in np.meshgrid(np.geomspace(1e4, 1e8, 9), [1.0, 2.0, 4.0]))
    true = Link(3.0, 10_000.0, 15_000.0)
    found = fit_link(size, copiers, true.us(size, copiers))
    ahead = np.array([3e7])
    for crowd in (1.0, 2.0, 4.0, 8.0):
        assert found.us(ahead, np.array([crowd])) == pytest.approx(true.us(ahead, np.array([crowd])), rel=0.05)
    with pytest.raises(ValueError, match="2 copies are too few"):
        fit_link(size[:2], copiers[:2], size[:2])


def test_what_fits_a_cache_is_told_from_what_does_not() -> None:
    size, copiers = (a.ravel() for a in np.meshgrid(np.geomspace(1e3, 1e9, 25), [1.0, 2.0, 4.0]))
    true = Link(2.0, 5_000.0, 6_000.0, (Near(1e5, 90_000.0, 360_000.0), Near(2e7, 40_000.0, 90_000.0)))
    noise = np.exp(np.random.default_rng(3).normal(0, 0.03, len(size)))
    found = fit_link(size, copiers, true.us(size, copiers) * noise)
    assert len(found.nearer) == 2
    off = np.abs(found.us(size, copiers) / true.us(size, copiers) - 1)
    assert np.median(off) < 0.05 and off.max() < 0.2


def test_a_smaller_copy_never_takes_longer() -> None:
    chance = np.random.default_rng(5)
    size = np.repeat(np.geomspace(1e3, 1e9, 20), 2)
    found = fit_link(size, np.ones(40), 3.0 + size / 10 ** chance.uniform(2, 5, 40))
    line = np.geomspace(1e2, 1e10, 500)
    assert (np.diff(found.us(line, np.ones(500))) >= 0).all()


def test_one_size_is_enough_for_one_rate() -> None:
    found = fit_link(np.full(3, 1e6), np.ones(3), np.array([99.0, 100.0, 103.0]))
    assert found.nearer == () and found.us(np.array([1e6]), np.ones(1)) == pytest.approx(100.0, rel=0.05)


def test_latency_and_bandwidth_of_messages() -> None:
    """An all-reduce of n devices and B bytes is 2 (n - 1) steps of B / n bytes."""
    n, total = (a.ravel() for a in np.meshgrid([2.0, 4.0, 8.0], np.geomspace(1e3, 1e9, 7)))
    steps, each = np.asarray(2.0 * (n - 1.0), np.float64), np.asarray(total / n, np.float64)
    latency, bandwidth = fit_messages(steps, each, steps * (12.0 + each / 25_000.0))
    assert latency == pytest.approx(12.0, rel=0.05) and bandwidth == pytest.approx(25e9, rel=0.05)
    with pytest.raises(ValueError, match="too few"):
        fit_messages(steps[:2], each[:2], each[:2])
