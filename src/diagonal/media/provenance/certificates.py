"""Who signs: the user's key and certificate, or a local pair that is made at first use.

The local pair lies in one file of the user's configuration folder that nobody else may read. Its certificate is issued
by a root whose key is thrown away at once; nobody has reason to trust it, and verifiers say so.
"""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from diagonal.media.files import atomic

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

PASSPHRASE = "DIAGONAL_SIGN_PASSPHRASE"  # in the environment: on a command line others could read it
LOCAL, CERTIFICATE = "local-signer.pem", "local-certificate.pem"
YEARS = 20  # without a timestamp, credentials end with their certificate
CURVES = {"secp256r1": ("ES256", 32), "secp384r1": ("ES384", 48), "secp521r1": ("ES512", 66)}


@dataclass(frozen=True, slots=True)
class Identity:
    """A private key and its certificates. Nothing that shows it shows the key."""

    chain: str  # certificates in PEM: its own, then those that issued it
    algorithm: str  # the name of C2PA
    key: Any = field(repr=False, compare=False)
    local: bool = False

    def sign(self, data: bytes) -> bytes:
        """The signature of some bytes, in the form of COSE."""
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, utils

        if isinstance(self.key, ed25519.Ed25519PrivateKey):
            return self.key.sign(data)
        if isinstance(self.key, ec.EllipticCurvePrivateKey):
            size = CURVES[self.key.curve.name][1]
            digest = {32: hashes.SHA256(), 48: hashes.SHA384(), 66: hashes.SHA512()}[size]
            r, s = utils.decode_dss_signature(self.key.sign(data, ec.ECDSA(digest)))
            return r.to_bytes(size, "big") + s.to_bytes(size, "big")
        pss = padding.PSS(padding.MGF1(hashes.SHA256()), hashes.SHA256.digest_size)
        signature: bytes = self.key.sign(data, pss, hashes.SHA256())
        return signature

    @property
    def who(self) -> str:
        """The subject of the certificate."""
        return _certificates(self.chain.encode())[0].subject.rfc4514_string()


def own(key: str | Path, certificate: str | Path) -> Identity:
    """The user's own: a private key and a chain of certificates, both PEM, the signer's certificate first."""
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    data, passphrase = _read(key, "key"), os.environ.get(PASSPHRASE)
    try:
        private: Any = load_pem_private_key(data, passphrase.encode() if passphrase else None)
    except TypeError as error:  # of a passphrase that is missing, or not needed
        why = "needs a passphrase" if passphrase is None else "has no passphrase, but one is given"
        raise ValueError(f"the key {key} {why}: {PASSPHRASE} in the environment") from error
    except ValueError:
        hint = f", or not with the passphrase of {PASSPHRASE}" if passphrase else ""
        # Without what the reader says: it could repeat a piece of the file.
        raise ValueError(f"{key} cannot be read as a private key in PEM{hint}") from None
    chain = _read(certificate, "certificate")
    try:
        found = _certificates(chain)
    except ValueError as error:
        raise ValueError(f"{certificate} cannot be read as certificates in PEM: {error}") from error
    if found[0].public_key() != private.public_key():
        raise ValueError(f"{certificate} is not of the key {key}: its first certificate has another public key")
    _check_time(found, certificate)
    return Identity(_pem(found), _algorithm(private, key), private)


def local() -> tuple[Identity, bool]:
    """The local pair, and whether it was made just now."""
    folder = config_folder()
    path, made = folder / LOCAL, False
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        made = _create(path)
    identity = own(path, path)
    certificate = folder / CERTIFICATE
    if not certificate.exists():
        with atomic(certificate) as temporary:
            temporary.write_text(identity.chain, encoding="ascii")
    return Identity(identity.chain, identity.algorithm, identity.key, local=True), made


def config_folder() -> Path:
    """Where the local pair lies: DIAGONAL_CONFIG, or `diagonal` in the user's folder of settings."""
    given = os.environ.get("DIAGONAL_CONFIG")
    if given:
        return Path(given)
    base = Path(os.environ.get("XDG_CONFIG_HOME", ""))
    return (base if base.is_absolute() else Path.home() / ".config") / "diagonal"


def _create(path: Path) -> bool:
    """Write a new pair, whole or not at all; another process may be first, and then its pair stays."""
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    key, chain = make_pair("diagonal, local and unknown", timedelta(days=365 * YEARS))
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.stem}-")  # for its owner alone, from the start
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(private + _pem(chain).encode())
        os.link(temporary, path)
    except FileExistsError:
        return False
    finally:
        temporary.unlink(missing_ok=True)
    return True


def make_pair(name: str, valid: timedelta) -> tuple[EllipticCurvePrivateKey, list[x509.Certificate]]:
    """A new key (P-256), and its certificates."""
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    return key, certify(name, key.public_key(), valid)


def certify(name: str, public: Any, valid: timedelta) -> list[x509.Certificate]:
    """A certificate for a public key, as C2PA asks for it, and that of a new root, whose key is not kept."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID

    root_key, root_name = ec.generate_private_key(ec.SECP256R1()), _name(f"{name}: root")
    begin = datetime.now(UTC) - timedelta(minutes=5)  # clocks differ

    def builder(subject: x509.Name, key: Any, authority: bool) -> x509.CertificateBuilder:
        never = "content_commitment", "key_encipherment", "data_encipherment", "key_agreement"
        usage = dict.fromkeys((*never, "encipher_only", "decipher_only"), False)
        usage |= {"digital_signature": not authority, "key_cert_sign": authority, "crl_sign": authority}
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(root_name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(begin)
            .not_valid_after(begin + valid)
            .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
            .add_extension(x509.KeyUsage(**usage), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(root_key.public_key()), critical=False)
        )

    purpose = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.EMAIL_PROTECTION])
    leaf = builder(_name(name), public, authority=False).add_extension(purpose, critical=True)
    root = builder(root_name, root_key.public_key(), authority=True)
    return [leaf.sign(root_key, hashes.SHA256()), root.sign(root_key, hashes.SHA256())]


def _name(common: str) -> x509.Name:
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    parts = (NameOID.ORGANIZATION_NAME, "diagonal"), (NameOID.COMMON_NAME, common)
    return x509.Name([x509.NameAttribute(oid, value) for oid, value in parts])


def _read(path: str | Path, what: str) -> bytes:
    try:
        return Path(path).expanduser().read_bytes()
    except OSError as error:
        raise ValueError(f"the {what} {path} cannot be read: {error.strerror}") from error


def _certificates(data: bytes) -> list[x509.Certificate]:
    from cryptography import x509

    return x509.load_pem_x509_certificates(data)


def _pem(chain: list[x509.Certificate]) -> str:
    from cryptography.hazmat.primitives.serialization import Encoding

    return "".join(one.public_bytes(Encoding.PEM).decode() for one in chain)


def _check_time(chain: list[x509.Certificate], path: str | Path) -> None:
    now, own_certificate = datetime.now(UTC), chain[0]
    begin, end = own_certificate.not_valid_before_utc, own_certificate.not_valid_after_utc
    if now > end:
        raise ValueError(f"the certificate {path} expired on {end:%Y-%m-%d}; get another one")
    if now < begin:
        raise ValueError(f"the certificate {path} is valid from {begin:%Y-%m-%d} on, not yet")


def _algorithm(key: Any, path: str | Path) -> str:
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

    if isinstance(key, ec.EllipticCurvePrivateKey) and key.curve.name in CURVES:
        return CURVES[key.curve.name][0]
    if isinstance(key, ed25519.Ed25519PrivateKey):
        return "ED25519"
    if isinstance(key, rsa.RSAPrivateKey) and key.key_size >= 2048:
        return "PS256"
    raise ValueError(f"the key {path} cannot sign credentials: take P-256, P-384, P-521, Ed25519, or RSA of 2048 bits")
