"""Names are paths: what is found, and what is said when nothing is."""

from __future__ import annotations

import subprocess
import sys

import pytest

import diagonal.models
from diagonal.catalog.names import broken, families, find, listing
from tests.tiny import TOKENS


def test_every_listed_model_is_found():
    assert all(find("models", name).licence for name in listing("models"))


def test_the_listing_has_the_released_models_in_the_order_of_their_file():
    mcar = [name for name in listing("models") if name.startswith("mcar/")]
    assert mcar == [f"mcar/{size}" for size in ("300m", "700m", "700m-32f", "1200m", "1200m-32f", "tiny")]


def test_a_name_is_a_file_and_a_variant_in_it():
    from diagonal.models import mcar

    assert find("models", "mcar/tiny") is mcar.VARIANTS["tiny"]


def test_a_model_names_a_tokenizer_that_exists():
    for name in TOKENS:
        assert find("models", name).tokenizer in listing("tokenizers")


def test_modules_without_variants_are_no_families():
    assert "layers" not in families("models")


@pytest.mark.parametrize("name", ["gpt/700m", "layers/x", "", "/", "../mcar/tiny", "MCAR/tiny", "mcar.tiny"])
def test_an_unknown_family_is_answered_with_all_names(name):
    with pytest.raises(ValueError, match="nothing is called") as caught:
        find("models", name)
    message = str(caught.value)
    assert repr(name) in message and "models" in message
    assert all(known in message for known in listing("models"))


@pytest.mark.parametrize("variant", ["7b", "Tiny", "tiny/", "tiny/extra"])
def test_an_unknown_variant_is_answered_with_those_of_its_family(variant):
    with pytest.raises(ValueError, match=f"'mcar' has no variant '{variant}'; known: mcar/300m.*mcar/tiny"):
        find("models", f"mcar/{variant}")


def test_a_family_without_a_variant_is_answered_with_its_variants():
    with pytest.raises(ValueError, match="known: mcar/vq, mcar/tiny"):
        find("tokenizers", "mcar")


def test_a_family_that_cannot_be_imported_breaks_no_other(tmp_path, monkeypatch):
    (tmp_path / "shattered.py").write_text("raise ImportError('no module named glue')")
    monkeypatch.setattr(diagonal.models, "__path__", [*diagonal.models.__path__, str(tmp_path)])
    assert find("models", "mcar/tiny").licence
    assert broken("models") == {"shattered": "ImportError: no module named glue"}
    assert "shattered" not in families("models") and "mcar/tiny" in listing("models")
    with pytest.raises(ImportError, match="glue"):
        find("models", "shattered/tiny")
    with pytest.raises(ValueError, match="nothing is called 'gpt'"):
        find("models", "gpt")


def test_finding_a_model_imports_its_own_family_alone():
    code = "import sys; from diagonal.catalog.names import find; find('models', 'mcar/tiny'); print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "diagonal.models.mcar" in loaded and not {"diagonal.models.wan", "diagonal.models.cosmos"} & set(loaded)
