"""Public data sets and word vectors, fetched over HTTP. A file is kept only if its SHA-256 is the expected one."""

import errno
import hashlib
import http.client
import lzma
import os
import re
import shutil
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import IO, Any
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import (
    HTTPDefaultErrorHandler,
    HTTPErrorProcessor,
    HTTPHandler,
    HTTPRedirectHandler,
    HTTPSHandler,
    OpenerDirector,
    ProxyHandler,
    Request,
    UnknownHandler,
)

from datransformer.data.errors import InputError

Progress = Callable[[str, int, int | None], None]

CHUNK = 1 << 18
UNPACKED_LIMIT = 4 << 30
AGAIN = "running the same command again resumes"


@dataclass(frozen=True)
class RemoteFile:
    """One file behind a URL.

    Args:
        url: http or https.
        name: What the file is called on disk.
        sha256: Its digest, None if nobody has published one; the caller of `fetch` must then bring it.
        size: In bytes, if known.
    """

    url: str
    name: str
    sha256: str | None
    size: int | None = None

    def __post_init__(self) -> None:
        if urlsplit(self.url).scheme not in ("http", "https"):
            raise ValueError(f"url: got {self.url!r}, expected http:// or https://")
        if self.name in ("", ".", "..") or PureWindowsPath(self.name).name != self.name:
            raise ValueError(f"name: got {self.name!r}, expected a file name without a folder")


@dataclass(frozen=True)
class Download:
    """Something to fetch, or, where ``files`` is empty, a sentence on how to get it by hand.

    Args:
        name: The key in `DOWNLOADS`.
        files: What to fetch.
        licence: As its authors state it.
        homepage: Where they state it.
        unpack: Whether the files are archives to be unpacked.
        by_hand: Where to get it and why it is not fetched.
    """

    name: str
    files: tuple[RemoteFile, ...]
    licence: str
    homepage: str
    unpack: bool = False
    by_hand: str = ""


# The digests are those that others pin for the same URLs: Hugging Face datasets (SNLI, SST), ParlAI (SNLI), torchtext
# (GloVe).
DOWNLOADS: dict[str, Download] = {
    download.name: download
    for download in (
        Download(
            name="snli",
            files=(
                RemoteFile(
                    url="https://nlp.stanford.edu/projects/snli/snli_1.0.zip",
                    name="snli_1.0.zip",
                    sha256="afb3d70a5af5d8de0d9d81e2637e0fb8c22d1235c2749d83125ca43dab0dbd3e",
                    size=94_550_081,
                ),
            ),
            licence="CC BY-SA 4.0",
            homepage="https://nlp.stanford.edu/projects/snli/",
            unpack=True,
        ),
        Download(
            name="sst",
            files=(
                RemoteFile(
                    url="https://nlp.stanford.edu/sentiment/trainDevTestTrees_PTB.zip",
                    name="trainDevTestTrees_PTB.zip",
                    sha256="5c613a4f673fc74097d523a2c83f38e0cc462984d847b82c7aaf36b01cbbbfcc",
                    size=789_539,
                ),
            ),
            licence="none stated; offered for download by its authors",
            homepage="https://nlp.stanford.edu/sentiment/",
            unpack=True,
        ),
        Download(
            name="glove.6B",
            files=(
                RemoteFile(
                    url="https://nlp.stanford.edu/data/glove.6B.zip",
                    name="glove.6B.zip",
                    sha256="617afb2fe6cbd085c235baf7a465b96f4112bd7f7ccb2b2cbd649fed9cbcf2fb",
                    size=862_182_613,
                ),
            ),
            licence="PDDL 1.0",
            homepage="https://nlp.stanford.edu/projects/glove/",
        ),
        Download(
            name="ag",
            files=(),
            licence="non-commercial use",
            homepage="http://groups.di.unipi.it/~gulli/AG_corpus_of_news_articles.html",
            by_hand="AG's corpus is for non-commercial use, and its usual form, the CSV files of Zhang et al. (2015), "
            "is on a drive that wants a browser: read the terms on the homepage, then get ag_news_csv.tar.gz through "
            "the README of https://github.com/zhangxiangxiao/Crepe",
        ),
        Download(
            name="mind",
            files=(),
            licence="Microsoft Research License Terms",
            homepage="https://msnews.github.io/",
            by_hand="MIND may be downloaded only once you have accepted the Microsoft Research License Terms: do so on "
            "the homepage, and take MINDlarge_train.zip and MINDlarge_dev.zip (or MINDsmall) there",
        ),
        Download(
            name="amazon",
            files=(),
            licence="none stated; its authors ask for a citation",
            homepage="https://cseweb.ucsd.edu/~jmcauley/datasets.html",
            by_hand="the Amazon reviews come without a licence that would let a program fetch them for you: read what "
            "their authors ask for on the homepage, and take the reviews of one category (such as Electronics) there",
        ),
    )
}


def fetch(
    download: Download,
    folder: Path,
    *,
    expected_sha256: str | None = None,
    progress: Progress | None = None,
    timeout: float = 30.0,
) -> list[Path]:
    """Fetch what is not there yet, verify it, unpack it where ``download`` says so.

    A file streams into ``<name>.part`` and gets its name once its digest is right; a part that is already there is
    continued. An archive is unpacked into a folder of its name without the suffix, which appears when it is complete.

    Args:
        download: An entry of `DOWNLOADS`.
        folder: Where to, made if missing.
        expected_sha256: The digest of the only file that has none in ``download``.
        progress: Called with a file's name, the bytes there so far, and their total or None.
        timeout: Seconds without a byte after which the server counts as stalled.

    Returns:
        The files, or what was in them if they were unpacked.
    """
    if not download.files:
        raise InputError(f"{download.name}: not downloadable: {download.by_hand} ({download.homepage})")
    digests = _digests(download, expected_sha256)
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{folder}: cannot be made ({error.strerror})") from error
    progress = progress or (lambda name, done, total: None)
    paths = []
    for file, digest in zip(download.files, digests, strict=True):
        path = _fetch_file(file, digest, folder, progress, timeout)
        paths += unpack(path) if download.unpack else [path]
    return paths


def unpack(archive: Path, limit: int = UNPACKED_LIMIT) -> list[Path]:
    """Unpack a zip or tar beside itself, and return the files. What macOS adds to a zip is left out.

    The whole archive is refused if a member would leave the folder, is a link or a device, or if the members together
    have more than ``limit`` bytes.
    """
    stem = re.sub(r"\.(zip|tar|tgz|tar\.\w+)$", "", archive.name)
    if stem == archive.name:
        raise InputError(f"{archive}: cannot be unpacked, expected a .zip or .tar file")
    target, part = archive.with_name(stem), archive.with_name(stem + ".part")
    if not target.is_dir():
        try:
            shutil.rmtree(part, ignore_errors=True)
            part.mkdir()
            with closing(_zip(archive) if archive.suffix == ".zip" else _tar(archive)) as members:
                _write_members(archive, members, part, limit)
            part.rename(target)
        except (EOFError, zlib.error, lzma.LZMAError, zipfile.BadZipFile, tarfile.TarError, RuntimeError) as error:
            raise InputError(f"{archive}: cannot be unpacked ({error})") from error
        except OSError as error:
            raise InputError(f"{archive}: cannot be unpacked into {target} ({error.strerror or error})") from error
        finally:
            shutil.rmtree(part, ignore_errors=True)
    return sorted(path for path in target.rglob("*") if path.is_file())


# A member: its name, its size, whether it is a folder, a plain file or neither, and a way to open it.
_Member = tuple[str, int, str, Callable[[], IO[bytes] | None]]


def _zip(archive: Path) -> Generator[_Member, None, None]:
    with zipfile.ZipFile(archive) as file:
        for info in file.infolist():
            mode = info.external_attr >> 16
            plain = "file" if stat.S_IFMT(mode) in (0, stat.S_IFREG) else "other"
            yield (
                info.filename,
                info.file_size,
                "folder" if info.filename.endswith("/") else plain,
                partial(file.open, info),
            )


def _tar(archive: Path) -> Generator[_Member, None, None]:
    with tarfile.open(archive) as file:
        for info in file:
            kind = "folder" if info.isdir() else "file" if info.isfile() else "other"
            yield info.name, info.size, kind, partial(file.extractfile, info)


def _write_members(archive: Path, members: Generator[_Member, None, None], folder: Path, limit: int) -> None:
    total = 0
    for name, size, kind, open_member in members:
        path = PureWindowsPath(name)  # knows both kinds of slashes, and drives
        if path.anchor or ".." in path.parts:
            raise InputError(f"{archive}: refused, its member {name!r} would be written outside the folder")
        if kind == "other":
            raise InputError(f"{archive}: refused, its member {name!r} is a link or a device, expected plain files")
        total += size
        if total > limit:
            raise InputError(f"{archive}: refused, it unpacks to more than {limit:,} bytes")
        clutter = path.parts[:1] == ("__MACOSX",) or path.name in (".DS_Store", "Icon\r")
        if kind == "folder" or clutter:
            continue
        target = folder / PurePosixPath(*path.parts)
        target.parent.mkdir(parents=True, exist_ok=True)
        source = open_member()
        assert source is not None
        with source, target.open("xb") as file:
            shutil.copyfileobj(source, file, CHUNK)


def _digests(download: Download, expected: str | None) -> list[str]:
    """The digest each file must have; without one nothing is fetched."""
    unknown = [file.name for file in download.files if file.sha256 is None]
    if expected is not None:
        expected = expected.strip().lower()
        if not re.fullmatch("[0-9a-f]{64}", expected):
            raise InputError(f"expected_sha256: got {expected!r}, expected 64 hexadecimal digits")
        if len(unknown) != 1:
            known = [file.sha256 for file in download.files]
            if known != [expected]:
                raise InputError(f"expected_sha256: got {expected}, but the files of {download.name} must have {known}")
    elif unknown:
        raise InputError(
            f"{download.name}: no digest of {', '.join(unknown)} is known, so that it could not be verified; "
            f"pass the SHA-256 that you trust as expected_sha256"
        )
    return [file.sha256 or str(expected) for file in download.files]


def _fetch_file(file: RemoteFile, digest: str, folder: Path, progress: Progress, timeout: float) -> Path:
    target, part = folder / file.name, folder / f"{file.name}.part"
    try:
        if target.exists():
            found = _sha256(target).hexdigest()
            if found != digest:
                raise InputError(f"{target}: is another file, SHA-256 {found}, expected {digest}; move it away")
            return target
        seen = _sha256(part) if part.exists() else hashlib.sha256()
        if seen.hexdigest() != digest:
            seen = _stream(file, part, seen, progress, timeout)
        if seen.hexdigest() != digest:
            part.unlink()
            raise InputError(f"{file.url}: the file has SHA-256 {seen.hexdigest()}, expected {digest}; it was deleted")
        part.replace(target)
    except OSError as error:
        problem = "the disk is full" if error.errno in (errno.ENOSPC, errno.EDQUOT) else error.strerror or str(error)
        raise InputError(f"{part}: cannot be written ({problem}); what is there is kept, {AGAIN}") from error
    return target


def _sha256(path: Path) -> "hashlib._Hash":
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256")


def _stream(file: RemoteFile, part: Path, seen: "hashlib._Hash", progress: Progress, timeout: float) -> "hashlib._Hash":
    """Write the rest of the file to ``part``, and return the digest of all of it."""
    done = part.stat().st_size if part.exists() else 0
    response, begin = _open(file.url, done, timeout)
    with closing(response):
        if begin == 0:
            seen = hashlib.sha256()
        length = response.headers.get("Content-Length", "")
        total = begin + int(length) if length.isdecimal() else file.size
        if file.size is not None and total != file.size:
            raise InputError(f"{file.url}: the server offers {total:,} bytes, expected {file.size:,}")
        done = begin
        with part.open("ab" if begin else "wb") as sink:
            while (total is None or done < total) and (chunk := _read(response, file.url)):
                sink.write(chunk)
                seen.update(chunk)
                done += len(chunk)
                progress(file.name, done, total)
            sink.flush()
            os.fsync(sink.fileno())
    if total is not None and done < total:
        raise InputError(f"{file.url}: the connection ended after {done:,} of {total:,} bytes; {AGAIN}")
    return seen


def _open(url: str, done: int, timeout: float) -> tuple[Any, int]:
    """The response and the byte it starts at: ``done`` if the server takes up there, else 0."""
    headers = {"User-Agent": "datransformer", "Accept-Encoding": "identity"}
    if done:
        headers["Range"] = f"bytes={done}-"
    try:
        response = _opener().open(Request(url, headers=headers), timeout=timeout)  # noqa: S310
    except HTTPError as error:
        error.close()
        if done and error.code == http.client.REQUESTED_RANGE_NOT_SATISFIABLE:
            return _open(url, 0, timeout)  # a part as long as the file, or longer, whose digest is wrong
        raise InputError(f"{url}: the server answered {error.code} {error.reason}") from None
    except (OSError, http.client.HTTPException) as error:
        raise InputError(f"{url}: cannot be reached ({_reason(error)}); {AGAIN}") from error
    if response.status == http.client.OK:
        return response, 0
    begins = response.headers.get("Content-Range", "")
    if done and response.status == http.client.PARTIAL_CONTENT and begins.startswith(f"bytes {done}-"):
        return response, done
    response.close()
    if done:
        return _open(url, 0, timeout)
    raise InputError(f"{url}: the server answered {response.status} {response.reason}, expected 200 OK")


def _opener() -> OpenerDirector:
    """One that follows redirects to http and https alone, where urllib's own knows ftp and file as well."""
    opener = OpenerDirector()
    for handler in (
        ProxyHandler,
        HTTPHandler,
        HTTPSHandler,
        HTTPRedirectHandler,
        HTTPDefaultErrorHandler,
        HTTPErrorProcessor,
        UnknownHandler,
    ):
        opener.add_handler(handler())
    return opener


def _read(response: Any, url: str) -> bytes:
    try:
        return bytes(response.read1(CHUNK))  # what has come, where read would wait for all and lose it on a timeout
    except (OSError, http.client.HTTPException) as error:
        raise InputError(f"{url}: the connection was lost ({_reason(error)}); {AGAIN}") from error


def _reason(error: Exception) -> str:
    return str(getattr(error, "reason", "") or error or type(error).__name__)
