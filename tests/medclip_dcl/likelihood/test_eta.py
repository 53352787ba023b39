"""Eta from likelihoods, its limits, and the readers of the cache and of given tables."""

import math
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch

from medclip_dcl.core.errors import ConfigError, ScoreError
from medclip_dcl.likelihood import eta
from medclip_dcl.likelihood.eta import cap_eta, eta_from_pll, read_given_table
from medclip_dcl.text.sentences import text_key
from tests.support.corpus import commit_tables


def test_eta_is_a_times_p_to_the_k():
    pll_nats = torch.tensor([0.0, -1.0, -5.0, -10.0], dtype=torch.float64)
    expected = [0.2, 0.2 * math.exp(-0.35), 0.2 * math.exp(-1.75), 0.2 * math.exp(-3.5)]
    assert eta_from_pll(pll_nats).tolist() == pytest.approx(expected, rel=1e-15)
    assert eta_from_pll(pll_nats, a=0.1, k=1.0)[2].item() == pytest.approx(0.1 * math.exp(-5))
    pll_nats = torch.tensor([0.0, -0.0, -7.0, -torch.inf])
    assert eta_from_pll(pll_nats, a=0.3).tolist()[:2] == [torch.tensor(0.3).item()] * 2
    assert eta_from_pll(pll_nats, a=0.3, k=0.0).eq(0.3).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_eta_is_monotone_and_underflows_to_exactly_zero(dtype):
    pll_nats = -torch.logspace(-4, 6, 400, dtype=dtype)
    eta = eta_from_pll(pll_nats)
    assert (eta[1:] <= eta[:-1]).all()
    assert eta[0] < 0.2
    assert eta[-1] == 0
    assert not eta.isnan().any()
    # p itself underflows float32 below -103 nats
    assert eta_from_pll(torch.tensor([-150.0])).item() == pytest.approx(0.2 * math.exp(-52.5))


def test_likelihoods_etas_and_settings_out_of_range_are_refused():
    with pytest.raises(ScoreError, match="2 likelihoods"):
        eta_from_pll(torch.tensor([-1.0, 1e-6, torch.nan]))
    for a, k in ((0.0, 0.3), (1.0, 0.3), (0.2, -0.1), (0.2, math.nan)):
        with pytest.raises(ScoreError, match="0 < a < 1"):
            eta_from_pll(torch.tensor([-1.0]), a=a, k=k)
    for value, most, words in (
        (-0.1, 0.2, "1 etas"),
        (math.nan, 0.2, "1 etas"),
        (0.1, 1.0, "eta_max"),
    ):
        with pytest.raises(ScoreError, match=words):
            cap_eta(torch.tensor([0.1, value]), most)


def test_cap_leaves_what_is_below_it_alone():
    eta = torch.tensor([0.0, 0.05, 0.2, 0.83], dtype=torch.float64)
    assert cap_eta(eta, 0.2).tolist() == [0.0, 0.05, 0.2, 0.2]


KEYS = sorted(map(text_key, ("No effusion is seen.", "The lungs are clear.", "Heart is normal.")))


def look_up(work: Path, keys: list[str], of_second: float | None = 0.2) -> np.ndarray:
    """Read the etas of some keys from a cache of those of `KEYS`."""
    etas, others = (0.1, of_second, 0.3), {"pll_nats": None, "tokens": None, "count": 1}
    rows = [{"text_key": key, "eta": x, **others} for key, x in zip(KEYS, etas, strict=True)]
    artifact = commit_tables(work, eta.ARTIFACT, {eta.ETA: rows})
    return eta.read_eta(artifact, pa.array(keys, pa.string()))


def test_etas_are_found_by_key_in_the_order_asked_and_a_missing_one_is_named(tmp_path):
    found = look_up(tmp_path, [KEYS[2], KEYS[0], KEYS[2]])
    assert found.dtype == np.float64
    assert found.tolist() == [0.3, 0.1, 0.3]
    assert look_up(tmp_path, []).shape == (0,)
    for missing in ("0" * 32, "f" * 32, text_key("Never said before.")):
        with pytest.raises(ScoreError, match=rf"1 sentences have no eta.*{missing}.*build_eta_c"):
            look_up(tmp_path, [KEYS[0], missing])


@pytest.mark.parametrize("wrong", [math.nan, -0.01, 1.0, None])
def test_an_entry_that_is_no_probability_is_named(tmp_path, wrong):
    with pytest.raises(ScoreError, match=rf"1 etas are not in \[0, 1\).*{KEYS[1]}.*build_eta"):
        look_up(tmp_path, KEYS, of_second=wrong)


@pytest.mark.parametrize("column", ["eta", "rho"])
def test_given_values_are_keyed_by_normalised_text(tmp_path, column):
    path = tmp_path / "given.csv"
    path.write_text(
        f'{column},text,more\n0.25,"No  effusion, seen.",x\n0,Clear lungs.,y\n0.5,2. Edema.,z\n'
    )
    values = {"No effusion, seen.": 0.25, "Clear lungs.": 0.0, "Edema.": 0.5}
    assert read_given_table(path) == {text_key(text): value for text, value in values.items()}


@pytest.mark.parametrize(
    "content",
    [
        "text,value\na,0.1\n",
        "eta\n0.1\n",
        *(f"text,eta\na,{value}\n" for value in ("high", "1.5", "-0.1", "nan")),
        "text,eta\na,0.1\na ,0.2\n",
        "",
    ],
)
def test_malformed_tables_are_refused(tmp_path, content):
    path = tmp_path / "given.csv"
    path.write_text(content)
    with pytest.raises(ConfigError, match=r"eta\.table"):
        read_given_table(path)
