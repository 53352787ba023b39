import numpy as np
import pytest
import torch

from medclip_dcl.evaluation.bootstrap import BootstrapOptions
from medclip_dcl.evaluation.inputs import UNKNOWN, EncodedImages
from medclip_dcl.evaluation.probe import evaluate_probe, image_features
from medclip_dcl.evaluation.results import PROBES
from medclip_dcl.evaluation.settings import ProbeConfig
from medclip_dcl.inference import Finding

FINDINGS = (Finding("fluid", ("Fluid.",), ("Normal.",)), Finding("cyst", ("Cyst.",), ("Normal.",)))
SETTINGS = ProbeConfig(fractions=(0.1, 1.0), draws=2, penalties=(1e-2, 1.0))


def images(count, seed, noise=0.3):
    """Images whose first axis grows with `fluid`; `cyst` cannot be seen."""
    generator = np.random.default_rng(seed)
    truth = np.stack([np.arange(count) % 2, generator.permutation(np.arange(count) % 2)])
    vectors = noise * generator.standard_normal((count, 2, 2, 5))
    vectors[..., 0] += truth[0][:, None, None]
    names = tuple(f"image-{seed}-{number}" for number in range(count))
    shown = EncodedImages(names, names, ((10, 10),) * count, torch.from_numpy(vectors).float())
    return shown, truth.astype(np.int8)


@pytest.fixture(scope="module")
def probed():
    splits = [images(60, 0), images(40, 1), images(50, 2)]
    return evaluate_probe(splits, FINDINGS, SETTINGS, BootstrapOptions(20, 0))


def test_features_are_the_mean_of_the_regions():
    shown, _ = images(3, 0)
    assert image_features(shown)[1] == pytest.approx(shown.regions[1].mean(dim=(0, 1)), abs=1e-6)


def test_a_probe_finds_what_features_hold_and_no_more(probed):
    outcome, rows = probed
    assert list(outcome.groups) == ["0.1", "1"]
    assert set(rows[0]) == set(PROBES.schema.names)
    assert len(rows) == 50 * 2 * (2 + 1)  # images x findings x draws
    by_finding = {
        name: [row for row in rows if (row["finding"], row["fraction"]) == (name, 1.0)]
        for name in ("fluid", "cyst")
    }
    right = {
        name: np.mean([(row["margin"] > 0) == row["truth"] for row in found])
        for name, found in by_finding.items()
    }
    assert right["fluid"] == 1.0
    assert 0.2 < right["cyst"] < 0.8


def test_the_figure_is_the_mean_over_findings_with_its_interval(probed):
    figure = probed[0].groups["1"]["mean_auc"]
    assert 0.6 < figure.value < 0.85  # one finding at 1, the other by chance
    assert figure.low <= figure.value <= figure.high
    assert probed[0].chance["0.1.mean_auc"] == 0.5


def test_a_finding_that_lacks_a_class_anywhere_is_left_out():
    splits = [images(60, 0), images(40, 1), images(50, 2)]
    splits[1][1][1] = UNKNOWN
    outcome, rows = evaluate_probe(splits, FINDINGS, SETTINGS, BootstrapOptions(0, 0))
    assert {row["finding"] for row in rows} == {"fluid"}
    splits[1][1][0] = 1
    outcome, rows = evaluate_probe(splits, FINDINGS, SETTINGS, BootstrapOptions(0, 0))
    assert "no finding has images of both classes" in outcome.absent
    assert rows == []
