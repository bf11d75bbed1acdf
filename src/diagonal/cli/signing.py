"""Options of the commands that write videos: who signs them, and what is kept to oneself."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

import typer

from diagonal.cli import err

if TYPE_CHECKING:
    from diagonal.media.provenance.writing import Marking


@dataclass(frozen=True, kw_only=True)
class Signing:
    """Who signs."""

    panel: ClassVar[str] = "Provenance"

    sign_key: Annotated[
        Path | None,
        typer.Option(envvar="DIAGONAL_SIGN_KEY", help="Private key (PEM) to sign with. Default: a local one."),
    ] = None
    sign_certificate: Annotated[
        Path | None,
        typer.Option(envvar="DIAGONAL_SIGN_CERTIFICATE", help="Its certificate, and those that issued it (PEM)."),
    ] = None
    private: Annotated[
        bool, typer.Option("--private", help="Credentials hold hashes of prompts and actions, not these.")
    ] = False
    unsigned: Annotated[bool, typer.Option("--unsigned", help="Write no content credentials.")] = False

    def __post_init__(self) -> None:
        if self.unsigned and self.private:
            raise ValueError("--private is about credentials, and --unsigned writes none; give one")

    def marking(self, path: str | None, watermark: bool = True) -> Marking:
        """How videos are marked; `path` is what will be written, which is refused here if it cannot be."""
        from diagonal.media.provenance.writing import Marking, signed_by

        marking = Marking(None, watermark, self.private)
        if not self.unsigned:
            identity, new = signed_by(self.sign_key, self.sign_certificate)
            marking = Marking(identity, watermark, self.private)
            if new:
                err.print(
                    "[yellow]videos are signed with a local key that was made just now: their credentials read as "
                    "valid, but untrusted. Your own: --sign-key and --sign-certificate (docs/provenance.md)[/]"
                )
        if path is not None:
            marking.check(path)
        return marking


@dataclass(frozen=True, kw_only=True)
class Watermarking(Signing):
    """Who signs, and whether frames have a watermark."""

    watermark: Annotated[
        bool,
        typer.Option("--watermark/--no-watermark", help="Mark the frames of videos from texts, unseen (default)."),
    ] = True

    def marking(self, path: str | None, watermark: bool = True) -> Marking:
        """How videos are marked, if their frames are to be: `watermark` says that what marks them is needed for sure,
        and it is looked for now."""
        if self.watermark and watermark:
            from diagonal.media.provenance.watermark import check_installed

            check_installed(", or give --no-watermark")
        return Signing.marking(self, path, self.watermark)
