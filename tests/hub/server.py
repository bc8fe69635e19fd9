"""
A Hugging Face Hub on localhost: what the real `huggingface_hub` client asks of one while it uploads and downloads.

Large files go to, and come from, a second address (`storage`), as the Hub has it: the client's token must not go there.
`python -m tests.hub.server` starts one by hand and says how to use it.
"""

import base64
import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, RLock, Thread
from typing import Any, NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit

import yaml
from huggingface_hub.repocard_data import model_index_to_eval_results

WRITER, READER, OTHER = (f"hf_{letter * 34}" for letter in "WRO")
USERS = {WRITER: ("me", True), READER: ("me", False), OTHER: ("other", True)}  # token: user, and whether it may write
LARGE = re.compile(r".*\.(safetensors|bin|png|pt|onnx)")  # as .gitattributes says; anything over 10 MB too
NAME = r"[\w.-]+(?:/[\w.-]+)?"
COMMIT = re.compile(r"[0-9a-f]{40}")


class Refused(Exception):
    """An answer that isn't a success."""

    def __init__(self, status: int, message: str, code: str | None = None, **body: Any):
        self.status, self.message, self.code, self.body = status, message, code, {"error": message, **body}


class Answer(NamedTuple):
    """A success that isn't JSON."""

    status: int
    data: bytes
    headers: dict[str, str]


@dataclass
class Repository:
    """Commits hold all their files, so that a revision is one lookup."""

    owner: str
    private: bool
    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)

    def commit(self, branch: str, files: dict[str, bytes]) -> str:
        """Gives a branch a new commit of these files."""
        content = repr((self.branches.get(branch), sorted((name, sha1(data)) for name, data in files.items())))
        oid = hashlib.sha1(content.encode()).hexdigest()
        self.commits[oid], self.branches[branch] = files, oid
        return oid

    def resolve(self, revision: str) -> str:
        oid = self.branches.get(revision, revision)
        if oid not in self.commits:
            raise Refused(404, f"Invalid rev id: {revision}", "RevisionNotFound")
        return oid


@dataclass
class Fault:
    """What shall go wrong with the next `times` requests of a method whose path holds the pattern."""

    method: str
    pattern: str
    times: int
    status: int
    body: bytes
    headers: dict[str, str]
    cut: int | None
    before: Callable[[], None] | None


class Hub(ThreadingHTTPServer):
    """
    The server; a context manager, which runs it in a thread.

    Attributes:
        url: for HF_ENDPOINT.
        repositories: by (type, id).
        objects: the large files, by their SHA-256.
        requests: every request so far, "METHOD path".
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.url, self.storage = (f"http://{host}:{self.server_port}" for host in ("127.0.0.1", "localhost"))
        self.repositories: dict[tuple[str, str], Repository] = {}
        self.objects: dict[str, bytes] = {}
        self.requests: list[str] = []
        self.faults: list[Fault] = []
        self.lock = RLock()

    def __enter__(self) -> "Hub":
        Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *_: Any) -> None:
        self.shutdown()
        self.server_close()

    def fail(
        self, method: str, pattern: str, status: int = 500, *, times: int = 1_000, cut: int | None = None,
        before: Callable[[], None] | None = None, **headers: str,
    ) -> None:  # fmt: skip
        """
        Has requests fail from now on.

        Args:
            status, headers: the answer (`retry_after="1"` is `Retry-After: 1`, `body` what is in it).
            cut: cut the connection instead, after at most so many bytes of what is sent or, of a GET, answered.
            before: do this and answer as ever.
        """
        body = headers.pop("body", json.dumps({"error": "as was asked for"}))
        headers = {name.replace("_", "-"): value for name, value in headers.items()}
        self.faults.append(Fault(method, pattern, times, status, body.encode(), headers, cut, before))

    def files(self, repo_id: str, revision: str = "main", kind: str = "model") -> dict[str, bytes]:
        """What a revision holds."""
        repository = self.repositories[kind, repo_id]
        return repository.commits[repository.resolve(revision)]

    def change(self, repo_id: str, changed: dict[str, bytes], revision: str = "main") -> str:
        """Changes files under a branch, as somebody else may at any time; the new commit."""
        return self.repositories["model", repo_id].commit(revision, {**self.files(repo_id, revision), **changed})


class Handler(BaseHTTPRequestHandler):
    """One request; the methods behind `ROUTES` give what is to be answered as JSON."""

    server: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        """Says nothing: `Hub.requests` has them all."""

    def handle_request(self) -> None:
        url = urlsplit(self.path)
        self.query = {name: values[0] for name, values in parse_qs(url.query).items()}
        self.body: bytes | None = None
        with self.server.lock:
            self.server.requests.append(f"{self.command} {unquote(url.path)}")
            faults = (f for f in self.server.faults if f.times and f.method == self.command and f.pattern in url.path)
            fault = next(faults, None)
            if fault:
                fault.times -= 1
        self.cut = fault.cut if fault else None
        try:
            if fault and fault.before:
                fault.before()
            elif fault and fault.cut is None:
                self.read()
                return self.answer(fault.status, fault.body, fault.headers)
            elif fault and self.command != "GET":
                self.rfile.read1(fault.cut)
                self.close_connection = True
                return None
            for method, pattern, answer in ROUTES:
                if method == self.command and (match := re.fullmatch(pattern, url.path)):
                    self.read()
                    with self.server.lock:
                        content = answer(self, *map(unquote, match.groups()))
                    return self.answer(*(content if isinstance(content, Answer) else (200, content, {})))
            raise Refused(404, f"no such address: {self.command} {url.path}")
        except Refused as refusal:
            self.read()
            headers = {"X-Error-Message": refusal.message, **({"X-Error-Code": refusal.code} if refusal.code else {})}
            return self.answer(refusal.status, refusal.body, headers)

    do_GET = do_HEAD = do_POST = do_PUT = handle_request

    def read(self) -> None:
        """Reads the request's body, whole or in chunks, if that wasn't done before."""
        if self.body is None and "chunked" in self.headers.get("Transfer-Encoding", ""):
            self.body = b""
            while size := int(self.rfile.readline(), 16):
                self.body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
        elif self.body is None:
            self.body = self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def answer(self, status: int, content: Any, headers: dict[str, str]) -> None:
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for name, value in {"Content-Length": str(len(data)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data if self.cut is None else data[: self.cut])
            self.close_connection = self.close_connection or self.cut is not None

    def json(self) -> Any:
        return json.loads(self.body or b"null")

    # Who may do what -----------------------------------------------------------------------------------------------

    def user(self) -> tuple[str | None, bool]:
        """Who asks, and whether the token may write."""
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        if token and token not in USERS:
            raise Refused(401, "Invalid credentials in Authorization header")
        return USERS.get(token, (None, False))

    def writer(self, owner: str | None = None) -> str:
        """Who asks, who must have a right to write: to this owner's repositories, or to any of their own."""
        user, may_write = self.user()
        if user is None:
            raise Refused(401, "Invalid username or password.")
        if not may_write or owner not in (None, user):
            raise Refused(403, f"You don't have the rights to write under the namespace {owner or user!r}")
        return user

    def repository(self, kind: str, repo_id: str, write: bool = False) -> Repository:
        repository, (user, _) = self.server.repositories.get((kind, repo_id)), self.user()
        if repository is None or (repository.private and repository.owner != user):
            raise Refused(404 if user else 401, "Repository not found", "RepoNotFound")
        if write:
            self.writer(repository.owner)
        return repository

    # Addresses -----------------------------------------------------------------------------------------------------

    def whoami(self) -> Any:
        user, _ = self.user()
        if user is None:
            raise Refused(401, "Invalid username or password.")
        return {"type": "user", "name": user}

    def create(self) -> Any:
        asked = self.json()
        owner, kind = self.writer(asked.get("organization")), asked.get("type", "model")
        if not re.fullmatch(r"\w[\w.-]{0,94}\w|\w", asked["name"], flags=re.ASCII):
            raise Refused(400, f"Invalid repository name: {asked['name']}")
        repo_id = f"{owner}/{asked['name']}"
        url = f"{self.server.url}/{'' if kind == 'model' else f'{kind}s/'}{repo_id}"
        if (kind, repo_id) in self.server.repositories:
            raise Refused(409, f"You already created this {kind} repo", url=url)
        repository = Repository(owner, asked.get("private") or asked.get("visibility") == "private")
        repository.commit("main", {".gitattributes": b"*.safetensors filter=lfs diff=lfs merge=lfs -text\n"})
        self.server.repositories[kind, repo_id] = repository
        return {"url": url, "name": repo_id}

    def branch(self, kind: str, repo_id: str, name: str) -> Any:
        repository = self.repository(kind, repo_id, write=True)
        if COMMIT.fullmatch(name) or name.startswith("refs/"):
            raise Refused(400, f"Invalid reference for a branch: {name}")
        if name in repository.branches:
            raise Refused(409, f"Reference already exists: {name}")
        repository.branches[name] = repository.resolve((self.json() or {}).get("startingPoint", "main"))
        return {}

    def info(self, kind: str, repo_id: str, revision: str = "main") -> Any:
        repository = self.repository(kind, repo_id)
        oid = repository.resolve(revision)
        siblings = [{"rfilename": name} for name in repository.commits[oid]]
        return {"id": repo_id, "sha": oid, "private": repository.private, "siblings": siblings, "tags": []}

    def refs(self, kind: str, repo_id: str) -> Any:
        branches = self.repository(kind, repo_id).branches.items()
        found = [{"name": name, "ref": f"refs/heads/{name}", "targetCommit": oid} for name, oid in branches]
        return {"branches": found, "converts": [], "tags": []}

    def tree(self, kind: str, repo_id: str, revision: str, folder: str | None = None) -> Any:
        repository = self.repository(kind, repo_id)
        files = repository.commits[repository.resolve(revision)]
        names = [name for name in files if name.startswith(f"{folder}/" if folder else "")]
        if folder and not names:
            raise Refused(404, f"{folder} does not exist", "EntryNotFound")
        recursive = self.query.get("recursive", "").lower() == "true"
        entries: dict[str, Any] = {}
        for name in names:
            inside = name[len(folder) + 1 :] if folder else name
            if "/" in inside and not recursive:
                top = name[: len(name) - len(inside)] + inside.split("/")[0]
                entries[top] = {"type": "directory", "path": top, "oid": "0" * 40}
            else:
                entries[name] = {"type": "file", "path": name, "size": len(files[name]), "oid": git_oid(files[name])}
        return list(entries.values())

    def validate_yaml(self) -> Any:
        """The card's metadata: YAML that the client's own reader of results understands."""
        match = re.match(r"---\n(.*?)\n?---\n", self.json()["content"], flags=re.DOTALL)
        if not match:
            return {"errors": [], "warnings": [{"message": "empty or missing yaml metadata in repo card"}]}
        try:
            metadata = yaml.safe_load(match[1]) or {}
            if "model-index" in metadata:
                model_index_to_eval_results(metadata["model-index"])
        except (yaml.YAMLError, AttributeError, KeyError, TypeError, ValueError) as error:
            message = f"bad metadata: {' '.join(str(error).split())}"
            raise Refused(400, message, errors=[{"message": message}], warnings=[]) from error
        return {"errors": [], "warnings": []}

    def preupload(self, kind: str, repo_id: str, revision: str) -> Any:
        repository = self.repository(kind, repo_id, write=True)
        there = repository.commits[repository.resolve(revision)]
        modes = []
        for file in self.json()["files"]:
            path, sample = file["path"], base64.b64decode(file["sample"])
            large = bool(LARGE.fullmatch(path)) or file["size"] > 10_000_000 or b"\0" in sample
            oid = None if path not in there else (sha256 if large else git_oid)(there[path])
            modes.append({"path": path, "uploadMode": "lfs" if large else "regular", "shouldIgnore": False, "oid": oid})
        return {"files": modes}

    def lfs_batch(self, prefix: str, repo_id: str) -> Any:
        self.repository(prefix.removesuffix("s/") or "model", repo_id, write=True)
        objects = []
        for asked in self.json()["objects"]:
            item = {"oid": asked["oid"], "size": asked["size"]}
            if asked["oid"] not in self.server.objects:
                upload = {"href": f"{self.server.storage}/storage/{asked['oid']}"}
                verify = {"href": f"{self.server.url}/api/lfs/verify"}
                item["actions"] = {"upload": upload, "verify": verify}
            objects.append(item)
        return {"transfer": "basic", "objects": objects}

    def store(self, oid: str) -> Any:
        self.refuse_token()
        if sha256(self.body or b"") != oid:
            raise Refused(400, "the content is not what its name says")
        self.server.objects[oid] = self.body or b""
        return {}

    def refuse_token(self) -> None:
        if "Authorization" in self.headers:
            raise Refused(400, "a token was sent to the storage, which isn't the Hub's")

    def verify(self) -> Any:
        asked = self.json()
        if len(self.server.objects.get(asked["oid"], b"")) != asked["size"]:
            raise Refused(400, f"{asked['oid']} is not there")
        return {}

    def commit(self, kind: str, repo_id: str, revision: str) -> Any:
        repository = self.repository(kind, repo_id, write=True)
        if revision not in repository.branches:
            raise Refused(404, f"Invalid rev id: {revision}", "RevisionNotFound")
        files = dict(repository.commits[repository.branches[revision]])
        for line in (self.body or b"").splitlines():
            item = json.loads(line)
            key, value = item["key"], item["value"]
            if key == "header" and value.get("parentCommit") not in (None, repository.branches[revision]):
                raise Refused(412, "A commit has happened since. Please refresh and try again.")
            if key == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif key == "lfsFile":
                if value["oid"] not in self.server.objects:
                    raise Refused(400, f"LFS pointer pointed to a file that does not exist: {value['path']}")
                files[value["path"]] = self.server.objects[value["oid"]]
            elif key == "deletedFile":
                del files[value["path"]]
            elif key == "deletedFolder":
                files = {name: data for name, data in files.items() if not name.startswith(value["path"].rstrip("/"))}
        oid = repository.commit(revision, files)
        address = f"{self.server.url}/{'spaces/' * (kind == 'space')}{repo_id}"
        return {"success": True, "commitOid": oid, "commitUrl": f"{address}/commit/{oid}"}

    def download(self, prefix: str, repo_id: str, revision: str, name: str) -> Answer:
        repository = self.repository(prefix.removesuffix("s/") or "model", repo_id)
        oid = repository.resolve(revision)
        commit = {"X-Repo-Commit": oid}
        if name not in repository.commits[oid]:
            return Answer(404, b"", {**commit, "X-Error-Code": "EntryNotFound"})
        data = repository.commits[oid][name]
        if sha256(data) not in self.server.objects:
            return self.part_of(data, {**commit, "ETag": f'"{git_oid(data)}"'})
        linked = {"X-Linked-Etag": f'"{sha256(data)}"', "X-Linked-Size": str(len(data))}
        return Answer(302, b"", {**commit, **linked, "Location": f"{self.server.storage}/storage/{sha256(data)}"})

    def from_storage(self, oid: str) -> Answer:
        self.refuse_token()
        if oid not in self.server.objects:
            raise Refused(404, "no such object")
        return self.part_of(self.server.objects[oid], {"ETag": f'"{oid}"'})

    def part_of(self, data: bytes, headers: dict[str, str]) -> Answer:
        """All of a file, or what is still missing of it."""
        wanted = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        if not wanted:
            return Answer(200, data, headers)
        start = int(wanted[1])
        return Answer(206, data[start:], {**headers, "Content-Range": f"bytes {start}-{len(data) - 1}/{len(data)}"})


KIND, REVISION = r"(model|space)s", r"([^/]+)"
ROUTES: list[tuple[str, str, Callable]] = [
    ("GET", r"/api/whoami-v2", Handler.whoami),
    ("POST", r"/api/repos/create", Handler.create),
    ("POST", r"/api/validate-yaml", Handler.validate_yaml),
    ("POST", r"/api/lfs/verify", Handler.verify),
    ("POST", rf"/api/{KIND}/({NAME})/branch/{REVISION}", Handler.branch),
    ("POST", rf"/api/{KIND}/({NAME})/preupload/{REVISION}", Handler.preupload),
    ("POST", rf"/api/{KIND}/({NAME})/commit/{REVISION}", Handler.commit),
    ("GET", rf"/api/{KIND}/({NAME})/revision/{REVISION}", Handler.info),
    ("GET", rf"/api/{KIND}/({NAME})/refs", Handler.refs),
    ("GET", rf"/api/{KIND}/({NAME})/tree/{REVISION}", Handler.tree),
    ("GET", rf"/api/{KIND}/({NAME})/tree/{REVISION}/(.+)", Handler.tree),
    ("GET", rf"/api/{KIND}/({NAME})", Handler.info),
    ("POST", rf"/(|spaces/)({NAME})\.git/info/lfs/objects/batch", Handler.lfs_batch),
    ("PUT", r"/storage/(\w+)", Handler.store),
    ("HEAD", r"/storage/(\w+)", Handler.from_storage),
    ("GET", r"/storage/(\w+)", Handler.from_storage),
    ("HEAD", rf"/(|spaces/)({NAME})/resolve/{REVISION}/(.+)", Handler.download),
    ("GET", rf"/(|spaces/)({NAME})/resolve/{REVISION}/(.+)", Handler.download),
]


def sha1(data: bytes) -> str:
    return hashlib.sha1(data).hexdigest()


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def git_oid(data: bytes) -> str:
    """What git calls a file of this content."""
    return sha1(b"blob %d\0" % len(data) + data)


def main() -> None:
    with Hub() as hub:
        print(f"export HF_ENDPOINT={hub.url} HF_TOKEN={WRITER} HF_HUB_DISABLE_XET=1  # the user is `me`", flush=True)
        Event().wait()


if __name__ == "__main__":
    main()
