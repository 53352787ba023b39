"""Every config loads, fits the schema, and names jobs and files that exist."""

import re
from pathlib import Path

import jsonschema
import pytest
import yaml

from api.auth import is_loopback
from api.settings import read_service_settings
from medclip_dcl.data import manifest
from medclip_dcl.inference.prompts import read_prompts
from medclip_dcl.text import sentences
from medclip_dcl.text.labeler.labels import read_sentence
from medclip_dcl.text.labeler.phrases import Polarity
from pipelines.__main__ import config_schema, main
from pipelines.config import load_config
from pipelines.plan import _image_start
from pipelines.stages import stages_of
from tests.support.jobs import made
from tests.support.processes import options
from tests.support.public_sets import write_open_i_projections, write_open_i_xml

ROOT = Path(__file__).parents[2]
CONFIGS = sorted(
    path
    for folder in ("configs", "configs/train", "configs/evaluate")
    for path in (ROOT / folder).glob("*.yaml")
    if path.name != "serve.yaml"  # settings of a service, not of a run
)
LINE = "# yaml-language-server: $schema="


@pytest.fixture(scope="module")
def validator() -> jsonschema.Draft202012Validator:
    schema = config_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_recipe_loads_fits_the_schema_and_names_real_jobs(path: Path, validator) -> None:
    config = load_config(path)
    assert stages_of(config)
    assert (ROOT / config.evaluate.prompts).is_file()
    text = path.read_text(encoding="utf-8")
    assert [error.json_path for error in validator.iter_errors(yaml.safe_load(text))] == []
    first = text.splitlines()[0]
    assert first.startswith(LINE)
    # which `make` writes
    assert (path.parent / first.removeprefix(LINE)).resolve() == ROOT / "configs/schema.json"


@pytest.mark.parametrize(
    ("tree", "where"),
    [
        ({"train": {"step": 3}}, "$.train"),
        ({"train": {"steps": "many"}}, "$.train.steps"),
        ({"evaluate": {"bootstrap": -1}}, "$.evaluate.bootstrap"),
        ({"source": {"columns": {"patient": "id"}}}, "$.source.columns"),
        ({"jobs": ["train", "tain"]}, "$.jobs[1]"),
        ({"seeds": 3}, "$"),
    ],
)
def test_a_slip_is_found_where_it_is(validator, tree, where):
    assert [error.json_path for error in validator.iter_errors(tree)] == [where]


def test_the_demo_is_served_to_this_machine_alone() -> None:
    settings = read_service_settings(ROOT / "configs/serve.yaml", {})
    assert (settings.model, settings.index) == ("runs/demo/model", "runs/demo/index")
    assert settings.allow_anonymous
    assert is_loopback(settings.host)
    assert settings.port == 8000


def test_the_recipe_of_a_table_needs_no_weights_and_learns_from_random_ones(monkeypatch):
    """What newcomers copy: the recommended objective, at rates that leave the start."""
    path = ROOT / "configs/train/table.yaml"
    assert set(re.findall(r"\$\{(\w+)\}", path.read_text())) == {"STUDIES"}
    monkeypatch.setenv("STUDIES", "ours")
    config = load_config(path)
    recommended = load_config(ROOT / "configs/demo_cross.yaml").objective
    assert config.objective == recommended
    demo = load_config(ROOT / "configs/train/laptop.yaml").train
    rates = (config.train.learning_rate, config.train.text_learning_rate)
    assert rates == (demo.learning_rate, demo.text_learning_rate)
    assert _image_start(config) == ""
    # A batch of validation needs as many studies.
    assert config.train.global_batch <= 320 * config.source.validate_share


def test_the_recipe_of_mimic_cxr_is_the_paper_s() -> None:
    """Wang et al. 2023, Sections 2.4 and 3.2, and Table 2."""
    config = load_config(ROOT / "configs/train/mimic_cxr.yaml")
    train, model = config.train, config.model
    assert (train.global_batch, train.learning_rate, train.warmup_steps) == (64, 1e-5, 2000)
    assert (config.images.size_px, model.image.input_px) == (512, 480)
    assert model.image.depths == (2, 2, 2, 2)  # ResNet-18
    assert model.image.widths == (64, 128, 256, 512)
    assert model.image.pretrained == "${IMAGENET}"  # ours: the paper states no start
    assert model.similarity.dim == 128
    assert (model.similarity.kind, model.similarity.gamma_squared) == ("lse_nl", 14)
    assert (config.eta.source, config.eta.a, config.eta.k) == ("pll", 0.2, 0.35)
    assert config.eta.eta_max == config.eta.a  # the cap changes nothing
    said = config.objective
    assert (said.kind, said.directions, said.floor) == ("debiased", "t2i", "floor")
    assert (said.negatives, said.relation) == ("all", "none")  # M = 1, v the paired image
    assert config.likelihood.variant == "original"
    assert config.sentences.sections == ("findings", "impression")
    assert config.evaluate.prompts == "configs/prompts/chex5.yaml"
    assert config.source.boxes  # patients of MS-CXR never train


def test_the_recipe_of_open_i_reads_what_is_published(tmp_path, monkeypatch):
    write_open_i_xml(tmp_path / "open_i")
    write_open_i_projections(tmp_path / "open_i")
    monkeypatch.setenv("OPEN_I", str(tmp_path / "open_i"))
    settings = (f"work={tmp_path / 'work'}", "source.max_reject_share=1")
    words = ["--config", str(ROOT / "configs/train/open_i.yaml"), *options(settings)]
    assert main(["build_manifest", *words]) == 0
    assert main(["split_sentences", *words]) == 0
    assert made(tmp_path / "work", manifest.ARTIFACT).summary["images"] == 1
    assert made(tmp_path / "work", sentences.ARTIFACT).summary["sentences"] > 0


PROMPTS = {path.stem: read_prompts(path) for path in (ROOT / "configs/prompts").glob("*.yaml")}
NORMAL = {"No Finding", "No finding", "Healthy", "normal"}
"""Labels of a normal image, whose negative side asserts that something is abnormal."""


@pytest.mark.parametrize("name", sorted(PROMPTS.keys() - {"chex5_spanish"}))
def test_one_side_of_a_prompt_pair_asserts_and_the_other_denies_the_same(name: str) -> None:
    """By the project's own reader of reports, and where it knows no word of it, by the letters."""
    for finding in PROMPTS[name]:
        sides = [[*map(read_sentence, side)] for side in (finding.positive, finding.negative)]
        if finding.label in NORMAL:
            assert [[reading.normal for reading in side] for side in sides] == [[True], [False]]
            continue
        plus, minus = ([item for one in side for item in one.mentions] for side in sides)
        polarities = {item.polarity for item in plus}
        assert polarities <= {Polarity.ASSERTED, Polarity.UNCERTAIN}, finding
        assert {item.polarity for item in minus} <= {Polarity.NEGATED}, finding
        if plus and minus:
            assert {item.concept for item in plus} & {item.concept for item in minus}, finding
        else:
            texts = [f"No {text[0].lower()}{text[1:]}" for text in finding.positive]
            own = ["No Chilaiditi sign", "Normal lung volumes"]
            assert all(text in texts + own for text in finding.negative), finding


def test_prompts_of_a_set_name_its_findings_and_nearly_all_of_them() -> None:
    left_out = {
        "nih_chestxray14": set(),
        "vindr_cxr": {"Other lesion", "Other disease"},
        "padchest": {"unchanged"},
        "tbx11k": set(),
    }
    for name, absent in left_out.items():
        source = load_config(ROOT / f"configs/evaluate/{name}.yaml").source
        assert set(source.findings) - {item.label for item in PROMPTS[name]} == absent
        assert {item.label for item in PROMPTS[name]} <= set(source.findings)
    assert len(PROMPTS["padchest_50"]) == 50
    assert set(PROMPTS["padchest_50"]) <= set(PROMPTS["padchest"])
