"""Fitting of the masked language model: training, saved state and card.

What a step draws depends on seed and step alone, so a killed fit resumes from its last saved state
and ends with the same weights.

The tokenizer reads text as bert-base-uncased does. A batch holds sentences of one length, so
nothing is padded and no attention mask is needed. The length is that of a sentence drawn
uniformly, and the others are drawn uniformly among those of its length: every sentence is as
likely as any other.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import jinja2
import torch
from jaxtyping import Int
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from tokenizers import Tokenizer
from tokenizers.models import WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer
from tokenizers.trainers import WordPieceTrainer
from torch import Tensor
from torch.nn import functional as F
from transformers import BertConfig, BertForMaskedLM, BertTokenizer

from medclip_dcl.core.artifact import Artifact
from medclip_dcl.core.errors import ReportError, TrainingError
from medclip_dcl.core.files import write_bytes, write_text
from medclip_dcl.core.progress import Progress, available_cores
from medclip_dcl.core.tables import read_table
from medclip_dcl.likelihood import HEADS, LanguageModelConfig
from medclip_dcl.likelihood.masked_lm import (
    CARD,
    LanguageModel,
    load_language_model,
    save_language_model,
)
from medclip_dcl.likelihood.pll import Encoding, encode_sentences
from medclip_dcl.text import sentences

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def train_tokenizer(sentences: Sequence[str], vocabulary: int, max_tokens: int) -> BertTokenizer:
    """Learn word pieces, lower-cased, from a corpus with its repeats; the same one each time.

    `vocabulary` is the most word pieces, the five special ones included; the corpus's characters
    are always among them. The model will read `max_tokens` of them.

    Source: Schuster and Nakajima 2012; Devlin et al. 2019.
    """
    normalizer = BertNormalizer(lowercase=True)
    tokenizer = Tokenizer(WordPiece())
    tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = BertPreTokenizer()
    characters = sorted({c for text in set(sentences) for c in normalizer.normalize_str(text)})
    # The trainer numbers "##x" pieces in the order of a randomly seeded hash table and
    # breaks ties by number; announced up front, their numbers are the same in every run.
    pieces = [prefix + c for c in characters if not c.isspace() for prefix in ("", "##")]
    trainer = WordPieceTrainer(
        vocab_size=vocabulary, special_tokens=[*SPECIAL_TOKENS, *pieces], show_progress=False
    )
    tokenizer.train_from_iterator(sentences, trainer)
    return BertTokenizer(vocab=tokenizer.get_vocab(), model_max_length=max_tokens)


NOT_ASKED = -100  # label of a position that is not predicted


@dataclass(frozen=True)
class MaskedBatch:
    """One training batch of sentences of one length."""

    ids: Int[Tensor, "rows length"]
    labels: Int[Tensor, "rows length"]


class EncodedCorpus:
    """Encoded sentences, repeats included, at least one, grouped by length."""

    def __init__(self, encodings: Sequence[Encoding], vocabulary: int, mask_id: int) -> None:
        self._vocabulary, self._mask_id = vocabulary, mask_id
        groups: dict[int, list[Encoding]] = {}
        for item in encodings:
            groups.setdefault(len(item.ids), []).append(item)
        self._groups = [groups[length] for length in sorted(groups)]
        self._ends = torch.tensor([len(group) for group in self._groups]).cumsum(0)
        self._ids = [torch.tensor([item.ids for item in group]) for group in self._groups]
        self._words = [torch.tensor([item.words for item in group]) for group in self._groups]

    def __len__(self) -> int:
        return int(self._ends[-1])

    def draw(self, rows: int, generator: torch.Generator) -> MaskedBatch:
        """Draw `rows` sentences of one length and mask them."""
        pivot = torch.randint(len(self), (1,), generator=generator)
        group = int(torch.searchsorted(self._ends, pivot, right=True))
        drawn = torch.randint(len(self._groups[group]), (rows,), generator=generator)
        return self._mask(group, drawn, generator)

    def all_once(self, rows: int, generator: torch.Generator) -> Iterator[MaskedBatch]:
        """Go through all sentences once, short ones first, at most `rows` in a batch."""
        for number, group in enumerate(self._groups):
            for start in range(0, len(group), rows):
                part = torch.arange(start, min(start + rows, len(group)))
                yield self._mask(number, part, generator)

    def _mask(
        self, group: int, rows: Int[Tensor, " rows"], generator: torch.Generator
    ) -> MaskedBatch:
        # 80 % masks, 10 % random pieces, 10 % as they are (Devlin et al. 2019, Section 3.1). At
        # least one piece of every sentence is asked, so that short ones are learned too: ours.
        ids = self._ids[group][rows]
        scored = self._words[group][rows] >= 0
        chance = torch.rand(ids.shape, generator=generator).masked_fill(~scored, 2.0)
        predicted = (chance < _MASK_SHARE) | (chance == chance.min(1, keepdim=True).values)
        labels = ids.masked_fill(~predicted, NOT_ASKED)
        kind = torch.rand(ids.shape, generator=generator)
        random_ids = torch.randint(self._vocabulary, ids.shape, generator=generator)
        hidden = ids.masked_fill(predicted & (kind < 0.8), self._mask_id)
        return MaskedBatch(torch.where(predicted & (kind >= 0.9), random_ids, hidden), labels)


_MASK_SHARE = 0.15  # of the word pieces; Devlin et al. 2019, Section 3.1
_HELD_OUT_SHARE = 0.05  # of the training reports, kept back to measure accuracy
_MAX_TOKENS = 128  # longest sentence that is fitted, with [CLS] and [SEP]; more are counted
_POSITIONS = 512  # that a BERT trained here can read, as bert-base
_WARMUP_SHARE = 0.1  # of the steps; the learning rate then falls linearly to 0
_WEIGHT_DECAY = 0.01  # of matrices; none for biases and norms
_SAVE_EVERY_S = 1.0  # at least, between saved states: what a kill can lose
_SAVING_SHARE = 0.02  # of the time of a fit, at most, is spent on saving
_CLIP_NORM = 1.0
_ENCODED_AT_ONCE = 4096  # sentences
_DRAWS = 4  # lengths in one step: more would make small matrices, fewer a noisier step
_MOMENTS = ("exp_avg", "exp_avg_sq")
_CARD = Path(__file__).with_name("card.jinja")


class FitStateFile:
    """Keeps the newest state of a fit, weights and moments of AdamW, in the draft's folder."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "fit_state.safetensors"

    def write(self, model: BertForMaskedLM, optimizer: torch.optim.AdamW, step: int) -> None:
        """Replace the saved state; a kill leaves the old one or the new one."""
        tensors = {
            f"{kind}/{name}": tensor.cpu().contiguous()
            for name, parameter in model.named_parameters()
            for kind, tensor in {"weight": parameter.detach(), **optimizer.state[parameter]}.items()
        }
        write_bytes(self._path, save(tensors, metadata={"step": str(step)}))

    def read(self, model: BertForMaskedLM, optimizer: torch.optim.AdamW) -> int:
        """Put the saved state back; return its steps, 0 where there is none that can be read."""
        try:
            with safe_open(self._path, framework="pt") as file:
                step = int(file.metadata()["step"])
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except (OSError, SafetensorError, KeyError, ValueError):
            return 0
        for name, parameter in model.named_parameters():
            with torch.no_grad():
                parameter.copy_(tensors[f"weight/{name}"])
            moments = {kind: tensors[f"{kind}/{name}"].to(parameter.device) for kind in _MOMENTS}
            optimizer.state[parameter] = {"step": tensors[f"step/{name}"], **moments}
        return step

    def remove(self) -> None:
        """Delete the saved state."""
        self._path.unlink(missing_ok=True)


def fit_model(
    model: BertForMaskedLM,
    corpus: EncodedCorpus,
    settings: LanguageModelConfig,
    seed: int,
    file: FitStateFile | None = None,
) -> float:
    """Train a masked language model in place; return the last loss, nats.

    What a step draws depends on seed and step alone, so a fit that goes on from the state in `file`
    ends with the weights of an uninterrupted one.

    Raises:
        TrainingError: the loss is not finite.

    Source: Devlin et al. 2019, Appendix A.2: AdamW, warm-up, then linear decay.
    """
    optimizer = _optimizer(model, settings.learning_rate)
    first = file.read(model, optimizer) if file else 0
    last, due = 0.0, 0.0
    devices = [model.device] if model.device.type == "cuda" else []
    model.train()
    with (
        torch.random.fork_rng(devices=devices),  # seeds of steps stay in here
        Progress("fit language model", settings.steps, "step", first) as bar,
    ):
        for step in range(first, settings.steps):
            # Up to a million steps no two seeds share a step's own.
            own_seed = (seed * 1_000_003 + step) % (1 << 62)
            generator = torch.Generator().manual_seed(own_seed)
            torch.manual_seed(own_seed)  # dropout draws from the global state
            for group in optimizer.param_groups:
                group["lr"] = settings.learning_rate * _decay(step, settings)
            last = _step(model, optimizer, corpus, settings, generator)
            bar.advance(1, nats=last)
            started = time.monotonic()
            if file and started >= due and step + 1 < settings.steps:
                file.write(model, optimizer, step + 1)
                saved = time.monotonic()
                due = saved + max(_SAVE_EVERY_S, (saved - started) / _SAVING_SHARE)
    model.train(False)
    return last


@torch.inference_mode()
def masked_accuracy(
    model: BertForMaskedLM, corpus: EncodedCorpus, batch: int, seed: int
) -> dict[str, float]:
    """Measure how well masked word pieces of unseen sentences are restored.

    Gives `held_out_accuracy`, `held_out_nats` per piece and the `held_out_pieces` asked; the model
    is left in eval mode.
    """
    model.train(False)
    generator = torch.Generator().manual_seed(seed)
    right = predicted = 0
    nats = 0.0
    for masked in corpus.all_once(batch, generator):
        logits, labels = _predict(model, masked)
        right += int((logits.argmax(-1) == labels).sum())
        nats += float(F.cross_entropy(logits, labels, reduction="sum"))
        predicted += len(labels)
    return {
        "held_out_accuracy": right / predicted,
        "held_out_nats": nats / predicted,
        "held_out_pieces": predicted,
    }


def _step(
    model: BertForMaskedLM,
    optimizer: torch.optim.Optimizer,
    corpus: EncodedCorpus,
    settings: LanguageModelConfig,
    generator: torch.Generator,
) -> float:
    rows = -(-settings.batch // _DRAWS)
    batches = [corpus.draw(rows, generator) for _ in range(_DRAWS)]
    predicted = sum(int((batch.labels != NOT_ASKED).sum()) for batch in batches)
    total = 0.0
    optimizer.zero_grad(set_to_none=True)
    for batch in batches:
        logits, labels = _predict(model, batch)
        # By the pieces of the whole step: each counts alike, whatever its batch.
        loss = F.cross_entropy(logits, labels, reduction="sum") / predicted
        loss.backward()  # type: ignore[no-untyped-call]
        total += loss.item()
    # The norm is not finite where any gradient is not: one look at it checks them all.
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), _CLIP_NORM)
    if not bool(torch.isfinite(norm)):
        raise TrainingError(
            "language-model gradient is not finite; lower language_model.learning_rate"
        )
    optimizer.step()
    return total


def _predict(model: BertForMaskedLM, batch: MaskedBatch) -> tuple[Tensor, Tensor]:
    # Logits, (asked, vocab), and labels of the positions that are asked.
    labels, whole = batch.labels.to(model.device), cast(Any, model)
    row, position = (labels != NOT_ASKED).nonzero(as_tuple=True)
    states = whole.bert.embeddings(input_ids=batch.ids.to(model.device))  # (rows, length, width)
    *layers, last = whole.bert.encoder.layer
    for layer in layers:
        states = layer(states)
    # Behind the last layer's attention nothing reads the other positions.
    context = last.attention.self(states)[0][row, position]
    attended = last.attention.output(context, states[row, position])
    return whole.cls(last.feed_forward_chunk(attended)), labels[row, position]


def _optimizer(model: BertForMaskedLM, learning_rate: float) -> torch.optim.AdamW:
    groups = [
        {"params": [p for p in model.parameters() if p.ndim > 1], "weight_decay": _WEIGHT_DECAY},
        {"params": [p for p in model.parameters() if p.ndim <= 1], "weight_decay": 0.0},
    ]
    # .98 remembers 50 steps; the usual .999 remembers 1,000, as many as a whole fit has.
    return torch.optim.AdamW(groups, lr=learning_rate, betas=(0.9, 0.98), foreach=True)


def _decay(step: int, settings: LanguageModelConfig) -> float:
    # Share of the peak learning rate that a step uses.
    warmup = max(1, round(_WARMUP_SHARE * settings.steps))
    return min((step + 1) / warmup, (settings.steps - step) / max(1, settings.steps - warmup))


def fit_language_model(
    folder: Path,
    source: Artifact,
    settings: LanguageModelConfig,
    pretrained: Path | None,
    began: str,
    seed: int,
) -> dict[str, Any]:
    """Fit a model to the sentences of the training split, write it with its card, and sum up.

    It begins from the checkpoint `pretrained`, whose digest is `began`; None: from a small BERT of
    random weights. It resumes from a state that a killed run left in the draft's folder.

    Raises:
        CheckpointError: the checkpoint cannot be read.
        ReportError: there are too few sentences, or all are too long.
        TrainingError: the loss is not finite.
    """
    # Other counts add in another order, so a fit that must repeat names its threads.
    torch.set_num_threads(settings.threads or available_cores())
    table = read_table(source.path, sentences.SENTENCES, ["study_id", "split", "text"])
    rows = [(row["study_id"], row["text"]) for row in table.to_pylist() if row["split"] == "train"]
    texts = [text for study, text in rows if not _is_held_out(study)]
    loaded = load_language_model(pretrained) if pretrained else _small_bert(texts, settings, seed)
    corpus, unseen, dropped = _corpora(loaded, rows)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    loaded.model.to(device)  # type: ignore[arg-type] # transformers wraps it untyped
    state = FitStateFile(folder)

    def measured() -> dict[str, float]:
        scores = masked_accuracy(loaded.model, unseen, settings.batch, seed)
        return {name: round(value, 5) for name, value in scores.items()}

    before = {"held_out_accuracy_before": measured()["held_out_accuracy"]} if pretrained else {}
    loss = fit_model(loaded.model, corpus, settings, seed, state)
    facts = {
        "fitted": True,
        "sentences": len(corpus),
        "held_out_sentences": len(unseen),
        "dropped_too_long": dropped,
        "loss_nats": round(loss, 5),
        **before,
        **measured(),
        **_size(loaded),
    }
    made_with = {**weight_settings(settings), "seed": seed, "sentences": source.digest}
    _write(folder, loaded, facts, made_with, began)
    state.remove()
    return facts


def copy_language_model(folder: Path, pretrained: Path, began: str) -> dict[str, Any]:
    """Write a given model, whose digest is `began`, as it is, with its card; CheckpointError."""
    loaded = load_language_model(pretrained)
    facts = {"fitted": False, **_size(loaded)}
    _write(folder, loaded, facts, {}, began)
    return facts


def weight_settings(settings: LanguageModelConfig) -> dict[str, Any]:
    """The settings that the weights depend on, the checkpoint's path left out."""
    return settings.model_dump(mode="json", exclude={"pretrained", "threads"})


def _write(
    folder: Path,
    loaded: LanguageModel,
    facts: Mapping[str, Any],
    settings: Mapping[str, Any],
    began: str,
) -> None:
    # The card has counts and scalars of the run, no texts, and is the same for equal arguments.
    # Empty settings: it was not fitted here; empty `began`: from random weights.
    template = jinja2.Template(_CARD.read_text(encoding="utf-8"), keep_trailing_newline=True)
    card = template.render(facts=facts, settings=settings, began=began)
    save_language_model(loaded.model, loaded.tokenizer, folder)
    write_text(folder / CARD, card)


def _is_held_out(study_id: str) -> bool:
    return _share(study_id) < _HELD_OUT_SHARE


def _share(study_id: str) -> float:
    return int(sentences.text_key(study_id)[:8], 16) / 2**32  # in [0, 1), fixed by the id


def _small_bert(texts: Sequence[str], settings: LanguageModelConfig, seed: int) -> LanguageModel:
    tokenizer = train_tokenizer(texts, settings.vocabulary, _POSITIONS)
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=settings.hidden_size,
        num_hidden_layers=settings.layers,
        num_attention_heads=HEADS,
        intermediate_size=4 * settings.hidden_size,
        max_position_embeddings=_POSITIONS,
        hidden_dropout_prob=0.0,  # few steps over a small corpus: it does not overfit
        attention_probs_dropout_prob=0.0,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return LanguageModel(BertForMaskedLM(config), tokenizer, ())


def _corpora(
    loaded: LanguageModel, rows: Sequence[tuple[str, str]]
) -> tuple[EncodedCorpus, EncodedCorpus, int]:
    """Encode sentences to fit to and held-out ones, by report; count those that are too long.

    Of the reports with a sentence that is short enough a fixed share is held out, one at least.
    """
    distinct = list(dict.fromkeys(text for _, text in rows))  # an encoding takes kilobytes
    encoding_of: dict[str, Encoding] = {}
    for start in range(0, len(distinct), _ENCODED_AT_ONCE):
        part = distinct[start : start + _ENCODED_AT_ONCE]
        encoding_of |= zip(part, encode_sentences(loaded.tokenizer, part), strict=True)
    short = [
        (study, encoding_of[text])
        for study, text in rows
        if len(encoding_of[text].ids) <= _MAX_TOKENS
    ]
    studies = {study for study, _ in short}
    if rows and not short:
        shortest = min(len(encoding.ids) for encoding in encoding_of.values())
        raise ReportError(
            f"the shortest of {len(rows)} training sentences has {shortest} word pieces, and "
            f"sentences are fitted up to {_MAX_TOKENS}; check that split_sentences finds the "
            "sentences, or set language_model.pretrained and steps 0"
        )
    if len(studies) < 2:
        raise ReportError(
            f"{len(studies)} training reports have sentences to fit to, and 2 are needed: one is "
            "held out; add reports"
        )
    held_out = {study for study in studies if _is_held_out(study)} or {min(studies, key=_share)}
    if held_out == studies:  # nothing would be left to fit to
        held_out = {min(studies, key=_share)}
    tokenizer: BertTokenizer = loaded.tokenizer
    fitted, unseen = (
        EncodedCorpus(
            [encoding for study, encoding in short if (study in held_out) == is_held_out],
            len(tokenizer),
            tokenizer.mask_token_id,
        )
        for is_held_out in (False, True)
    )
    return fitted, unseen, len(rows) - len(short)


def _size(loaded: LanguageModel) -> dict[str, int]:
    return {
        "parameters": sum(parameter.numel() for parameter in loaded.model.parameters()),
        "vocabulary": len(loaded.tokenizer),
        "ignored_keys": len(loaded.ignored),
    }
