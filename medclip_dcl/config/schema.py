"""The whole configuration: one frozen tree, unknown keys refused."""

from typing import Annotated

from pydantic import Field

from medclip_dcl.config.card import CardConfig
from medclip_dcl.config.check import CheckConfig
from medclip_dcl.config.evaluation import (
    EvaluateConfig,
    IndexConfig,
    ReportConfig,
    RetrievalConfig,
)
from medclip_dcl.config.model import ModelConfig
from medclip_dcl.config.objective import ObjectiveConfig
from medclip_dcl.config.probabilities import ProbabilitiesConfig
from medclip_dcl.config.section import Section
from medclip_dcl.config.studies import GenerateConfig, ImagesConfig, SourceConfig
from medclip_dcl.config.table1 import Table1Config
from medclip_dcl.config.text import (
    CalibrateConfig,
    EtaConfig,
    LanguageModelConfig,
    LikelihoodConfig,
    SentencesConfig,
)
from medclip_dcl.config.training import TrainConfig
from medclip_dcl.config.views import ImageSetConfig, ProbeConfig, ViewsConfig


class Config(Section):
    """Every setting of a recipe."""

    work: str
    """Folder that receives every artifact of the recipe; `${WORK}` in other paths means it."""
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0
    """Seed of everything that is drawn."""
    jobs: tuple[str, ...] = ()
    """Jobs that `full_run.sh` runs, in order; empty: all but `generate_studies`."""
    generate: GenerateConfig = GenerateConfig()
    """Generated studies."""
    source: SourceConfig = SourceConfig()
    """Source of studies."""
    check: CheckConfig = CheckConfig()
    """Check of the source before anything is prepared."""
    images: ImagesConfig = ImagesConfig()
    """Prepared images."""
    sentences: SentencesConfig = SentencesConfig()
    """Sentences."""
    language_model: LanguageModelConfig = LanguageModelConfig()
    """Masked language model."""
    likelihood: LikelihoodConfig = LikelihoodConfig()
    """Pseudo-log-likelihoods."""
    eta: EtaConfig = EtaConfig()
    """Class probabilities of sentences."""
    calibrate: CalibrateConfig = CalibrateConfig()
    """a and k of the class probabilities, fitted."""
    model: ModelConfig = ModelConfig()
    """Encoders and similarity."""
    objective: ObjectiveConfig = ObjectiveConfig()
    """Loss."""
    train: TrainConfig = TrainConfig()
    """Training loop."""
    image_set: ImageSetConfig = ImageSetConfig()
    """Images of the image-only experiment."""
    views: ViewsConfig = ViewsConfig()
    """Views of the image-only experiment."""
    probe: ProbeConfig = ProbeConfig()
    """Linear probes of the image-only experiment."""
    probabilities: ProbabilitiesConfig = ProbabilitiesConfig()
    """Scores as probabilities."""
    evaluate: EvaluateConfig = EvaluateConfig()
    """Evaluation."""
    table1: Table1Config = Table1Config()
    """Table 1."""
    index: IndexConfig = IndexConfig()
    """Retrieval index."""
    retrieval: RetrievalConfig = RetrievalConfig()
    """Engine of the candidates."""
    card: CardConfig = CardConfig()
    """Model card and data card."""
    report: ReportConfig = ReportConfig()
    """HTML report."""
