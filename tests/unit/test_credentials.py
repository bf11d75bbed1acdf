"""Content credentials: what is written is what is read, and every change is seen."""

from __future__ import annotations

import json
import logging
import os
import stat
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, PrivateFormat

import diagonal
from diagonal.media import video
from diagonal.media.provenance import certificates, credentials
from diagonal.media.provenance.credentials import INVALID, NOT_PRESENT, TRUSTED, VALID
from diagonal.media.provenance.origin import LONGEST, Origin, hash_told
from diagonal.media.provenance.writing import Marking, marked_writer, signed_by
from diagonal.server.fmp4 import boxes
from tests.signers import ORIGIN, SECRET, noise, pem, pem_of_key, write_pair


@pytest.fixture(scope="module")
def pair(tmp_path_factory) -> tuple[Path, Path, Path]:
    return write_pair(tmp_path_factory.mktemp("keys"))


@pytest.fixture(scope="module")
def signed(pair, tmp_path_factory) -> Path:
    path: Path = tmp_path_factory.mktemp("signed") / "out.mp4"
    with marked_writer(path, 8, ORIGIN, Marking(signed_by(*pair[:2])[0])) as file:
        file.write(noise())
        file.tell("moves", "left*6")
    return path


def test_the_credentials_say_what_the_writer_was_told(signed, pair):
    found = credentials.read(signed)
    assert found.state == VALID and found.problems == () and found.by_machine
    assert found.generator == f"diagonal {diagonal.__version__}" and found.signer.startswith("signer")
    assert found.made_at.startswith("20") and found.made_at.endswith("Z")
    said = dict(found.statement)
    assert said["model"] == "doom-t2v" and said["weights"] == {"source": "embedded", "sha256": dict(ORIGIN.sha256)}
    assert said["seed"] == str(2**60) and said["schedule"] == "4322222" and said["frames"] == 6
    assert said["told"] == {"prompt": "a red corridor", "actions": "forward*8", "moves": "left*6"}
    assert said["watermark"] == "none: only videos from texts have one"
    assert credentials.read(signed, credentials.anchors(pair[2])).state == TRUSTED


def test_a_root_vouches_for_its_own_certificates_alone(signed, tmp_path):
    foreign = write_pair(tmp_path, "foreign")
    assert credentials.read(signed, credentials.anchors(foreign[2])).state == VALID


def test_the_frames_are_those_of_an_unsigned_file(signed, tmp_path):
    with video.writer(tmp_path / "plain.mp4", 8) as file:
        file.write(noise())
    assert (video.read(signed) == video.read(tmp_path / "plain.mp4")).all()
    assert os.listdir(signed.parent) == ["out.mp4"]
    assert credentials.read(tmp_path / "plain.mp4").state == NOT_PRESENT


def test_a_flipped_byte_is_found_wherever_there_is_content(signed, tmp_path):
    """Of every box that has content: of C2PA's own there is no hash of its padding, and `free` and `ftyp` have none."""
    data, at, looked = signed.read_bytes(), 0, set()
    for name, box in boxes(data):
        if name in (b"mdat", b"moov"):
            for place in (at + 9, at + len(box) // 2, at + len(box) - 1):
                changed = tmp_path / "changed.mp4"
                changed.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
                found = credentials.read(changed)
                assert found.state == INVALID and found.problems, (name, place)
                looked.add(name)
        at += len(box)
    assert looked == {b"mdat", b"moov"}


def test_changed_words_are_found(signed, tmp_path):
    data = signed.read_bytes()
    assert data.count(b"a red corridor") == 1
    (tmp_path / "changed.mp4").write_bytes(data.replace(b"a red corridor", b"a fed corridor"))
    assert credentials.read(tmp_path / "changed.mp4").state == INVALID


@pytest.mark.parametrize("share", [0.999, 0.7, 0.2])
def test_a_truncated_file_is_not_valid(signed, tmp_path, share):
    data = signed.read_bytes()
    (tmp_path / "cut.mp4").write_bytes(data[: int(share * len(data))])
    assert credentials.read(tmp_path / "cut.mp4").state == INVALID


def test_something_behind_the_end_is_found(signed, tmp_path):
    (tmp_path / "more.mp4").write_bytes(signed.read_bytes() + b"more")
    assert credentials.read(tmp_path / "more.mp4").state == INVALID


@pytest.mark.parametrize("content", [b"", b"no video at all", bytes(3000)])
def test_what_is_no_video_has_no_valid_credentials(tmp_path, content):
    (tmp_path / "odd.mp4").write_bytes(content)
    assert credentials.read(tmp_path / "odd.mp4").state in (INVALID, NOT_PRESENT)


def test_private_credentials_hold_salted_hashes(pair, tmp_path):
    identity, statements = signed_by(*pair[:2])[0], []
    for name in ("one.mp4", "two.mp4"):
        with marked_writer(tmp_path / name, 8, ORIGIN, Marking(identity, private=True)) as file:
            file.write(noise(2))
        assert b"red corridor" not in (tmp_path / name).read_bytes()
        statements.append(credentials.read(tmp_path / name).statement)
    first, second = (one["told_hashed"] for one in statements)
    assert "told" not in statements[0] and first["sha256"]["prompt"] != second["sha256"]["prompt"]
    assert first["sha256"]["prompt"] == hash_told(first["salt"], "a red corridor")


def test_long_texts_are_hashed():
    said = Origin(model="doom", weights="random", told={"actions": "x" * (LONGEST + 1)}).statement(private=False)
    assert said["told"]["actions"]["characters"] == LONGEST + 1 and len(said["told"]["actions"]["sha256"]) == 64


def test_a_failed_writer_leaves_nothing(pair, tmp_path):
    identity = signed_by(*pair[:2])[0]
    with pytest.raises(RuntimeError), marked_writer(tmp_path / "o.mp4", 8, ORIGIN, Marking(identity)) as file:
        file.write(noise(2))
        raise RuntimeError
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("name", "why"), [("out.mkv", "cannot hold credentials"), ("-", "a stream has no credentials")]
)
def test_what_cannot_be_signed_is_refused_at_once(pair, tmp_path, name, why):
    path = name if name == "-" else tmp_path / name
    with pytest.raises(ValueError, match=rf"{why}.*--unsigned"):
        Marking(signed_by(*pair[:2])[0]).check(path)
    Marking(None).check(path)


def test_mov_files_are_signed_too(pair, tmp_path):
    with marked_writer(tmp_path / "out.mov", 8, ORIGIN, Marking(signed_by(*pair[:2])[0])) as file:
        file.write(noise(2))
    assert credentials.read(tmp_path / "out.mov").state == VALID


# Who signs.


def test_the_local_pair_is_made_once_for_its_owner_alone(tmp_path, monkeypatch):
    monkeypatch.setenv("DIAGONAL_CONFIG", str(tmp_path / "new"))
    (first, made), (second, again) = signed_by(None, None), signed_by(None, None)
    assert made and not again and first.chain == second.chain and first.local
    key = tmp_path / "new" / certificates.LOCAL
    assert stat.S_IMODE(key.stat().st_mode) == 0o600 and stat.S_IMODE(key.parent.stat().st_mode) == 0o700
    assert sorted(os.listdir(key.parent)) == sorted([certificates.LOCAL, certificates.CERTIFICATE])
    assert (key.parent / certificates.CERTIFICATE).read_text() == first.chain
    credentials.check(first)


def test_of_processes_that_begin_together_one_makes_the_pair(tmp_path):
    code = "from diagonal.media.provenance.writing import signed_by as s; i, made = s(None, None); print(made, i.chain)"
    environment = os.environ | {"DIAGONAL_CONFIG": str(tmp_path)}
    started = [
        subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    said = [process.communicate(timeout=100)[0].partition(" ") for process in started]
    assert sorted(made for made, _, _ in said) == ["False", "False", "True"] and len({chain for *_, chain in said}) == 1
    assert len(os.listdir(tmp_path)) == 2


@pytest.mark.parametrize(
    ("key", "algorithm"),
    [
        (lambda: ec.generate_private_key(ec.SECP384R1()), "ES384"),
        (lambda: ed25519.Ed25519PrivateKey.generate(), "ED25519"),
        (lambda: rsa.generate_private_key(65537, 2048), "PS256"),
    ],
)
def test_other_kinds_of_keys_sign(tmp_path, key, algorithm):
    private = key()
    chain = certificates.certify("another", private.public_key(), timedelta(days=2))
    (tmp_path / "key.pem").write_bytes(pem_of_key(private))
    (tmp_path / "chain.pem").write_text(pem(chain))
    identity, _ = signed_by(tmp_path / "key.pem", tmp_path / "chain.pem")
    assert identity.algorithm == algorithm
    with marked_writer(tmp_path / "out.mp4", 8, ORIGIN, Marking(identity)) as file:
        file.write(noise(2))
    assert credentials.read(tmp_path / "out.mp4", pem(chain[1:])).state == TRUSTED


def _refused(key: Path, chain: Path, why: str) -> str:
    with pytest.raises(ValueError, match=why) as refused:
        signed_by(key, chain)
    return str(refused.value)


def test_certificates_that_are_no_good_are_refused_before_anything_is_made(pair, tmp_path):
    key, chain, _ = write_pair(tmp_path, "old", timedelta(minutes=1))
    _refused(key, chain, "expired on 20")
    _refused(pair[0], write_pair(tmp_path, "other")[1], "is not of the key")
    (tmp_path / "odd.pem").write_text("odd")
    _refused(pair[0], tmp_path / "odd.pem", "cannot be read as certificates")
    _refused(pair[0], tmp_path / "none.pem", "cannot be read: No such file")
    with pytest.raises(ValueError, match="no certificate; give both"):
        signed_by(pair[0], None)
    own = x509.load_pem_x509_certificates(pair[2].read_bytes())  # a root signs itself
    with pytest.raises(ValueError, match="cannot sign credentials"):
        credentials.check(certificates.Identity(pem(own), "ES256", certificates.own(*pair[:2]).key))


def test_keys_that_are_no_good_are_refused_without_their_words(pair, tmp_path, monkeypatch):
    (tmp_path / "odd.key").write_text(f"-----BEGIN {SECRET}-----\nc2VjcmV0IHdvcmRz\n-----END {SECRET}-----\n")
    assert "c2VjcmV0" not in _refused(tmp_path / "odd.key", pair[1], "cannot be read as a private key")
    weak = rsa.generate_private_key(65537, 1024)
    (tmp_path / "weak.key").write_bytes(pem_of_key(weak))
    (tmp_path / "weak.pem").write_text(pem(certificates.certify("weak", weak.public_key(), timedelta(days=2))))
    _refused(tmp_path / "weak.key", tmp_path / "weak.pem", "RSA of 2048 bits")
    private = certificates.own(*pair[:2]).key
    locked = private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"open sesame"))
    (tmp_path / "locked.key").write_bytes(locked)
    _refused(tmp_path / "locked.key", pair[1], f"needs a passphrase: {certificates.PASSPHRASE}")
    monkeypatch.setenv(certificates.PASSPHRASE, "wrong words")
    assert "wrong words" not in _refused(tmp_path / "locked.key", pair[1], "not with the passphrase")
    monkeypatch.setenv(certificates.PASSPHRASE, "open sesame")
    assert signed_by(tmp_path / "locked.key", pair[1])[0].algorithm == "ES256"


def test_the_key_is_in_no_file_log_or_word(signed, pair, caplog):
    caplog.set_level(logging.DEBUG)
    identity = signed_by(*pair[:2])[0]
    number = identity.key.private_numbers().private_value
    body = "".join(pair[0].read_text().splitlines()[1:-1])
    data = signed.read_bytes()
    for secret in (body[40:80].encode(), number.to_bytes(32, "big"), SECRET.encode()):
        assert secret not in data
    shown = repr(identity) + str(identity) + json.dumps(dict(credentials.read(signed).statement)) + caplog.text
    assert body[40:80] not in shown and str(number) not in shown and SECRET not in shown


def test_without_the_extra_the_advice_is_clear(monkeypatch):
    monkeypatch.setitem(sys.modules, "c2pa", None)
    with pytest.raises(ValueError, match=r"pip install 'diagonal\[provenance\]', or give --unsigned"):
        signed_by(None, None)
