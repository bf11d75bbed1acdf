"""Prompts from files: what is read, in which order, what is left out, what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from diagonal.text import encoders as text
from diagonal.text.encoders import ENCODERS, embed, prepare
from diagonal.text.prompt_files import LONGEST, prompts
from diagonal.training.data.prompts import FilePrompts, read

HASH = ENCODERS["hash"]


def written(folder: Path, content: str | bytes, name: str = "prompts.txt") -> Path:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def test_each_line_is_a_prompt_once(tmp_path: Path) -> None:
    found = read(written(tmp_path, "a cat\n\n  a dog \r\na cat\n   \nein Vogel, größer"))
    assert sorted(found.texts) == ["a cat", "a dog", "ein Vogel, größer"]
    assert (found.blank, found.repeated, found.beyond) == (2, 1, 0)


def test_the_seed_gives_the_order_and_with_it_the_choice(tmp_path: Path) -> None:
    path = written(tmp_path, "\n".join(f"prompt {number}" for number in range(50)))
    one, same, other = (read(path, seed=seed).texts for seed in (1, 1, 2))
    assert one == same != other and sorted(one) == sorted(other)
    few = read(path, most=7, seed=1)
    assert few.texts == one[:7] and few.beyond == 43
    assert read(path, most=50).beyond == 0


def test_vidprom_is_a_csv_with_the_column_prompt(tmp_path: Path) -> None:
    rows = 'uuid,prompt,time\n1,"a cat, with ""hat""\nand tail",x\n2,,x\n3,a dog,x\n4,a dog,x\n'
    found = read(written(tmp_path, "\ufeff" + rows, "VidProM.CSV"))
    assert sorted(found.texts) == ['a cat, with "hat"\nand tail', "a dog"]
    assert (found.blank, found.repeated) == (1, 1)


def test_vbench_is_a_json_list_in_its_own_order(tmp_path: Path) -> None:
    entries = '[{"prompt_en": "b, front view", "dimension": ["color"]}, {"prompt_en": "a"}, {"prompt_en": "a"}]'
    assert prompts(written(tmp_path, entries, "VBench_full_info.json")) == ["b, front view", "a"]
    assert prompts(written(tmp_path, '["z", "y"]', "list.json")) == ["z", "y"]
    assert prompts(written(tmp_path, "b\n\na\nb\n")) == ["b", "a"]


@pytest.mark.parametrize(
    ("content", "name", "words"),
    [
        ("", "p.txt", "holds no prompt"),
        (" \n\n", "p.txt", "holds no prompt"),
        ("prompt\n", "p.csv", "holds no prompt"),
        ("", "p.csv", "no column 'prompt', but none"),
        ("id,text\n1,a\n", "p.csv", "no column 'prompt', but 'id', 'text'"),
        (b"a caf\xe9\n", "p.txt", "not UTF-8"),
        (b"prompt\na caf\xe9\n", "p.csv", "not UTF-8"),
        ('prompt\n"a cat\n', "p.csv", "is no CSV file"),
        ("[1, 2", "p.json", "is no JSON file"),
        ('[{"prompt": "a cat"}]', "p.json", "entry 1: neither a text nor an object with 'prompt_en'"),
        ("[]", "p.json", "holds no prompt"),
        ("a cat\n" + "x" * (LONGEST + 1), "p.txt", rf"line 2: a prompt of {LONGEST + 1} characters; {LONGEST} are"),
    ],
)
def test_what_is_no_file_of_prompts_says_why(tmp_path: Path, content: str | bytes, name: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        read(written(tmp_path, content, name))


def test_files_that_are_missing_and_limits_that_make_no_sense(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"nowhere\.txt"):
        read(tmp_path / "nowhere.txt")
    with pytest.raises(ValueError, match="at most 0 prompts"):
        read(written(tmp_path, "a cat"), most=0)


def test_written_prompts_give_their_embeddings() -> None:
    source = FilePrompts(["a cat", "a dog", "a bird"], HASH, torch.device("cpu"))
    assert len(source) == 3
    taken = source.take([2, 0]).text_BLC
    assert torch.equal(taken, embed(["a bird", "a cat"], HASH, device="cpu"))
    with pytest.raises(ValueError, match="17 tokens; 16 are allowed"):
        FilePrompts(["word " * 17], HASH, torch.device("cpu")).take([0])


def test_texts_are_encoded_once_with_the_encoder_loaded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[list[str]] = []

    def encode(texts: list[str], encoder: text.Encoder, device: torch.device) -> list[Tensor]:
        calls.append(texts)
        return [torch.full((encoder.length, encoder.width), float(len(one))) for one in texts]

    monkeypatch.setattr(text, "_encode", encode)
    other = replace(HASH, source="elsewhere")
    assert list(prepare(["a", "bb", "a ", "ccc"], other, device="cpu", cache=tmp_path)) == [1, 2, 3]
    assert list(prepare(["ccc", "dddd", "a"], other, device="cpu", cache=tmp_path)) == [3]
    assert calls == [["a", "bb", "ccc"], ["dddd"]]
    source = FilePrompts(["a", "bb", "ccc", "dddd"], other, torch.device("cpu"), tmp_path)
    assert source.take([3, 1]).text_BLC[:, 0, 0].tolist() == [4, 2]
    assert len(calls) == 2 and not list(prepare(["a"], HASH, device="cpu"))
