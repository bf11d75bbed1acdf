"""Prompts as the embeddings that text-guided models read: encoded through Hugging Face transformers, or from a file.

    text_BLC = embed(["a red car on a wet road"], ENCODERS["t5-11b"], device="cuda")
    text_BLC = read("prompt.safetensors")

Encoding needs the extra: pip install 'diagonal[text]'. Every text is encoded once: its embeddings are kept on disk,
and neither transformers nor the encoder is needed for it again. No file is ever run.
"""

from __future__ import annotations

import hashlib
import html
import json
import os
import re
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from diagonal.checkpoints import save_tensors
from diagonal.media.files import atomic
from diagonal.text import bag_of_words as words
from diagonal.text import deepfloyd, umt5

KEY = "prompt_embeds"  # names the embeddings where a file may hold several tensors, as in diffusers
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
CAPTIONS = "captions"  # the source of the encoder whose words are those of worlds/captions.py, and no others
HASH = "hash"  # the source of an encoder that knows no language: each word is its own random vector
MAX_BYTES = 2**28  # of embeddings in a file; 512 rows of width 4096 in float64 have 2**24


@dataclass(frozen=True, slots=True)
class Encoder:
    """A text encoder, by the hub id or the folder where transformers finds it, and the embeddings it is to give.

    The source may also be Wan2.1's folder, or the file of the encoder in it (see umt5.py).
    """

    source: str
    length: int  # rows: the most tokens that a text may have
    width: int
    dtype: torch.dtype = torch.bfloat16
    tidy: bool = False  # texts are cleaned first, as they were for the model that reads the embeddings
    clean: Callable[[str], str] | None = None  # in another way than `tidied`
    folders: tuple[str, str] = ("", "")  # of the tokenizer and of the encoder within the source


ENCODERS = {
    "t5-11b": Encoder("google-t5/t5-11b", length=512, width=1024),
    "umt5-xxl": Encoder("google/umt5-xxl", length=512, width=4096, tidy=True),
    "t5-v1.1-xxl": Encoder(
        "DeepFloyd/t5-v1_1-xxl", length=800, width=4096, dtype=torch.float32, tidy=True, clean=deepfloyd.cleaned
    ),
    "doom": Encoder(CAPTIONS, length=32, width=words.WIDTH, dtype=torch.float32),
    "hash": Encoder(HASH, length=16, width=48, dtype=torch.float32, tidy=True),  # for tests and demonstrations
}


def embed(
    texts: Sequence[str], encoder: Encoder, *, device: torch.device | str, cache: str | Path | None = None
) -> Tensor:
    """Embeddings (B, length, width) of the texts on `device`. The rows behind a text's last token are zeros.

    The embeddings of each text are kept under `cache`, by default `diagonal/text` in the user's cache folder. Only for
    texts that are not there is the encoder loaded; it leaves the memory afterwards. Encoders are told apart by source:
    if you change the files in an encoder's folder, empty the cache.
    """
    if isinstance(texts, str) or not texts:
        raise ValueError(f"texts are {texts!r}; a list of at least one is needed")
    texts = [_given(text, encoder) for text in texts]
    if encoder.source in OWN:
        return torch.stack([OWN[encoder.source](text, encoder) for text in texts]).to(device)
    files = _files(texts, encoder, cache)
    found = {text: rows_LC for text, file in files.items() if (rows_LC := _cached(file, encoder)) is not None}
    new = {text: file for text, file in files.items() if text not in found}
    found |= dict(_keep(new, encoder, torch.device(device)))
    return torch.stack([found[text] for text in texts]).to(device)


def prepare(
    texts: Sequence[str], encoder: Encoder, *, device: torch.device | str, cache: str | Path | None = None
) -> Iterator[int]:
    """Encode the texts that are not kept yet, so that `embed` only has to read them; yields how many are done.

    The encoder is loaded once for all of them, and no more than one text's embeddings are in memory.
    """
    if encoder.source in OWN:
        return
    files = _files([_given(text, encoder) for text in texts], encoder, cache)
    new = {text: file for text, file in files.items() if _cached(file, encoder) is None}
    for done, _ in enumerate(_keep(new, encoder, torch.device(device)), len(files) - len(new) + 1):
        yield done


def _files(texts: Sequence[str], encoder: Encoder, cache: str | Path | None) -> dict[str, Path]:
    """Where the embeddings of each text are kept."""
    folder = _user_cache() if cache is None else Path(cache).expanduser()
    folder.mkdir(parents=True, exist_ok=True)  # before the work: a folder that cannot be written is known at once
    return {text: folder / f"{_key(encoder, text)}.safetensors" for text in texts}


def _keep(files: dict[str, Path], encoder: Encoder, device: torch.device) -> Iterator[tuple[str, Tensor]]:
    """Encode texts into their files, one after the other."""
    if not files:
        return
    for text, rows_LC in zip(files, _encode(list(files), encoder, device), strict=True):
        with atomic(files[text]) as temporary:
            save_tensors({KEY: rows_LC}, temporary)
        yield text, rows_LC
    if device.type == "cuda":
        torch.cuda.empty_cache()  # the encoder's memory, for other uses than PyTorch's too


def _given(text: str, encoder: Encoder) -> str:
    """A text as the encoder is given it."""
    return (encoder.clean or tidied)(text) if encoder.tidy else text


def tidied(text: str) -> str:
    """A text as Wan2.1 cleans it: HTML's signs unescaped (twice, for what was escaped twice), and single spaces.

    Before that Wan2.1 has the package ftfy mend broken Unicode and straighten curly quotes, which is not done here.
    """
    return " ".join(html.unescape(html.unescape(text)).split())


def read(path: str | Path) -> Tensor:
    """Embeddings (1, rows, width) from a .safetensors, .npy or .pt file that holds (rows, width) or (1, rows, width).

    A file with several tensors must call the embeddings 'prompt_embeds'.
    """
    path = Path(path).expanduser()
    if not path.is_file():
        raise FileNotFoundError(f"embeddings {str(path)!r} do not exist; give a file of {', '.join(READERS)}")
    if path.suffix not in READERS:
        raise ValueError(f"{path} cannot hold embeddings: its name must end in {', '.join(READERS)}")
    if (size := _size(path)) > MAX_BYTES:
        raise ValueError(f"{path} holds {size} bytes; embeddings may have {MAX_BYTES}")
    try:
        content = READERS[path.suffix](path)
    except MemoryError:
        raise
    except Exception as error:  # a damaged or hostile file can fail in any way
        raise ValueError(
            f"{path} was refused: it is damaged, or no {path.suffix} file of numbers alone ({type(error).__name__}); "
            "save the embeddings anew. Code in it is never run"
        ) from error
    return _checked(_choose(content, path), path)


def _user_cache() -> Path:
    """The XDG standard's folder; a relative one is to be ignored, it says."""
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (base if base.is_absolute() else Path.home() / ".cache") / "diagonal" / "text"


def _source(encoder: Encoder) -> str:
    """A hub id as it is; a folder or file by its full path, which means the same from everywhere."""
    path = Path(encoder.source).expanduser()
    return str(path.resolve()) if path.exists() else encoder.source


def _key(encoder: Encoder, text: str) -> str:
    return hashlib.sha256(json.dumps([_source(encoder), text]).encode()).hexdigest()


def _cached(path: Path, encoder: Encoder) -> Tensor | None:
    """A text's kept embeddings; None if there are none, or a damaged file, or one of other sizes."""
    try:
        rows_LC = load_file(path)[KEY]
    except (OSError, SafetensorError, KeyError):
        return None
    fits = rows_LC.shape == (encoder.length, encoder.width) and rows_LC.dtype == encoder.dtype
    return rows_LC if fits else None


def _hashed(text: str, encoder: Encoder) -> Tensor:
    """Embeddings (length, width) of a text's words, one row each, by their hashes."""
    words = text.split()
    _check_length(text, len(words), encoder)
    rows_LC = torch.zeros(encoder.length, encoder.width, dtype=encoder.dtype)
    for row_C, word in zip(rows_LC, words, strict=False):
        seed = int.from_bytes(hashlib.sha256(word.encode()).digest()[:7])
        row_C.normal_(generator=torch.Generator().manual_seed(seed))
    return rows_LC


def _captioned(text: str, encoder: Encoder) -> Tensor:
    """Embeddings (length, width) of a text's words, one row each."""
    rows_SC = words.rows(text)
    _check_length(text, len(rows_SC), encoder)
    rows_LC = torch.zeros(encoder.length, encoder.width, dtype=encoder.dtype)
    rows_LC[: len(rows_SC)] = rows_SC
    return rows_LC


# Encoders that need neither files nor a cache.
OWN: dict[str, Callable[[str, Encoder], Tensor]] = {HASH: _hashed, CAPTIONS: _captioned}


def _encode(texts: Sequence[str], encoder: Encoder, device: torch.device) -> Iterator[Tensor]:
    """Embeddings (length, width) of each text, on the CPU, one after the other.

    Texts go through the encoder one by one and without padding: what a text gives does not depend on its company, and
    a short text costs little. Padding that is masked gives the same, as tokens never look at it.
    """
    try:
        from transformers import AutoTokenizer
    except ImportError as error:
        raise ValueError(
            "text needs transformers: pip install 'diagonal[text]'; or give precomputed embeddings"
        ) from error
    original = umt5.find(encoder.source)
    with _loading(encoder):
        tokens = umt5.tokenizer(original) if original else _source(encoder)
        place = encoder.folders[0]
        tokenizer: Any = AutoTokenizer.from_pretrained(tokens, subfolder=place, trust_remote_code=False)
    ids = [_ids(tokenizer, text, encoder) for text in texts]  # what is too long is refused before the long load
    with _loading(encoder):
        model = umt5.load(original, encoder.dtype) if original else _published(encoder)
        _check_vocabulary(tokenizer, model)
    model.to(device)
    for one in ids:
        yield _rows(model, one, encoder)


def _published(encoder: Encoder) -> Any:
    """The model that transformers finds; it makes up weights that are missing, which is refused here."""
    from transformers import AutoModelForTextEncoding

    model, report = AutoModelForTextEncoding.from_pretrained(
        _source(encoder),
        subfolder=encoder.folders[1],
        dtype=encoder.dtype,
        weights_only=True,
        trust_remote_code=False,
        attn_implementation="eager",  # else the encoder's config may name code to be fetched
        output_loading_info=True,
    )
    if report["missing_keys"]:
        raise ValueError(f"it lacks weights such as {min(report['missing_keys'])}")
    return model


def _check_vocabulary(tokenizer: Any, model: Any) -> None:
    """Refuse a vocabulary of another model; transformers makes one up where the file is missing."""
    known, rows = len(tokenizer), model.get_input_embeddings().num_embeddings
    if not rows / 2 < known <= rows:  # encoders have some rows to spare, but never so many
        raise ValueError(f"its tokenizer knows {known} tokens and its weights {rows}, so a file is missing or foreign")


@contextmanager
def _loading(encoder: Encoder) -> Iterator[None]:
    """Turns whatever transformers raises into one line that says what to do."""
    try:
        yield
    except MemoryError:
        raise
    except Exception as error:  # of the hub, of transformers, or of a damaged or hostile file
        raise ValueError(
            f"the text encoder {encoder.source!r} was not loaded: {_reason(error)}; "
            "give its folder, a hub id that can be reached or is in the hub's cache, or precomputed embeddings"
        ) from error


def _ids(tokenizer: Any, text: str, encoder: Encoder) -> list[int]:
    ids: list[int] = tokenizer(text, verbose=False).input_ids
    _check_length(text, len(ids), encoder)
    return ids


def _check_length(text: str, count: int, encoder: Encoder) -> None:
    if count > encoder.length:
        raise ValueError(
            f"the text that begins with {text[:40]!r} has {count} tokens; {encoder.length} are allowed. "
            "Shorten it: nothing is cut off"
        )


@torch.inference_mode()
def _hidden(model: Any, ids: list[int]) -> Tensor:
    hidden_BSC: Tensor = model(input_ids=torch.tensor([ids], device=model.device)).last_hidden_state
    return hidden_BSC[0].cpu()


def _rows(model: Any, ids: list[int], encoder: Encoder) -> Tensor:
    hidden_SC = _hidden(model, ids)
    if hidden_SC.shape[-1] != encoder.width:
        raise ValueError(
            f"the text encoder {encoder.source!r} gives width {hidden_SC.shape[-1]}; {encoder.width} is needed"
        )
    # Made outside of inference mode, so that the embeddings may take part in training.
    rows_LC = torch.zeros(encoder.length, encoder.width, dtype=encoder.dtype)
    rows_LC[: len(ids)] = hidden_SC
    return rows_LC


def _size(path: Path) -> int:
    """Bytes of a file, unpacked."""
    if not zipfile.is_zipfile(path):
        return path.stat().st_size
    with zipfile.ZipFile(path) as archive:
        return sum(entry.file_size for entry in archive.infolist())


def _read_npy(path: Path) -> Tensor:
    # Mapped: a size in the header beyond the file's is then refused, not allocated.
    array = np.load(path, mmap_mode="r", allow_pickle=False)
    if not isinstance(array, np.ndarray):
        raise ValueError("an archive of arrays")
    return torch.from_numpy(np.array(array, dtype=array.dtype.newbyteorder("=")))


def _read_pt(path: Path) -> object:
    if not zipfile.is_zipfile(path):
        raise ValueError("the format of PyTorch before 1.6, whose sizes cannot be known in advance")
    return torch.load(path, map_location="cpu", weights_only=True)


READERS: dict[str, Callable[[Path], object]] = {".safetensors": load_file, ".npy": _read_npy, ".pt": _read_pt}


def _choose(content: object, path: Path) -> Tensor:
    """The tensor itself, the one called KEY, or the only one of a dict."""
    if isinstance(content, dict):
        if KEY not in content and len(content) != 1:
            raise ValueError(f"{path} holds {len(content)} tensors; one must be called {KEY!r}, or be alone")
        content = content[KEY] if KEY in content else next(iter(content.values()))
    if not isinstance(content, Tensor):
        raise ValueError(f"{path} holds a {type(content).__name__}; a tensor, or a dict of tensors, is needed")
    return content


def _checked(rows: Tensor, path: Path) -> Tensor:
    if rows.dtype not in FLOATS or rows.layout != torch.strided or rows.device.type != "cpu":
        raise ValueError(f"{path} holds {rows.layout} {rows.dtype} numbers; floats of 16, 32 or 64 bits are needed")
    shape, rows = tuple(rows.shape), rows[None] if rows.ndim == 2 else rows
    if rows.ndim != 3 or len(rows) != 1 or not rows.numel():
        raise ValueError(f"{path} holds a tensor of shape {shape}; (rows, width) or (1, rows, width) is needed")
    if rows.numel() * rows.element_size() > MAX_BYTES:  # a view may be larger than what it shows
        raise ValueError(f"{path} holds a tensor of shape {shape}; embeddings may have {MAX_BYTES} bytes")
    if not rows.isfinite().all():
        raise ValueError(f"{path} holds values that are infinite or not a number; compute the embeddings anew")
    return rows.detach().clone(memory_format=torch.contiguous_format)


def _reason(error: Exception) -> str:
    """The first sentence of an error's text: those behind it tell, at times, how to run a file's code all the same."""
    return re.split(r"\.\s|\.?\n", str(error).strip())[0].rstrip(".") or type(error).__name__
