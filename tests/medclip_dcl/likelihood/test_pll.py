"""Pseudo-log-likelihoods against a loop over single masks in float64."""

import copy
import math
from types import SimpleNamespace

import pytest
import torch
import transformers as hf

from medclip_dcl.core.errors import ScoreError
from medclip_dcl.likelihood.pll import encode_sentences, pseudo_log_likelihood
from tests.support.bert import SENTENCES, tiny_bert, tiny_tokenizer


def by_hand(model, tokenizer, sentence: str, variant: str) -> float:
    """Mask one piece at a time, one copy per forward pass, in float64."""
    exact = copy.deepcopy(model).double().eval()
    pieces = ["[CLS]", *tokenizer.tokenize(sentence), "[SEP]"]
    ids = tokenizer.convert_tokens_to_ids(pieces)
    total = 0.0
    for index in range(1, len(ids) - 1):
        end = index + 1
        while variant == "within_word_l2r" and pieces[end].startswith("##"):
            end += 1
        masked = [*ids[:index], *[tokenizer.mask_token_id] * (end - index), *ids[end:]]
        with torch.no_grad():
            logits = exact(input_ids=torch.tensor([masked])).logits[0, index]
        total += float(logits.log_softmax(-1)[ids[index]])
    return total


POSITIONS = {"max_position_embeddings": 40, "pad_token_id": 0}


def small(family: str, head: str = "ForMaskedLM", **settings: object) -> hf.PreTrainedModel:
    """A random model of width 16 of a family of transformers."""
    sizes = {"vocab_size": 34, "hidden_size": 16, "intermediate_size": 32}
    sizes |= {"num_hidden_layers": 2, "num_attention_heads": 2}
    config = getattr(hf, f"{family}Config")(**sizes, **settings)
    return getattr(hf, f"{family}{head}")(config).train(False)


@pytest.mark.parametrize(
    ("family", "settings"),
    [
        ("", {}),
        ("Albert", {"embedding_size": 8}),
        ("DistilBert", {"dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 32}),
        ("Roberta", POSITIONS),
        ("XLMRoberta", POSITIONS),
    ],
)
@pytest.mark.parametrize("variant", ["original", "within_word_l2r"])
def test_scores_equal_a_brute_force_loop_in_float64(family, settings, variant):
    tokenizer = tiny_tokenizer()
    torch.manual_seed(5)
    model = small(family, **settings) if family else tiny_bert()
    for parameter in model.parameters() if family else ():
        parameter.data.add_(0.2 * torch.randn_like(parameter))
    scores = pseudo_log_likelihood(model, tokenizer, SENTENCES, variant=variant)
    expected = [by_hand(model, tokenizer, sentence, variant) for sentence in SENTENCES]
    assert scores.dtype == torch.float32
    assert min(expected) < -20
    assert max(expected) < -10
    assert scores.tolist() == pytest.approx(expected, abs=2e-4)


@pytest.mark.parametrize("token_budget", [1, 7, 19, 4096])
def test_scores_do_not_depend_on_order_company_repeats_or_budget(token_budget):
    model, tokenizer = tiny_bert(), tiny_tokenizer()
    alone = [float(pseudo_log_likelihood(model, tokenizer, [text])[0]) for text in SENTENCES]
    order = [4, 2, 0, 3, 5, 1, 3, 2, 4]
    mixed = [SENTENCES[number] for number in order]
    scores = pseudo_log_likelihood(model, tokenizer, mixed, token_budget=token_budget)
    assert scores.tolist() == pytest.approx([alone[number] for number in order], abs=2e-4)


def test_a_uniform_model_gives_minus_n_log_vocabulary_so_own_tokens_are_not_scored():
    model, tokenizer = tiny_bert(), tiny_tokenizer()
    model.cls.predictions.transform.LayerNorm.weight.data.zero_()
    model.cls.predictions.transform.LayerNorm.bias.data.zero_()
    model.cls.predictions.bias.data.fill_(0.5)
    score = pseudo_log_likelihood(model, tokenizer, ["The lungs are clear."])
    assert float(score[0]) == pytest.approx(-5 * math.log(34), abs=1e-5)


def test_train_mode_has_no_effect_and_is_given_back():
    model, tokenizer = tiny_bert(dropout=0.25), tiny_tokenizer()
    quiet = pseudo_log_likelihood(model, tokenizer, SENTENCES)
    model.train()
    model.bert.embeddings.eval()
    again = pseudo_log_likelihood(model, tokenizer, SENTENCES)
    assert torch.equal(quiet, again)
    assert model.training
    assert model.bert.encoder.training
    assert not model.bert.embeddings.training


def test_each_distinct_sentence_is_scored_once():
    model, tokenizer = tiny_bert(), tiny_tokenizer()
    rows = []
    model.bert.embeddings.register_forward_hook(lambda *call: rows.append(len(call[2])))
    scores = pseudo_log_likelihood(model, tokenizer, ["No effusion."] * 5 + ["no  EFFUSION ."])
    assert sum(rows) == 2  # the sentence, and a row of masks
    assert len(set(scores.tolist())) == 1
    one = pseudo_log_likelihood(model, tokenizer, SENTENCES[0])  # a string is one sentence
    assert torch.equal(one, pseudo_log_likelihood(model, tokenizer, [SENTENCES[0]]))


def test_no_forward_pass_exceeds_the_budget_even_for_one_long_sentence():
    model, sizes, long = tiny_bert(), [], ["no effusion or " * 15]
    keys = model.bert.encoder.layer[1].attention.self.key
    keys.register_forward_hook(lambda *call: sizes.append(call[2].shape[:2]))
    pseudo_log_likelihood(model, tiny_tokenizer(), long, token_budget=200, engine="torch")
    assert len(sizes) > 1
    assert max(rows * length for rows, length in sizes) <= 200


def test_a_sentence_has_one_piece_at_least_and_may_fill_all_positions_that_a_model_has():
    tokenizer = tiny_tokenizer()
    with pytest.raises(ScoreError, match="sentence 1 has no word piece"):
        pseudo_log_likelihood(tiny_bert(), tokenizer, ["No effusion.", "  "])
    assert pseudo_log_likelihood(tiny_bert(), tokenizer, []).shape == (0,)
    # RoBERTa begins to count behind its padding, 1: of 40 positions it has 38 for tokens.
    roberta = small("Roberta", **POSITIONS | {"pad_token_id": 1})
    for model, positions in ((tiny_bert(), 64), (roberta, 38)):
        longest = "no " * (positions - 2)
        assert pseudo_log_likelihood(model, tokenizer, [longest]).isfinite().all()
        with pytest.raises(ScoreError, match=f"{positions + 1} word pieces.* {positions}; cut it"):
            pseudo_log_likelihood(model, tokenizer, [longest + "no"])


def test_sentences_are_cut_to_the_tokens_that_are_asked_for_and_no_further():
    tokenizer = tiny_tokenizer()
    whole, short = "No focal consolidation.", "No effusion."
    cut = encode_sentences(tokenizer, [whole, short], max_tokens=5)
    assert [len(item.ids) for item in cut] == [5, 5]
    assert [len(item.ids) for item in encode_sentences(tokenizer, [whole, short])] == [6, 5]
    assert cut[0].words == (-1, 0, 1, 2, -1)


@pytest.mark.usefixtures("unchecked_shapes")
def test_tokenizers_without_words_or_a_mask_and_models_that_return_nan_are_refused():
    with pytest.raises(ScoreError, match="use a fast one"):
        encode_sentences(SimpleNamespace(is_fast=False), ["No effusion."])
    model, tokenizer = tiny_bert(), tiny_tokenizer()
    model.cls.predictions.bias.data[3] = torch.nan
    with pytest.raises(ScoreError, match="not finite"):
        pseudo_log_likelihood(model, tokenizer, ["No effusion."])
    tokenizer.mask_token = None
    with pytest.raises(ScoreError, match="no mask token"):
        pseudo_log_likelihood(model, tokenizer, ["No effusion."])


@pytest.mark.parametrize("progress", [False, True])
def test_progress_counts_masked_copies_where_it_is_asked_for(progress, capsys):
    texts = ["No effusion."] * 3
    pseudo_log_likelihood(tiny_bert(), tiny_tokenizer(), texts, progress=progress)
    assert ('"done": 3, "total": 3' in capsys.readouterr().err) == progress


@pytest.mark.parametrize("special", ["[MASK]", "[CLS]", "[SEP]", "[PAD]", "[UNK]"])
def test_special_tokens_in_a_text_are_its_letters(special):
    tokenizer = tiny_tokenizer()
    (encoding,) = encode_sentences(tokenizer, [f"no {special} effusion"])
    unknown, (no, effusion) = 1, tokenizer.convert_tokens_to_ids(["no", "effusion"])
    assert encoding.ids == (2, no, unknown, unknown, unknown, effusion, 3)  # "[", the word, "]"
    assert encoding.words == (-1, 0, 1, 2, 3, 4, -1)


DECODER = {"is_decoder": True}


@pytest.mark.parametrize(
    ("family", "head", "settings", "reason"),
    [
        ("Bert", "ForMaskedLM", DECODER, "bert. is a decoder"),
        ("Bert", "LMHeadModel", {}, "bert. is a decoder"),
        ("GPT2", "LMHeadModel", {}, "gpt2. is a decoder"),
        ("T5", "ForConditionalGeneration", {"d_kv": 8}, "t5. is a decoder"),
        # masked language models by name, which read one side alone
        ("MegatronBert", "ForCausalLM", DECODER, "is a decoder"),
        ("RoFormer", "ForCausalLM", DECODER, "is a decoder"),
        ("Roberta", "ForCausalLM", DECODER, "is a decoder"),
        ("Bert", "Model", {}, "no logit of every piece of its vocabulary of 34"),
        ("Bert", "ForTokenClassification", {}, "masked-language-model head"),
    ],
)
def test_only_a_masked_language_model_scores(family, head, settings, reason):
    model = small(family, head, **settings)
    with pytest.raises(ScoreError, match=reason):
        pseudo_log_likelihood(model, tiny_tokenizer(), SENTENCES)
