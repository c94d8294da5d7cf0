"""SYNTHETIC: a registry that gives out one image, as ``docker save`` has written it, over the distribution API."""

from __future__ import annotations

import contextlib
import hashlib
import http.server
import json
import tarfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
_CONFIG = "application/vnd.docker.container.image.v1+json"
_LAYER = "application/vnd.docker.image.rootfs.diff.tar"


@dataclass
class Registry:
    """``host`` is what comes before an image's name; ``asked`` are the paths that were asked for."""

    host: str
    asked: list[str] = field(default_factory=list)


def _blobs(saved: Path) -> tuple[bytes, dict[str, bytes]]:
    blobs: dict[str, bytes] = {}

    def blob(data: bytes, kind: str) -> dict[str, object]:
        digest = "sha256:" + hashlib.sha256(data).hexdigest()
        blobs[digest] = data
        return {"mediaType": kind, "size": len(data), "digest": digest}

    with tarfile.open(saved) as archive:

        def read(name: str) -> bytes:
            stream = archive.extractfile(name)
            assert stream is not None
            return stream.read()

        (image,) = json.loads(read("manifest.json"))
        manifest = {
            "schemaVersion": 2, "mediaType": _MANIFEST, "config": blob(read(image["Config"]), _CONFIG),
            "layers": [blob(read(name), _LAYER) for name in image["Layers"]],
        }
    return json.dumps(manifest).encode(), blobs


@contextlib.contextmanager
def registry(saved: Path) -> Iterator[Registry]:
    """Serve the image in the archive *saved* under every name and tag, on a loopback port, until the block ends."""
    manifest, blobs = _blobs(saved)
    found = Registry("")

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            found.asked.append(self.path)
            reference = self.path.rpartition("/")[2]
            if self.path == "/v2/":
                self._answer(b"{}", "application/json")
            elif "/manifests/" in self.path:
                self._answer(manifest, _MANIFEST)
            elif reference in blobs:
                self._answer(blobs[reference], "application/octet-stream")
            else:
                self.send_error(404)

        do_HEAD = do_GET

        def _answer(self, data: bytes, kind: str) -> None:
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(data)))
            self.send_header("Docker-Content-Digest", "sha256:" + hashlib.sha256(data).hexdigest())
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    found.host = f"127.0.0.1:{server.server_address[1]}"
    try:
        yield found
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)
