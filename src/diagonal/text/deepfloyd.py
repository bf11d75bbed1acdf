"""Captions as DeepFloyd's T5 was given them, for models that were trained on its embeddings: in small letters, without
addresses, codes and signs that are no language.

A caption is cleaned twice, as it was in training. What is not done here: mending broken Unicode (the package ftfy) and
parsing HTML; tags are cut out as they stand.
"""

from __future__ import annotations

import html
import re
from urllib.parse import unquote_plus

# Chinese, Japanese and Korean: strokes and kana, signs and months in circles, compatibility signs, ideographs.
ASIAN = "\u31c0-\u31ff\u3200-\u33ff\u3400-\u4dbf\u4dc0-\u4dff\u4e00-\u9fff"
QUOTES = {"`´«»“”¨": '"', "‘’": "'"}  # what quotes look like
DASHES = "\u002d\u058a\u05be\u1400\u1806\u2010-\u2015\u2e17\u2e1a\u2e3a\u2e3b\u2e40\u301c\u3030\u30a0\ufe31\ufe32\ufe58"
DASHES += "\ufe63\uff0d"
SIGNS = r"#®•©™&@·º½¾¿¡§~()\[\]{}|\\/*"
SPAM = (
    "worldwide free shipping",
    "free shipping",
    "free download",
    "download free",
    "download",
    "click for",
    "click on",
)
# In this order: a pattern, and what stands in its place.
RULES = tuple(
    (re.compile(pattern), place)
    for pattern, place in (
        (r"<person>", "person"),
        (r"(?:https?://|www\.)\S+", ""),
        (r"\b[\w-]+(?:\.[\w-]+)*\.(?:com|co|ru|net|org|edu|gov|it)\b(?:/\S*)?", ""),
        (r"<[^<>]*>", ""),
        (r"@[\w]+\b", ""),
        (f"[{ASIAN}]+", ""),
        (f"[{DASHES}]+", "-"),
        *((f"[{signs}]", place) for signs, place in QUOTES.items()),
        (r"&(?:quot|amp);?", ""),
        (r"\b\d{1,3}(?:\.\d{1,3}){3}\b", " "),  # of the internet
        (r"\d:\d\d\s+$", ""),
        (r"\\n", " "),
        (r"#\d{1,3}\b|#\d{5,}\b|\b\d{6,}\b", ""),
        (r"\S+\.(?:png|jpe?g|bmp|webp|eps|pdf|apk|mp4)\b", ""),
        (r"[\"']{2,}", '"'),
        (r"\.{2,}", " "),
        (f"[{SIGNS}]+", " "),
        (r"\s+\.\s+", " "),
    )
)
SEPARATED = re.compile(r"[-_]")
CODES = tuple(
    (re.compile(pattern), place)
    for pattern, place in (
        (r"\b[a-zA-Z]{1,3}\d{3,15}\b|\b[a-zA-Z]+\d+[a-zA-Z]+\b|\b\d+[a-zA-Z]+\d+\b", ""),
        ("|".join(SPAM), ""),
        (r"\bpage\s+\d+\b", ""),
        (r"\b\d*[a-zA-Z]+\d+[a-zA-Z]+\d+[a-zA-Z\d]*\b", " "),
        (r"\b\d+[x\u0445\u00d7]\d+\b", ""),  # sizes of pictures
        (r"\b\s+:\s+", ": "),
        (r"(\D[,./])\b", r"\1 "),
        (r"\s+", " "),
    )
)
EDGES = re.compile(r"^[\"'](.+)[\"']$|^[\"'_,\-:;]+|[\"'_,\-:;+]+$|^\.\S+$")


def cleaned(text: str) -> str:
    """A caption, cleaned twice."""
    return _once(_once(text))


def _once(text: str) -> str:
    text = unquote_plus(str(text)).strip().lower()
    for pattern, place in RULES:
        text = pattern.sub(place, text)
    if len(SEPARATED.findall(text)) > 3:  # a file's name rather than a sentence
        text = SEPARATED.sub(" ", text)
    text = html.unescape(html.unescape(text)).strip()
    for pattern, place in CODES:
        text = pattern.sub(place, text)
    return EDGES.sub(lambda found: found[1] or "", text.strip()).strip()
