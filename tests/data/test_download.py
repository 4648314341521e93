import hashlib
import io
import os
import socket
import stat
import tarfile
import threading
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from datransformer.data import download as module
from datransformer.data.download import DOWNLOADS, Download, RemoteFile, fetch, unpack
from datransformer.data.errors import InputError

CONTENT = os.urandom(7 * 4096 + 5)
DIGEST = hashlib.sha256(CONTENT).hexdigest()


@dataclass
class Site:
    """A server of one file, and how it misbehaves."""

    content: bytes = CONTENT
    cut: int | None = None  # the connection ends after so many bytes
    stall: int | None = None  # nothing more comes after so many bytes
    ranges: bool = True
    shift: int = 0  # a range answered with the wrong start
    status: int | None = None
    location: str = ""
    length: bool = True
    asked: list[str | None] = field(default_factory=list)
    url: str = ""
    release: threading.Event = field(default_factory=threading.Event)

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        asked = handler.headers.get("Range")
        self.asked.append(asked)
        if handler.path == "/moved":
            handler.send_response(301)
            handler.send_header("Location", "/data.bin")
            handler.end_headers()
            return
        if self.status is not None:
            handler.send_response(self.status)
            if self.location:
                handler.send_header("Location", self.location)
            handler.send_header("Content-Length", "0")
            handler.end_headers()
            return
        begin = int(asked.removeprefix("bytes=").removesuffix("-")) if asked and self.ranges else 0
        if begin >= len(self.content) and begin:
            handler.send_error(416)
            return
        body = self.content[begin:]
        handler.send_response(206 if asked and self.ranges else 200)
        if asked and self.ranges:
            last = len(self.content) - 1
            handler.send_header("Content-Range", f"bytes {begin + self.shift}-{last}/{len(self.content)}")
        if self.length:
            handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        ends = [end for end in (self.cut, self.stall) if end is not None]
        handler.wfile.write(body[: min(ends, default=len(body))])
        if self.stall is not None:
            self.release.wait(20)


@pytest.fixture
def site() -> Iterator[Site]:
    site = Site()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            site.answer(self)

        def log_message(self, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    site.url = f"http://127.0.0.1:{server.server_address[1]}/data.bin"
    yield site
    site.release.set()
    server.shutdown()
    server.server_close()
    thread.join()


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def make(site: Site, sha256: str | None = DIGEST, size: int | None = None, name: str = "data.bin") -> Download:
    return Download("test", (RemoteFile(site.url, name, sha256, size),), "none", "http://localhost/")


@pytest.mark.parametrize("size", [None, len(CONTENT)])
@pytest.mark.parametrize("length", [True, False])
def test_full(site: Site, tmp_path: Path, size: int | None, length: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHUNK", 4096)
    site.length = length
    seen: list[tuple[str, int, int | None]] = []
    folder = tmp_path / "new" / "folder"
    paths = fetch(make(site, size=size), folder, progress=lambda *told: seen.append(told))
    assert paths == [folder / "data.bin"]
    assert paths[0].read_bytes() == CONTENT
    assert seen[-1] == ("data.bin", len(CONTENT), len(CONTENT) if length or size else None)
    assert [done for _, done, _ in seen] == sorted({done for _, done, _ in seen})
    assert fetch(make(site), folder) == paths
    assert site.asked == [None]
    assert names(folder) == ["data.bin"]


@pytest.mark.parametrize("length", [True, False])
def test_resumes_after_a_cut_connection(site: Site, tmp_path: Path, length: bool) -> None:
    site.cut, site.length = 5000, length
    with pytest.raises(InputError, match=r"the connection ended after 5,000 of 28,677 bytes; running .* again resumes"):
        fetch(make(site, size=len(CONTENT)), tmp_path)
    assert names(tmp_path) == ["data.bin.part"]
    site.cut = None
    seen: list[tuple[str, int, int | None]] = []
    (path,) = fetch(make(site), tmp_path, progress=lambda *told: seen.append(told))
    assert path.read_bytes() == CONTENT
    assert site.asked == [None, "bytes=5000-"]
    assert seen[-1] == ("data.bin", len(CONTENT), len(CONTENT) if length else None)


def test_ignored_range_starts_again(site: Site, tmp_path: Path) -> None:
    (tmp_path / "data.bin.part").write_bytes(CONTENT[:5000])
    site.ranges = False
    (path,) = fetch(make(site), tmp_path)
    assert path.read_bytes() == CONTENT
    assert site.asked == ["bytes=5000-"]


def test_another_range_than_asked_for_starts_again(site: Site, tmp_path: Path) -> None:
    (tmp_path / "data.bin.part").write_bytes(CONTENT[:5000])
    site.shift = 1
    (path,) = fetch(make(site), tmp_path)
    assert path.read_bytes() == CONTENT
    assert site.asked == ["bytes=5000-", None]


def test_complete_part_needs_no_request(site: Site, tmp_path: Path) -> None:
    (tmp_path / "data.bin.part").write_bytes(CONTENT)
    (path,) = fetch(make(site), tmp_path)
    assert path.read_bytes() == CONTENT
    assert site.asked == []


def test_part_that_is_too_long_starts_again(site: Site, tmp_path: Path) -> None:
    (tmp_path / "data.bin.part").write_bytes(CONTENT + b"more")
    (path,) = fetch(make(site), tmp_path)
    assert path.read_bytes() == CONTENT
    assert site.asked == [f"bytes={len(CONTENT) + 4}-", None]  # answered 416, then 200


def test_wrong_hash_deletes_the_part(site: Site, tmp_path: Path) -> None:
    site.content = b"another file"
    found = hashlib.sha256(site.content).hexdigest()
    with pytest.raises(InputError, match=f"the file has SHA-256 {found}, expected {DIGEST}; it was deleted"):
        fetch(make(site), tmp_path)
    assert names(tmp_path) == []


def test_part_of_another_file_fails_once_and_then_starts_again(site: Site, tmp_path: Path) -> None:
    (tmp_path / "data.bin.part").write_bytes(b"x" * 5000)
    with pytest.raises(InputError, match="it was deleted"):
        fetch(make(site), tmp_path)
    (path,) = fetch(make(site), tmp_path)
    assert path.read_bytes() == CONTENT


def test_another_file_of_that_name_is_not_overwritten(site: Site, tmp_path: Path) -> None:
    (tmp_path / "data.bin").write_bytes(b"mine")
    with pytest.raises(InputError, match=f"is another file, SHA-256 [0-9a-f]+, expected {DIGEST}; move it away"):
        fetch(make(site), tmp_path)
    assert (tmp_path / "data.bin").read_bytes() == b"mine"


def test_another_size_is_refused_before_the_transfer(site: Site, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="the server offers 28,677 bytes, expected 17"):
        fetch(make(site, size=17), tmp_path)
    assert names(tmp_path) == []


@pytest.mark.parametrize(("status", "text"), [(404, "404 Not Found"), (503, "503 Service"), (204, "204 No Content")])
def test_answers_that_are_no_file(site: Site, tmp_path: Path, status: int, text: str) -> None:
    site.status = status
    with pytest.raises(InputError, match=f"the server answered {text}"):
        fetch(make(site), tmp_path)


def test_follows_a_redirect_and_resumes_behind_it(site: Site, tmp_path: Path) -> None:
    (tmp_path / "data.bin.part").write_bytes(CONTENT[:5000])
    site.url = site.url.replace("data.bin", "moved")
    (path,) = fetch(make(site), tmp_path)
    assert path.read_bytes() == CONTENT
    assert site.asked == ["bytes=5000-", "bytes=5000-"]


@pytest.mark.parametrize("location", ["file:///etc/hostname", "ftp://127.0.0.1/data.bin", "data:,hello"])
def test_redirects_stay_with_http(site: Site, tmp_path: Path, location: str) -> None:
    site.status, site.location = 302, location
    with pytest.raises(InputError, match=r"the server answered 302|unknown url type"):
        fetch(make(site), tmp_path)
    assert names(tmp_path) == []


@pytest.mark.parametrize("stall", [0, 5000])
def test_stalled_server(site: Site, tmp_path: Path, stall: int) -> None:
    site.stall = stall
    with pytest.raises(InputError, match=r"the connection was lost \(timed out\); running .* again resumes"):
        fetch(make(site), tmp_path, timeout=0.2)
    site.stall = None
    (path,) = fetch(make(site), tmp_path)
    assert path.read_bytes() == CONTENT
    assert site.asked == [None, f"bytes={stall}-" if stall else None]


def test_nobody_listens(site: Site, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    site.url = f"http://127.0.0.1:{port}/data.bin"
    with pytest.raises(InputError, match=r"cannot be reached \(.*refused\); running the same command again resumes"):
        fetch(make(site), tmp_path)


def test_full_disk_keeps_the_part(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", full)
        with pytest.raises(InputError, match=r"the disk is full\); what is there is kept, running .* again resumes"):
            fetch(make(site), tmp_path)
    assert names(tmp_path) == ["data.bin.part"]
    (path,) = fetch(make(site), tmp_path)
    assert path.read_bytes() == CONTENT


def test_folder_that_is_a_file(site: Site, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(InputError, match="cannot be made"):
        fetch(make(site), tmp_path / "file")


def test_no_digest_no_download(site: Site, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"test: no digest of data.bin is known, .* as expected_sha256"):
        fetch(make(site, sha256=None), tmp_path)
    assert site.asked == []
    with pytest.raises(InputError, match="expected_sha256: got 'abc', expected 64 hexadecimal digits"):
        fetch(make(site, sha256=None), tmp_path, expected_sha256="abc")
    with pytest.raises(InputError, match="it was deleted"):
        fetch(make(site, sha256=None), tmp_path, expected_sha256="0" * 64)
    (path,) = fetch(make(site, sha256=None), tmp_path, expected_sha256=f" {DIGEST.upper()}\n")
    assert path.read_bytes() == CONTENT


def test_a_digest_of_the_callers_does_not_replace_a_known_one(site: Site, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=f"expected_sha256: got {'0' * 64}, but the files of test must have"):
        fetch(make(site), tmp_path, expected_sha256="0" * 64)
    fetch(make(site), tmp_path, expected_sha256=DIGEST)
    two = Download("two", (RemoteFile(site.url, "a", None), RemoteFile(site.url, "b", None)), "", "")
    with pytest.raises(InputError, match="but the files of two must have"):
        fetch(two, tmp_path, expected_sha256=DIGEST)


@pytest.mark.parametrize("name", sorted(DOWNLOADS))
def test_entries(name: str, tmp_path: Path) -> None:
    download = DOWNLOADS[name]
    assert download.name == name
    assert download.licence
    assert download.homepage.startswith("http")
    for file in download.files:
        assert file.url.startswith("https://")
        assert file.url.endswith(file.name)
        assert len(file.sha256 or "") == 64
        assert file.size
    if not download.files:
        with pytest.raises(InputError, match=f"{name}: not downloadable: .*homepage.*{download.homepage}"):
            fetch(download, tmp_path / "unused")
        assert names(tmp_path) == []


@pytest.mark.parametrize("url", ["file:///etc/hostname", "ftp://host/file", "data:,x", "host/file"])
def test_only_http_urls(url: str) -> None:
    with pytest.raises(ValueError, match="expected http:// or https://"):
        RemoteFile(url, "file", DIGEST)


@pytest.mark.parametrize("name", ["", "..", "a/b", "/a", "a\\b", "c:a"])
def test_only_plain_names(name: str) -> None:
    with pytest.raises(ValueError, match="expected a file name without a folder"):
        RemoteFile("http://host/file", name, DIGEST)


def make_zip(members: dict[str, bytes], mode: int = stat.S_IFREG | 0o644) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in members.items():
            info = zipfile.ZipInfo(name)
            info.external_attr = mode << 16
            archive.writestr(info, content)
    return buffer.getvalue()


def make_tar(members: dict[str, bytes], kind: bytes = tarfile.REGTYPE) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.type, info.size, info.linkname = kind, len(content) if kind == tarfile.REGTYPE else 0, "/etc/hostname"
            archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


MEMBERS = {"data/train.txt": b"train", "data/deep/dev.txt": b"dev", "README": b""}


@pytest.mark.parametrize(("suffix", "make_archive"), [(".zip", make_zip), (".tar.gz", make_tar), (".tgz", make_tar)])
def test_unpacks_what_it_fetched(
    site: Site, tmp_path: Path, suffix: str, make_archive: Callable[[dict[str, bytes]], bytes]
) -> None:
    site.content = make_archive({**MEMBERS, "__MACOSX/data/._train.txt": b"x", "data/.DS_Store": b"x", "Icon\r": b""})
    digest = hashlib.sha256(site.content).hexdigest()
    download = replace(make(site, sha256=digest, name=f"set_1.0{suffix}"), unpack=True)
    paths = fetch(download, tmp_path)
    folder = tmp_path / "set_1.0"
    assert {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths} == MEMBERS
    assert names(tmp_path) == ["set_1.0", f"set_1.0{suffix}"]
    (folder / "README").unlink()
    assert len(fetch(download, tmp_path)) == 2  # what is unpacked is left alone
    assert len(site.asked) == 1


def corrupt() -> bytes:
    content = bytearray(make_zip({"a.txt": b"x" * 100}))
    content[60] ^= 1
    return bytes(content)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.zip", make_zip({"ok": b"", "../out.txt": b"x"}), r"'../out.txt' would be written outside the folder"),
        ("a.zip", make_zip({"ok": b"", "/tmp/out.txt": b"x"}), "would be written outside the folder"),
        ("a.zip", make_zip({"ok": b"", "x/..\\..\\out.txt": b"x"}), "would be written outside the folder"),
        ("a.zip", make_zip({"ok": b"", "c:out.txt": b"x"}), "would be written outside the folder"),
        ("a.zip", make_zip({"link": b"/etc/hostname"}, stat.S_IFLNK | 0o777), "'link' is a link or a device"),
        ("a.tar", make_tar({"ok": b"", "../out.txt": b"x"}), "would be written outside the folder"),
        ("a.tar", make_tar({"/tmp/out.txt": b"x"}), "would be written outside the folder"),
        ("a.tar", make_tar({"link": b""}, tarfile.SYMTYPE), "'link' is a link or a device"),
        ("a.tar", make_tar({"link": b""}, tarfile.LNKTYPE), "'link' is a link or a device"),
        ("a.tar", make_tar({"pipe": b""}, tarfile.FIFOTYPE), "'pipe' is a link or a device"),
        ("a.zip", make_zip({"a": b"x" * 600, "b": b"x" * 600}), "it unpacks to more than 1,000 bytes"),
        ("a.tar", make_tar({"a": b"x" * 600, "b": b"x" * 600}), "it unpacks to more than 1,000 bytes"),
        ("a.zip", make_zip({"a": b"file", "a/b": b"in a file"}), "cannot be unpacked into .*a"),
        ("a.zip", corrupt(), "cannot be unpacked .*CRC"),
        ("a.tar.gz", make_tar({"a": os.urandom(500)})[:-200], "cannot be unpacked"),
        ("a.tar", b"no archive", "cannot be unpacked"),
        ("a.txt", b"no archive", r"expected a .zip or .tar file"),
    ],
    ids=lambda value: "archive" if isinstance(value, bytes) else None,  # some hold the time at which they were made
)
def test_unsafe_or_broken_archives_leave_nothing(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / name).write_bytes(content)
    with pytest.raises(InputError, match=message):
        unpack(folder / name, limit=1000)
    assert names(folder) == [name]
    assert names(tmp_path) == ["folder"]
