"""A local server that speaks the part of the Hugging Face hub's protocol that a download uses."""

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha1, sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread
from time import sleep
from urllib.parse import unquote

LFS = (".safetensors", ".gguf", ".bin")
"""The hub keeps such files outside git: it redirects to another host and states their sha256."""
_API = re.compile(r"/api/models/([^/]+/[^/]+)/revision/([^?]+)|/api/models/([^/?]+/[^/?]+)")
_TREE = re.compile(r"/api/models/([^/]+/[^/]+)/tree/([^?]+)")
_RESOLVE = re.compile(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)")


@dataclass
class Repository:
    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    refs: dict[str, str] = field(default_factory=dict)

    def commit(self, files: Mapping[str, bytes], ref: str = "main") -> str:
        """Add a commit with exactly these files and let `ref` name it."""
        digest = sha1(repr(sorted(files.items())).encode(), usedforsecurity=False).hexdigest()
        self.commits[digest] = dict(files)
        self.refs[ref] = digest
        return digest

    def find(self, revision: str) -> str | None:
        return revision if revision in self.commits else self.refs.get(revision)


@dataclass
class Hub:
    """The state of the server. A test changes it while the server runs."""

    endpoint: str = ""
    storage: str = ""  # the address of the second server, which has the content of large files
    repositories: dict[str, Repository] = field(default_factory=dict)
    gated: set[str] = field(default_factory=set)  # answer only with a token
    cut: dict[str, int] = field(default_factory=dict)  # the next answer with this file ends after so many bytes
    damaged: set[str] = field(default_factory=set)  # the content of these files is served with a flipped bit
    held: dict[str, Event] = field(default_factory=dict)  # the content of this file waits, and sets the event
    requests: list[str] = field(default_factory=list)  # "METHOD path range" of every request

    def repository(self, name: str) -> Repository:
        return self.repositories.setdefault(name, Repository())

    def downloads(self) -> list[str]:
        """Return the path and range of every request for content."""
        paths = [each.removeprefix("GET ") for each in self.requests if each.startswith("GET ")]
        return [path for path in paths if not path.startswith("/api/")]


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def log_message(self, *_: object) -> None:
        """Print nothing."""

    def _answer(self, *, with_body: bool) -> None:
        path = unquote(self.path)
        self.hub.requests.append(f"{self.command} {path} {self.headers.get('Range', '')}".rstrip())
        if path.startswith("/blobs/"):
            self._send_blob(path.removeprefix("/blobs/"), with_body=with_body)
        elif found := _TREE.match(path):
            self._send_tree(found[1], found[2])
        elif found := _API.match(path):
            self._send_info(found[1] or found[3], found[2] or "main", with_body=with_body)
        elif found := _RESOLVE.fullmatch(path.partition("?")[0]):
            self._send_resolved(found[1], found[2], found[3], with_body=with_body)
        else:
            self._refuse(404, "NotFound")

    def _find(self, name: str, revision: str) -> tuple[str, dict[str, bytes]] | None:
        """Return the commit and its files. If there are none, refuse as the hub does."""
        repository = self.hub.repositories.get(name)
        commit = None if repository is None else repository.find(revision)
        if repository is None:
            self._refuse(404, "RepoNotFound")
        elif name in self.hub.gated and "Authorization" not in self.headers:
            self._refuse(401, "GatedRepo")
        elif commit is None:
            self._refuse(404, "RevisionNotFound")
        else:
            return commit, repository.commits[commit]
        return None

    def _send_info(self, name: str, revision: str, *, with_body: bool) -> None:
        found = self._find(name, revision)
        if found is not None:
            siblings = [_sibling(path, content) for path, content in found[1].items()]
            body = json.dumps({"id": name, "sha": found[0], "siblings": siblings}).encode()
            self._send(200, {"Content-Type": "application/json"}, body if with_body else b"", len(body))

    def _send_tree(self, name: str, revision: str) -> None:
        found = self._find(name, revision)
        if found is not None:
            listed = [_sibling(path, content) for path, content in found[1].items()]
            renamed = [
                {"type": "file", "path": each.pop("rfilename"), "oid": each.pop("blobId"), **each} for each in listed
            ]
            for each in renamed:
                if isinstance(lfs := each.get("lfs"), dict):
                    lfs["oid"] = lfs.pop("sha256")
            body = json.dumps(renamed).encode()
            self._send(200, {"Content-Type": "application/json"}, body, len(body))

    def _send_resolved(self, name: str, revision: str, path: str, *, with_body: bool) -> None:
        found = self._find(name, revision)
        if found is None:
            return
        commit, files = found
        if path not in files:
            self._refuse(404, "EntryNotFound", {"X-Repo-Commit": commit})
            return
        digest = {"ETag": f'"{_digest(path, files[path])}"', "X-Repo-Commit": commit}
        if not path.endswith(LFS):
            self._send_content(path, files[path], digest, with_body=with_body)
            return
        linked = {"X-Linked-Size": str(len(files[path])), "X-Linked-Etag": digest["ETag"]}
        self._send(302, {**digest, **linked, "Location": f"{self.hub.storage}/blobs/{name}/{commit}/{path}"}, b"", 0)

    def _send_blob(self, path: str, *, with_body: bool) -> None:
        organisation, name, commit, file = path.split("/", 3)
        content = self.hub.repositories[f"{organisation}/{name}"].commits[commit][file]
        self._send_content(file, content, {}, with_body=with_body)

    def _send_content(self, path: str, content: bytes, headers: Mapping[str, str], *, with_body: bool) -> None:
        if with_body and path in self.hub.held:
            self.hub.held[path].set()
            self.close_connection = True
            while path in self.hub.held:
                sleep(0.05)
            return
        if path in self.hub.damaged:
            content = bytes([content[0] ^ 1]) + content[1:]
        start = int(re.findall(r"bytes=(\d+)-", self.headers.get("Range", "bytes=0-"))[0])
        ranged = {"Content-Range": f"bytes {start}-{len(content) - 1}/{len(content)}"} if start else {}
        body = content[start:]
        cut = self.hub.cut.pop(path, None) if with_body else None
        self._send(206 if start else 200, {**headers, **ranged}, body[:cut] if with_body else b"", len(body))
        self.close_connection = cut is not None

    def _refuse(self, status: int, code: str, headers: Mapping[str, str] | None = None) -> None:
        self._send(status, {"X-Error-Code": code, "X-Error-Message": code, **(headers or {})}, b"", 0)

    def _send(self, status: int, headers: Mapping[str, str], body: bytes, length: int) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(length)}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)


def _digest(path: str, content: bytes) -> str:
    if path.endswith(LFS):
        return sha256(content).hexdigest()
    return sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


def _sibling(path: str, content: bytes) -> dict[str, object]:
    pointer = sha1(content, usedforsecurity=False).hexdigest()
    if not path.endswith(LFS):
        return {"rfilename": path, "size": len(content), "blobId": _digest(path, content)}
    lfs = {"sha256": _digest(path, content), "size": len(content), "pointerSize": 134}
    return {"rfilename": path, "size": len(content), "blobId": pointer, "lfs": lfs}


@contextmanager
def running_hub() -> Iterator[Hub]:
    hub = Hub()
    handler = type("Handler", (_Handler,), {"hub": hub})
    with _serving(handler) as hub.endpoint, _serving(handler) as hub.storage:
        yield hub


@contextmanager
def _serving(handler: type[_Handler]) -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()
