"""Rows that are no settings of ours: each changes the setup of a run before its first step."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from medclip_dcl.data.manifest import REPORTS
from medclip_dcl.likelihood.eta import ETA
from medclip_dcl.likelihood.eta_fit import fit_line, measure_shares
from medclip_dcl.losses.info_nce import info_nce_loss
from medclip_dcl.losses.multi_positive import multi_positive_loss
from medclip_dcl.losses.place import place_loss, place_masks
from medclip_dcl.losses.relations import (
    ASSERTED,
    DIFFERENT,
    SAME,
    UNCLEAR,
    relation_matrix,
)
from medclip_dcl.models.dual_encoder import DualEncoder
from medclip_dcl.tables import read_table
from medclip_dcl.text.labeler.labels import REPORT_CLAIMS, SENTENCE_CLAIMS, ReportLabels
from medclip_dcl.text.sentences import distinct_sentences
from medclip_dcl.training.corpus import Corpus, TokenTable
from medclip_dcl.training.dataset import ImageTextBatch, ImageTextDataset
from medclip_dcl.training.objective import (
    ContrastiveObjective,
    ObjectiveOutput,
    Term,
    place_term,
)
from medclip_dcl.training.sampler import ImageTextSampler, RaggedIndex
from medclip_dcl.training.settings import ObjectiveConfig
from medclip_dcl.training.setup import TrainInputs, TrainSetup
from medclip_dcl.training.supervision import read_report_labels, read_supervision
from medclip_dcl.training.trainer import TrainingData

Change = Callable[[TrainSetup, TrainInputs], TrainSetup]


# --- Another eta


def with_eta(setup: TrainSetup, eta: Float[np.ndarray, " texts"]) -> TrainSetup:
    """Give every distinct training text another eta."""
    return with_corpus(setup, replace(setup.data.corpus, eta=eta.astype(np.float32)))


def shuffled_eta(setup: TrainSetup, _inputs: TrainInputs) -> TrainSetup:
    """Control: deal the etas out to other texts."""
    rng = np.random.default_rng(setup.config.seed)
    return with_eta(setup, rng.permutation(setup.data.corpus.eta))


def reversed_eta(setup: TrainSetup, _inputs: TrainInputs) -> TrainSetup:
    """Control: give the most corrected text the least eta, and so on."""
    eta = setup.data.corpus.eta
    turned = np.empty_like(eta)
    turned[np.argsort(eta, kind="stable")] = np.sort(eta)[::-1]
    return with_eta(setup, turned)


def eta_per_piece(setup: TrainSetup, inputs: TrainInputs) -> TrainSetup:
    """Take the mean likelihood of a word piece for p, with a and k fitted to training labels."""
    assert inputs.claims is not None, "this row reads labels"
    keys = distinct_sentences(inputs.sentences)["text_key"].to_pylist()
    rows = read_table(inputs.eta_cache.path, ETA, ["text_key", "pll_nats", "tokens"]).to_pylist()
    likelihoods = {row["text_key"]: row["pll_nats"] / row["tokens"] for row in rows}
    per_piece = np.array([likelihoods[key] for key in keys])
    cap = setup.config.eta.eta_max
    shares = measure_shares(inputs.sentences, inputs.claims, "labels", inputs.manifest)
    eta = fit_line(per_piece, shares, cap).eta(per_piece, cap)
    of_text = dict(zip(keys, eta.tolist(), strict=True))
    return with_eta(setup, np.array([of_text[key] for key in setup.data.corpus.text_keys]))


def with_corpus(
    setup: TrainSetup,
    corpus: Corpus,
    inputs: TrainInputs | None = None,
    make_sampler: Callable[..., ImageTextSampler] = ImageTextSampler,
) -> TrainSetup:
    """Train on another corpus; with `inputs` its texts, and so what is read of them, are others."""
    config = setup.config
    tokens, supervision = setup.data.dataset.tokens, setup.data.dataset.supervision
    if inputs is not None:
        tokens = TokenTable(setup.start.tokenizer, corpus.texts, config.model.text.max_tokens)
        supervision = read_supervision(
            config.objective, corpus, inputs.manifest, inputs.claims, inputs.truth
        )
    batch = config.train.global_batch
    sampler = make_sampler(
        corpus.images, corpus.sentences, batch, config.seed, config.train.shuffle_reports
    )
    dataset = ImageTextDataset(
        corpus=corpus,
        supervision=supervision,
        prepared=setup.prepared,
        tokens=tokens,
        sampler=sampler,
        input_px=config.model.image.input_px,
        seed=config.seed,
        mine=slice(0, batch),
    )
    return replace(setup, data=TrainingData(corpus, dataset, sampler))


# --- Another corpus


def _sentences_of(corpus: Corpus) -> tuple[np.ndarray, np.ndarray]:
    """Give study and distinct text of every sentence, in the order of reports."""
    study = np.repeat(np.arange(len(corpus.study_ids)), corpus.sentences.sizes)
    first = np.concatenate([[0], np.cumsum(corpus.sentences.sizes)[:-1]])
    number = np.arange(len(study)) - np.repeat(first, corpus.sentences.sizes)
    uniform = (number + 0.5) / corpus.sentences.sizes[study]
    return study, corpus.text_of[corpus.sentences.pick(study, uniform)]


def _restated(
    corpus: Corpus, study: np.ndarray, texts: Sequence[str], keys: Sequence[str]
) -> Corpus:
    """Give the corpus with other sentences: the study, text and key of each."""
    names, first, index = np.unique(np.array(keys), return_index=True, return_inverse=True)
    return replace(
        corpus,
        sentences=RaggedIndex(study, len(corpus.study_ids)),
        text_of=index.astype(np.int64),
        texts=tuple(texts[row] for row in first),
        text_keys=tuple(names.tolist()),
        eta=np.zeros(len(names), dtype=np.float32),
    )


def _claims_of(inputs: TrainInputs, keys: Sequence[str]) -> list[ReportLabels]:
    assert inputs.claims is not None, "this row reads claims"
    return read_report_labels(inputs.claims, SENTENCE_CLAIMS, "text_key", keys)


def fewer_studies(setup: TrainSetup, inputs: TrainInputs, count: int) -> TrainSetup:
    """Train on so many studies; fewer are among more. Language model and validation stay whole."""
    order = np.random.default_rng(setup.config.seed).permutation(len(setup.data.corpus.study_ids))
    return with_corpus(setup, of_studies(setup.data.corpus, np.sort(order[:count])), inputs)


def of_studies(corpus: Corpus, kept: Int[np.ndarray, " kept"]) -> Corpus:
    """Give the corpus of some of its studies, in order; texts of others stay, unused."""
    number = np.full(len(corpus.study_ids), -1)
    number[kept] = np.arange(len(kept))
    study, text = _sentences_of(corpus)
    spoken = number[study] >= 0
    of_image = number[corpus.study_of_image]
    shown = np.flatnonzero(of_image >= 0)
    return replace(
        corpus,
        study_ids=tuple(corpus.study_ids[row] for row in kept),
        images=RaggedIndex(of_image[shown], len(kept)),
        image_ids=tuple(corpus.image_ids[row] for row in shown),
        study_of_image=of_image[shown],
        image_rows=corpus.image_rows[shown],
        sentences=RaggedIndex(number[study[spoken]], len(kept)),
        text_of=text[spoken],
    )


def without_negations(setup: TrainSetup, inputs: TrainInputs) -> TrainSetup:
    """Take out what denies, or calls normal, of every report that asserts a finding.

    Source: OFF-CLIP (Park et al. 2025), whose filter keeps abnormal sentences of abnormal reports.
    """
    corpus = setup.data.corpus
    study, text = _sentences_of(corpus)
    claims = _claims_of(inputs, corpus.text_keys)
    asserts = np.array([bool(said.asserted) for said in claims])
    denies = np.array([not said.asserted and bool(said.negated or said.normal) for said in claims])
    abnormal = np.zeros(len(corpus.study_ids), dtype=bool)
    abnormal[study[asserts[text]]] = True
    kept = ~(abnormal[study] & denies[text])
    chosen = text[kept]
    texts = [corpus.texts[row] for row in chosen]
    keys = [corpus.text_keys[row] for row in chosen]
    return with_corpus(setup, _restated(corpus, study[kept], texts, keys), inputs)


def one_form(setup: TrainSetup, inputs: TrainInputs) -> TrainSetup:
    """Say every claim in one form: "There is X.", "There is no X."; other sentences stay.

    Source: CARZero (Lai et al. 2024), where a language model does it.
    """
    corpus = setup.data.corpus
    study, text = _sentences_of(corpus)
    said = _claims_of(inputs, corpus.text_keys)
    forms = [_in_one_form(*pair) for pair in zip(said, corpus.texts, strict=True)]
    texts = [forms[row] for row in text]
    return with_corpus(setup, _restated(corpus, study, texts, texts), inputs)


def _in_one_form(said: ReportLabels, text: str) -> str:
    parts = []
    for name, sides in sorted(said.asserted.items()):
        side = " and ".join(sorted(sides))
        parts.append(f"There is {f'{side} {name.lower()}'.strip()}.")
    parts += [f"There may be {name.lower()}." for name in sorted(said.uncertain)]
    parts += [f"There is no {name.lower()}." for name in sorted(said.negated)]
    if said.normal and not parts:
        parts.append("The chest is normal.")
    return " ".join(parts) or text


def whole_report(setup: TrainSetup, inputs: TrainInputs) -> TrainSetup:
    """Take all sentences of a report for one text."""
    study, text = _sentences_of(setup.data.corpus)
    parts: list[list[str]] = [[] for _ in setup.data.corpus.study_ids]
    for owner, row in zip(study.tolist(), text.tolist(), strict=True):
        parts[owner].append(setup.data.corpus.texts[row])
    joined = [" ".join(part) for part in parts]
    corpus = _restated(setup.data.corpus, np.arange(len(joined)), joined, joined)
    return with_corpus(setup, corpus, inputs)


def impression_alone(setup: TrainSetup, inputs: TrainInputs) -> TrainSetup:
    """Take the impression for the text of a study, or all its sentences where it has none."""
    rows = read_table(inputs.manifest.path, REPORTS, ["study_id", "impression"]).to_pylist()
    said = {row["study_id"]: " ".join(row["impression"].split()) for row in rows}
    whole = whole_report(setup, inputs).corpus
    texts = [
        said[study] or whole.texts[whole.text_of[row]] for row, study in enumerate(whole.study_ids)
    ]
    corpus = _restated(whole, np.arange(len(texts)), texts, texts)
    return with_corpus(setup, corpus, inputs)


# --- Another relation


class RelatedObjective(ContrastiveObjective):
    """The configured loss with relations that a function of the batch gives.

    Where it gives None, for batches of studies that do not train, they are the usual ones.
    """

    def __init__(
        self, setup: TrainSetup, relate: Callable[[ImageTextBatch], Tensor | None]
    ) -> None:
        super().__init__(setup.config.objective, setup.config.seed)
        self._relate = relate

    def relation(self, batch: ImageTextBatch, *, from_text: bool) -> Tensor | None:
        """Ask the function of the batch first."""
        relation = self._relate(batch)
        if relation is None:
            return super().relation(batch, from_text=from_text)
        return relation if from_text else relation.T


def shuffled_relations(setup: TrainSetup, _inputs: TrainInputs) -> TrainSetup:
    """Control: relations are those to the report of another study, the same one in all steps."""
    codes = setup.data.dataset.supervision.of_studies["report_codes"]
    rng = np.random.default_rng(setup.config.seed)
    cycle = rng.permutation(len(codes))
    other = np.empty_like(cycle)
    other[cycle] = np.roll(cycle, -1)
    row_of = {study: row for row, study in enumerate(setup.data.corpus.study_ids)}

    def relate(batch: ImageTextBatch) -> Tensor | None:
        if not row_of.keys() >= set(batch.study_ids):
            return None
        reports = codes[other[[row_of[study] for study in batch.study_ids]]]
        return relation_matrix(batch.columns["sentence_codes"], reports)

    return replace(setup, objective=RelatedObjective(setup, relate))


def normals_together(setup: TrainSetup, inputs: TrainInputs) -> TrainSetup:
    """Make normal reports positives of one another, and nothing else.

    Source: OFF-CLIP (Park et al. 2025), whose off-diagonal term pulls normal samples together.
    """
    assert inputs.claims is not None, "this row reads claims"
    studies = setup.data.corpus.study_ids
    normal = {
        study: said.normal
        for study, said in zip(
            studies,
            read_report_labels(inputs.claims, REPORT_CLAIMS, "study_id", studies),
            strict=True,
        )
    }

    def relate(batch: ImageTextBatch) -> Tensor | None:
        if not normal.keys() >= set(batch.study_ids):
            return None
        own = torch.tensor([normal[study] for study in batch.study_ids])
        both = own[:, None] & own[None, :]
        return torch.where(both, SAME, DIFFERENT).to(torch.int8)

    return replace(setup, objective=RelatedObjective(setup, relate))


# --- Another loss


class SoftTargets(ContrastiveObjective):
    """Cross entropy against a softmax of how alike the findings of sentence and report are.

    Source: MedCLIP (Wang et al. 2022), Eq. 4 to 7; labels are read by our labeler.
    """

    def contrast(self, s: Tensor, encoder: DualEncoder, batch: ImageTextBatch) -> ObjectiveOutput:
        """Compare both directions with their targets."""
        texts, images = (
            _findings(batch.columns[name]) for name in ("sentence_codes", "report_codes")
        )
        alike = (texts @ images.T) * encoder.gamma.detach() ** 2
        losses = [
            -(target.softmax(dim=1) * logits.log_softmax(dim=1)).sum(dim=1).mean()
            for target, logits in ((alike, s), (alike.T, s.T))
        ]
        return _output((losses[0] + losses[1]) / 2, s)


def _findings(codes: Tensor) -> Tensor:
    # Unit vectors of findings asserted (1) and denied (-1), and normal; zero where nothing is said.
    asserted = (codes[:, :-1] & ASSERTED != 0).float()
    denied = (codes[:, :-1] == 1).float()
    whole = torch.cat([asserted - denied, codes[:, -1:].float()], dim=1)
    return torch.nn.functional.normalize(whole, dim=1)


def soft_targets(setup: TrainSetup, _inputs: TrainInputs) -> TrainSetup:
    """Train by `SoftTargets`."""
    config = setup.config
    return replace(setup, objective=SoftTargets(config.objective, config.seed))


class SigmoidPairs(ContrastiveObjective):
    """Each pair judged on its own, with a bias that the encoder learns.

    With `relation: claims` what says the same belongs together, and unclear pairs are left out.

    Source: Zhai et al. 2023, Algorithm 1; relations are ours.
    """

    def contrast(self, s: Tensor, encoder: DualEncoder, batch: ImageTextBatch) -> ObjectiveOutput:
        """Judge the pairs of this process's texts with all images."""
        mine = batch.mine
        own = torch.arange(len(s))[mine, None] == torch.arange(len(s))
        relation = self.relation(batch, from_text=True)
        together = own if relation is None else own | (relation == SAME)
        counted = torch.ones_like(own) if relation is None else own | (relation != UNCLEAR)
        logits = s[mine] + encoder.get_parameter("bias")
        losses = -torch.nn.functional.logsigmoid(torch.where(together, logits, -logits))
        return _output((losses * counted).sum(dim=1).mean(), s)


def sigmoid_pairs(setup: TrainSetup, _inputs: TrainInputs) -> TrainSetup:
    """Train by `SigmoidPairs`: at its start a pair counts as positive once in a batch."""
    config = setup.config
    bias = torch.tensor(-math.log(config.train.global_batch - 1))
    setup.encoder.register_parameter("bias", torch.nn.Parameter(bias))
    return replace(setup, objective=SigmoidPairs(config.objective, config.seed))


def _output(loss: Tensor, s: Tensor) -> ObjectiveOutput:
    # InfoNCE of the texts stands in the log next to any loss.
    count = min(s.shape)
    plain = info_nce_loss(s[:count].detach())
    return ObjectiveOutput(loss, {"uncorrected_loss": plain, "frac_floor": plain.new_zeros(())})


# --- All sentences of a study in one step


@dataclass(frozen=True)
class StudyBatch(ImageTextBatch):
    """A batch of studies with every sentence of each: more texts than images."""

    owner: Int[Tensor, " texts"] | None = None
    """Slot of the study that each sentence is of."""


class WholeStudies:
    """The dataset's batches, with every sentence of the studies that the sampler draws."""

    def __init__(self, setup: TrainSetup) -> None:
        self._base, self._corpus = setup.data.dataset, setup.data.corpus
        self.supervision = setup.data.dataset.supervision
        self.tokens, self._sampler = setup.data.dataset.tokens, setup.data.sampler
        _, self._text = _sentences_of(setup.data.corpus)
        sizes = setup.data.corpus.sentences.sizes
        self._first = np.concatenate([[0], np.cumsum(sizes)])

    def anchors(self, step: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Give the distinct text and slot of every sentence of a step, and the slots' studies."""
        studies = self._sampler.draw(step).studies
        spans = [np.arange(self._first[study], self._first[study + 1]) for study in studies]
        owner = np.repeat(np.arange(len(studies)), [len(span) for span in spans])
        return self._text[np.concatenate(spans)], owner, studies

    def batch(self, step: int) -> StudyBatch:
        """Make the batch of a step, from 0; a function of the step alone."""
        base = self._base.batch(step)
        texts, owner, _ = self.anchors(step)
        ids, mask = self.tokens.padded(texts)
        rows = torch.from_numpy(texts)
        fields = {name: getattr(base, name) for name in base.__dataclass_fields__}
        fields |= {
            "input_ids": ids,
            "attention_mask": mask,
            "columns": {
                **base.columns,
                **{name: table[rows] for name, table in self.supervision.of_texts.items()},
            },
            "eta": torch.zeros(len(texts)),
        }
        return StudyBatch(**fields, owner=torch.from_numpy(owner))


class WholeStudyObjective(ContrastiveObjective):
    """Sentences against images, and images against sentences without their own others.

    With `relation: claims` the sentences are contrasted by relations (cross), else by InfoNCE.

    Source: RadZero (Park et al. 2025), multi-positive NCE; relations are ours.
    """

    def contrast(self, s: Tensor, encoder: DualEncoder, batch: ImageTextBatch) -> ObjectiveOutput:
        """Contrast scaled scores (texts, images)."""
        if not isinstance(batch, StudyBatch):  # of studies that do not train
            return super().contrast(s, encoder, batch)
        owner = batch.owner
        assert owner is not None
        if self.settings.relation == "none":
            texts = info_nce_loss(s, owner)
        else:
            codes = batch.columns["sentence_codes"], batch.columns["report_codes"]
            relation = relation_matrix(*codes)
            texts = multi_positive_loss(s, relation == SAME, relation == UNCLEAR, positive=owner)
        images = own_sentences_left_out(s, owner)
        return _output((texts + images) / 2, s)


def _placed(settings: ObjectiveConfig) -> Term:
    usual = place_term(settings)

    def place(
        regions: Tensor, sentences: Tensor, gamma: Tensor, batch: ImageTextBatch
    ) -> ObjectiveOutput:
        if not isinstance(batch, StudyBatch):
            return usual(regions, sentences, gamma, batch)
        columns, grid = batch.columns, (regions.shape[1], regions.shape[2])
        reports = columns["report_codes"][batch.owner]
        masks = place_masks(columns["sentence_codes"], reports, columns["zones"], grid)
        losses, fits = place_loss(regions[batch.owner], sentences, masks, gamma)
        placed = masks.flatten(1).any(dim=1).sum().clamp(min=1)
        loss = settings.place_weight * (losses.sum() / placed)
        return ObjectiveOutput(loss, {"place_inside": fits.sum() / placed})

    return place


def own_sentences_left_out(
    s: Float[Tensor, "texts images"], owner: Int[Tensor, " texts"]
) -> Float[Tensor, ""]:
    """Contrast an image's every own sentence with the sentences of other studies alone.

    The mean over own sentences p of -log( e^{s_p} / (e^{s_p} + sum_others e^s) ), then over images.
    """
    own = owner[:, None] == torch.arange(s.shape[1])
    others = s.masked_fill(own, -torch.inf).logsumexp(dim=0)  # of each image
    s_p = s.gather(1, owner[:, None]).squeeze(1)
    losses = torch.nn.functional.softplus(others[owner] - s_p)
    weight = 1 / own.sum(dim=0)[owner]
    return (losses * weight).sum() / s.shape[1]


def whole_studies(setup: TrainSetup, _inputs: TrainInputs) -> TrainSetup:
    """Train on every sentence of a study in each step."""
    config = setup.config
    objective = WholeStudyObjective(config.objective, config.seed)
    if config.objective.place_weight:
        objective.terms = [_placed(config.objective)]
    dataset: ImageTextDataset = WholeStudies(setup)  # type: ignore[assignment]
    return replace(setup, data=setup.data._replace(dataset=dataset), objective=objective)
