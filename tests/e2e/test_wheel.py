"""The wheel holds all that the library needs: it is built, unpacked elsewhere, and generates there."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.e2e.conftest import ENVIRONMENT

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel's content and nothing else of the project."""
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    done = subprocess.run(build, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (wheel,) = folder.glob("diagonal-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "site")
    return folder / "site"


def test_the_wheel_generates_where_nothing_else_of_the_project_is(installed: Path, tmp_path: Path) -> None:
    # -P and a path of its own: neither this checkout nor its editable installation can take the wheel's place.
    code = (
        f"import sys; sys.path.insert(0, {str(installed)!r}); import diagonal; "
        f"assert diagonal.__file__.startswith({str(installed)!r}), diagonal.__file__; "
        "from diagonal.cli import main; main()"
    )
    command = [sys.executable, "-P", "-c", code, "generate", "--frames", "1", "--out", "out.mp4", "--json"]
    done = subprocess.run(command, cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["weights"] == "embedded" and (tmp_path / "out.mp4").stat().st_size > 1000


def test_the_wheel_has_the_sources_of_kernels_and_says_that_it_is_typed(installed: Path) -> None:
    source = ROOT / "src" / "diagonal"
    package = installed / "diagonal"
    for pattern in ("*.cu*", "*.cpp", "*.h"):
        kernels = {path.relative_to(source) for path in source.rglob(pattern)}
        assert kernels and kernels == {path.relative_to(package) for path in package.rglob(pattern)}
    assert (package / "py.typed").is_file()
    assert not [path for path in package.rglob("*") if path.suffix in (".pyc", ".so")]
