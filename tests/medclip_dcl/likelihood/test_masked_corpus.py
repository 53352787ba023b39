"""The trained tokenizer reads text as bert-base-uncased does, and is the same in every process."""

import json
from pathlib import Path

from medclip_dcl.likelihood.fitting import SPECIAL_TOKENS, train_tokenizer
from tests.support import forkserver
from tests.support.bert import SENTENCES


def test_text_is_lower_cased_and_marks_are_words_of_their_own():
    tokenizer = train_tokenizer(SENTENCES * 3, 200, 64)
    assert tokenizer.convert_ids_to_tokens(range(5)) == list(SPECIAL_TOKENS)
    assert tokenizer.tokenize("NO Pleural, effusion.") == [
        "no",
        "pleural",
        "[UNK]",
        "effusion",
        ".",
    ]
    ids = tokenizer("No effusion.")["input_ids"]
    assert (ids[0], ids[-1]) == (tokenizer.cls_token_id, tokenizer.sep_token_id)


def test_every_character_of_the_corpus_can_be_written():
    tokenizer = train_tokenizer(SENTENCES, 100, 64)
    assert len(tokenizer) <= 100
    assert tokenizer.unk_token not in tokenizer.tokenize("unclear lungs flung apart")


def write_vocabulary(path: Path) -> None:
    path.write_text(json.dumps(train_tokenizer(SENTENCES * 3, 120, 64).get_vocab()))


def test_vocabulary_is_the_same_in_every_process(tmp_path):
    here, there = tmp_path / "here.json", tmp_path / "there.json"
    write_vocabulary(here)
    other = forkserver.context().Process(target=write_vocabulary, args=(there,))  # hashes otherwise
    other.start()
    other.join()
    assert json.loads(there.read_text()) == json.loads(here.read_text())
