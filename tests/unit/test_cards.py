"""Every model that is shipped has a card, and cards say what a model must not be used for."""

from __future__ import annotations

from pathlib import Path

from diagonal.catalog.names import find, listing

ROOT = Path(__file__).parents[2]


def test_every_shipped_model_has_a_card_and_no_other_names_one():
    shipped = {name: find("models", name) for name in listing("models")}
    assert {name for name, one in shipped.items() if one.embedded} == {
        name for name, one in shipped.items() if one.card
    }
    for one in shipped.values():
        if one.card:
            text = (ROOT / one.card).read_text()
            assert all(word in text for word in ("## Data", "## Limits", "Not", one.licence, "RESPONSIBLE_USE.md"))


def test_links_of_responsible_use_lead_somewhere():
    text = (ROOT / "RESPONSIBLE_USE.md").read_text()
    for link in ("docs/provenance.md", "docs/cards/doom.md"):
        assert f"({link})" in text and (ROOT / link).is_file()
