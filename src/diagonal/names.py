"""Names are paths: `find("models", "mcar/tiny")` is `diagonal.models.mcar.VARIANTS["tiny"]`.

Nothing registers itself: a new model is one new file, and its variants are found by looking.
"""

from __future__ import annotations

import importlib
import pkgutil
from typing import Any


def families(package: str) -> list[str]:
    """Modules of diagonal.<package> that offer variants."""
    path = importlib.import_module(f"diagonal.{package}").__path__
    return sorted(module.name for module in pkgutil.iter_modules(path) if _variants(package, module.name))


def listing(package: str) -> list[str]:
    """All names that `find` knows, family by family, in the order the files give."""
    return [_join(family, variant) for family in families(package) for variant in _variants(package, family)]


def find(package: str, name: str) -> Any:
    """The variant called `family/variant`."""
    family, _, variant = name.partition("/")
    family = family.replace("-", "_")  # which modules must have in its place
    if family not in families(package):
        raise ValueError(f"nothing is called {name!r} in {package}; known: {', '.join(listing(package))}")
    variants = _variants(package, family)
    if variant not in variants:
        known = ", ".join(_join(family, one) for one in variants)
        raise ValueError(f"{family!r} has no variant {variant!r}; known: {known}")
    return variants[variant]


def _join(family: str, variant: str) -> str:
    """A family's plain name is its variant called ''."""
    return f"{family}/{variant}" if variant else family


def _variants(package: str, family: str) -> dict[str, Any]:
    module = importlib.import_module(f"diagonal.{package}.{family}")
    variants: dict[str, Any] = vars(module).get("VARIANTS", {})
    return variants
