"""Fitting learns, repeats itself for one seed, and resumes; its tokenizer reads as BERT's does."""

import pytest
import torch

from medclip_dcl.core.errors import ReportError, TrainingError
from medclip_dcl.likelihood import LanguageModelConfig, fitting
from medclip_dcl.likelihood.masked_lm import LanguageModel
from medclip_dcl.likelihood.pll import encode_sentences
from tests.support.bert import SENTENCES, tiny_bert, tiny_tokenizer

SETTINGS = LanguageModelConfig(steps=30, batch=16, learning_rate=5e-3)
SHORT = SETTINGS.model_copy(update={"steps": 10})


def tiny_corpus(sentences=SENTENCES) -> fitting.EncodedCorpus:
    tokenizer = tiny_tokenizer()
    encodings = encode_sentences(tokenizer, sentences)
    return fitting.EncodedCorpus(encodings, len(tokenizer), tokenizer.mask_token_id)


def require_same_bits(one, other) -> None:
    torch.testing.assert_close(one.state_dict(), other.state_dict(), rtol=0, atol=0)


def test_fitting_restores_masked_pieces_of_the_corpus():
    model, corpus = tiny_bert(scale=0, dropout=0.0), tiny_corpus()
    before = fitting.masked_accuracy(model, corpus, 4, seed=1)
    fitting.fit_model(model, corpus, SETTINGS.model_copy(update={"steps": 150}), seed=0)
    after = fitting.masked_accuracy(model, corpus, 4, seed=1)
    assert before["held_out_accuracy"] < 0.4
    assert after["held_out_accuracy"] > 0.6
    assert after["held_out_nats"] < before["held_out_nats"] / 2
    assert not model.training


def test_a_fit_that_goes_on_from_a_saved_state_ends_with_the_same_bits(tmp_path, monkeypatch):
    whole, stopped, resumed = tiny_bert(), tiny_bert(), tiny_bert(scale=1.0)
    fitting.fit_model(whole, tiny_corpus(), SHORT, seed=5)
    file, written = fitting.FitStateFile(tmp_path), []
    write = file.write

    def kill(model, optimizer, step):
        write(model, optimizer, step)
        written.append(step)
        if step == 6:
            raise KeyboardInterrupt

    monkeypatch.setattr(file, "write", kill)
    monkeypatch.setattr("medclip_dcl.likelihood.fitting._SAVE_EVERY_S", 0.0)
    monkeypatch.setattr("medclip_dcl.likelihood.fitting._SAVING_SHARE", 1e9)
    with pytest.raises(KeyboardInterrupt):
        fitting.fit_model(stopped, tiny_corpus(), SHORT, 5, file)
    assert written == [1, 2, 3, 4, 5, 6]
    monkeypatch.setattr(file, "write", lambda *state: written.append(state[-1]))
    fitting.fit_model(resumed, tiny_corpus(), SHORT, 5, file)
    assert written[6:] == [7, 8, 9]
    require_same_bits(whole, resumed)


@pytest.mark.parametrize("data", [None, b"half a fi"])
def test_missing_or_damaged_state_means_a_fresh_start(tmp_path, data):
    whole, started, file = tiny_bert(), tiny_bert(), fitting.FitStateFile(tmp_path)
    if data is not None:
        (tmp_path / "fit_state.safetensors").write_bytes(data)
    fitting.fit_model(whole, tiny_corpus(), SHORT, 5)
    fitting.fit_model(started, tiny_corpus(), SHORT, 5, file)
    require_same_bits(whole, started)
    file.remove()
    assert list(tmp_path.iterdir()) == []


def test_a_gradient_that_is_no_number_stops_the_fit():
    model = tiny_bert()
    model.cls.predictions.bias.data[0] = torch.nan
    with pytest.raises(TrainingError, match="learning_rate"):
        fitting.fit_model(model, tiny_corpus(), SETTINGS, seed=0)


def test_trimmed_forward_pass_equals_the_whole_model():
    model, corpus = tiny_bert(), tiny_corpus()
    batch = corpus.draw(6, torch.Generator().manual_seed(0))
    logits, labels = fitting._predict(model, batch)
    asked = batch.labels != fitting.NOT_ASKED
    torch.testing.assert_close(logits, model(batch.ids).logits[asked], atol=1e-5, rtol=1e-5)
    assert torch.equal(labels, batch.labels[asked])


def test_batches_hold_one_length_and_draw_sentences_alike():
    corpus = tiny_corpus()
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        batch = corpus.draw(5, generator)
        asked = batch.labels != fitting.NOT_ASKED
        assert asked.any(1).all()
        assert not asked[:, [0, -1]].any()
        assert (batch.ids[:, [0, -1]] == torch.tensor([2, 3])).all()
    corpus = tiny_corpus(["no ."] * 30 + ["no effusion ."] * 10)
    generator = torch.Generator().manual_seed(0)
    short = sum(corpus.draw(1, generator).ids.shape[1] == 4 for _ in range(400))
    assert 270 <= short <= 330


def test_eight_of_ten_asked_pieces_are_masks():
    corpus = tiny_corpus(SENTENCES * 100)
    generator = torch.Generator().manual_seed(0)
    masks = asked = same = 0
    for batch in corpus.all_once(50, generator):
        where = batch.labels != fitting.NOT_ASKED
        asked += int(where.sum())
        masks += int((batch.ids[where] == 4).sum())
        same += int((batch.ids[where] == batch.labels[where]).sum())
    assert sum(len(b.ids) for b in corpus.all_once(50, generator)) == len(corpus) == 600
    assert masks / asked == pytest.approx(0.8, abs=0.04)
    assert same / asked == pytest.approx(0.1, abs=0.04)


LOADED = LanguageModel(tiny_bert(), tiny_tokenizer(), ())
LONG = "no effusion or " * 43  # 129 word pieces and two of the tokenizer's own


def test_whole_reports_are_held_out_and_long_sentences_are_counted():
    studies = [f"s{number}" for number in range(100)]
    held_out = sum(map(fitting._is_held_out, studies))
    rows = [(study, text) for study in studies for text in (SENTENCES[0], LONG)]
    fitted, unseen, dropped = fitting._corpora(LOADED, rows)
    assert 0 < held_out < 20
    assert (len(fitted), len(unseen), dropped) == (100 - held_out, held_out, 100)
    rows = [(study, LONG if fitting._is_held_out(study) else SENTENCES[1]) for study in studies]
    fitted, unseen, dropped = fitting._corpora(LOADED, rows)
    assert (len(fitted), len(unseen)) == (100 - dropped - 1, 1)


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        ([("a", LONG), ("b", LONG)], "shortest of 2 training sentences has 131 .* up to 128"),
        ([("a", SENTENCES[0]), ("b", LONG)], "1 training reports have sentences .* 2 are needed"),
        ([], "0 training reports"),
    ],
)
def test_what_cannot_be_fitted_is_refused_with_its_figures(rows, reason):
    with pytest.raises(ReportError, match=reason):
        fitting._corpora(LOADED, rows)


def test_the_tokenizer_lower_cases_writes_every_character_and_is_learned_alike_each_time():
    tokenizer = fitting.train_tokenizer(SENTENCES * 3, 200, 64)
    assert tokenizer.convert_ids_to_tokens(range(5)) == list(fitting.SPECIAL_TOKENS)
    assert " ".join(tokenizer.tokenize("NO Pleural, effusion.")) == "no pleural [UNK] effusion ."
    ids = tokenizer("No effusion.")["input_ids"]
    assert (ids[0], ids[-1]) == (tokenizer.cls_token_id, tokenizer.sep_token_id)
    tokenizer = fitting.train_tokenizer(SENTENCES, 100, 64)
    assert len(tokenizer) <= 100
    assert tokenizer.unk_token not in tokenizer.tokenize("unclear lungs flung apart")
    # the trainer's hash tables are seeded at random each time
    first, *others = (fitting.train_tokenizer(SENTENCES * 3, 120, 64).get_vocab() for _ in range(4))
    assert all(other == first for other in others)
