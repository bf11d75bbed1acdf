"""Content credentials: a manifest of C2PA in an mp4 or mov file, signed; and what the manifest of a file says.

C2PA (Coalition for Content Provenance and Authenticity, https://c2pa.org, specification 2.x) binds a manifest to the
hash of a file's boxes. Its own box and the empty ones (`free`, `skip`, and `ftyp`, `mfra`) are not hashed.
"""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO

import diagonal
from diagonal.media.provenance.certificates import Identity

FORMATS = {".mp4": "video/mp4", ".mov": "video/quicktime", ".m4v": "video/mp4"}
STATEMENT = "diagonal.generation"  # the label of our own assertion
BY_MACHINE = "http://cv.iptc.org/newscodes/digitalsourcetype/trainedAlgorithmicMedia"
TRUSTED, VALID, INVALID, NOT_PRESENT = "trusted", "valid", "invalid", "not_present"
UNTRUSTED = "signingCredential.untrusted"  # no fault of the file
PIXEL = base64.b64decode(  # a PNG of one pixel
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGNgAAAAAgABSK+kcQAAAABJRU5ErkJggg=="
)
OFFLINE = {"verify": {"remote_manifest_fetch": False, "ocsp_fetch": False, "verify_trust": True}}


@dataclass(frozen=True, slots=True)
class Credentials:
    """What a file's credentials say. `state` is one of trusted, valid, invalid, not_present."""

    state: str
    problems: tuple[str, ...] = ()  # codes of C2PA, each with its explanation; or what could not be read
    signer: str = ""
    generator: str = ""
    made_at: str = ""
    by_machine: bool = False
    statement: Mapping[str, Any] = field(default_factory=dict)  # what `Origin.statement` said


def check_installed(instead: str = "") -> None:
    """Refuse now what could neither sign nor read later. `instead`: what else the user can do."""
    try:
        import c2pa  # noqa: F401
        import cryptography  # noqa: F401
    except ImportError as error:
        raise ValueError(
            f"content credentials need more packages ({error}): pip install 'diagonal[provenance]'{instead}"
        ) from error


def sign(source: Path, target: Path, statement: Mapping[str, Any], identity: Identity) -> None:
    """Write the file again, with credentials in it. The form is that of the name's suffix."""
    manifest = _manifest(target.name, FORMATS[source.suffix.lower()], statement)
    with source.open("rb") as file, target.open("w+b") as signed:
        _sign(manifest, (file, signed), identity)


def check(identity: Identity) -> None:
    """Refuse now a certificate that could not sign a video later."""
    import c2pa

    try:
        _sign(_manifest("check", "image/png", {}), (io.BytesIO(PIXEL), io.BytesIO()), identity)
    except c2pa.C2paError as error:
        raise ValueError(
            f"the certificate of {identity.who} cannot sign credentials: {error}. C2PA asks for a chain (not "
            "self-signed), the key usage digitalSignature, and an extended key usage such as emailProtection"
        ) from error


def anchors(path: str | Path) -> str:
    """Certificates to trust, from a file in PEM."""
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import Encoding

    try:
        found = x509.load_pem_x509_certificates(Path(path).expanduser().read_bytes())
    except OSError as error:
        raise ValueError(f"the certificate {path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ValueError(f"{path} cannot be read as certificates in PEM: {error}") from error
    return "".join(one.public_bytes(Encoding.PEM).decode() for one in found)


def read(path: str | Path, trust: str = "") -> Credentials:
    """The credentials of a file. `trust`: certificates in PEM, whose holders and their customers are trusted. Nothing
    is fetched from elsewhere."""
    import c2pa

    settings = c2pa.Settings.from_dict(OFFLINE | ({"trust": {"user_anchors": trust}} if trust else {}))
    context = c2pa.Context(settings)
    form = FORMATS.get(Path(path).suffix.lower())
    try:
        with Path(path).open("rb") as file, c2pa.Reader(form, file, context=context) as reader:
            return _credentials(json.loads(reader.json()))
    except (c2pa.C2paError.ManifestNotFound, c2pa.C2paError.NotSupported):
        return Credentials(NOT_PRESENT)
    except c2pa.C2paError as error:
        return Credentials(INVALID, (str(error),))


def _sign(manifest: Mapping[str, Any], files: tuple[BinaryIO, BinaryIO], identity: Identity) -> None:
    import c2pa

    algorithm = c2pa.C2paSigningAlg[identity.algorithm]
    with (
        c2pa.Context(c2pa.Settings.from_dict({"builder": {"thumbnail": {"enabled": False}}})) as context,
        c2pa.Signer.from_callback(identity.sign, algorithm, identity.chain) as signer,
        c2pa.Builder(dict(manifest), context) as builder,
    ):
        builder.sign(signer, manifest["format"], *files)


def _manifest(title: str, form: str, statement: Mapping[str, Any]) -> dict[str, Any]:
    created = {
        "action": "c2pa.created",
        "when": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "softwareAgent": {"name": "diagonal", "version": diagonal.__version__},
        "digitalSourceType": BY_MACHINE,
    }
    return {
        "claim_generator_info": [{"name": "diagonal", "version": diagonal.__version__}],
        "title": title,
        "format": form,
        "assertions": [
            {"label": "c2pa.actions.v2", "data": {"actions": [created]}},
            {"label": STATEMENT, "data": dict(statement)},
        ],
    }


def _credentials(found: Mapping[str, Any]) -> Credentials:
    """From the reader's JSON; whatever it lacks is left out, for others write manifests too."""
    active = found.get("manifests", {}).get(found.get("active_manifest"), {})
    assertions = {one.get("label"): one.get("data", {}) for one in active.get("assertions", [])}
    actions = [action for name in ("c2pa.actions.v2", "c2pa.actions") for action in _actions(assertions.get(name))]
    created: Mapping[str, Any] = next((one for one in actions if one.get("action") == "c2pa.created"), {})
    failures = found.get("validation_status", [])
    problems = [f"{one.get('code')}: {one.get('explanation', '')}" for one in failures if one.get("code") != UNTRUSTED]
    info = (active.get("claim_generator_info") or [{}])[0]
    signature, statement = active.get("signature_info", {}), assertions.get(STATEMENT, {})
    return Credentials(
        state={"Trusted": TRUSTED, "Valid": VALID}.get(str(found.get("validation_state")), INVALID),
        problems=tuple(problems),
        signer=", ".join(str(signature[name]) for name in ("common_name", "issuer") if signature.get(name)),
        generator=f"{info.get('name', '')} {info.get('version', '')}".strip(),
        made_at=str(created.get("when", signature.get("time", ""))),
        by_machine=any(str(one.get("digitalSourceType", "")).endswith("lgorithmicMedia") for one in actions),
        statement=statement if isinstance(statement, dict) else {},
    )


def _actions(data: Any) -> list[Any]:
    return data.get("actions", []) if isinstance(data, dict) else []
