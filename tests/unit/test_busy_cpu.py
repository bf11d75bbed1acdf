"""How long OpenMP threads spin: what the package sets before PyTorch is imported, and what it leaves to the user."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from diagonal import SPINS

NAMES = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
REPORT = f"import os; print({{name: os.environ.get(name) for name in {NAMES}}})"


def run(code: str, **given: str) -> subprocess.CompletedProcess[str]:
    """Run code in a Python of its own, with these variables of OpenMP and no others."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_"))}
    return subprocess.run([sys.executable, "-c", code], env=clean | given, capture_output=True, text=True, check=True)


def test_the_package_shortens_spinning():
    assert run(f"import diagonal; {REPORT}").stdout.strip() == str(dict.fromkeys(NAMES) | {NAMES[1]: str(SPINS)})


@pytest.mark.parametrize(("name", "value"), [("OMP_WAIT_POLICY", "ACTIVE"), ("GOMP_SPINCOUNT", "7")])
def test_what_the_user_says_stays(name, value):
    said = run(f"import diagonal; {REPORT}", **{name: value}).stdout.strip()
    assert said == str(dict.fromkeys(NAMES) | {name: value})


@pytest.mark.skipif(sys.platform != "linux", reason="PyTorch has GNU OpenMP on Linux only")
def test_gnu_openmp_reads_it():
    shown = run("import diagonal, torch", OMP_DISPLAY_ENV="verbose").stderr
    if "GOMP_SPINCOUNT" not in shown:
        pytest.skip("this PyTorch has another OpenMP")
    assert f"GOMP_SPINCOUNT = '{SPINS}'" in shown
