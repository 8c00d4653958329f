"""A stand-in for a model hub on loopback: Hugging Face's and ModelScope's routes over TLS, a second server that plays the
content network, and faults on demand. Also a proxy."""

import hashlib
import http.server
import json
import re
import select
import socket
import ssl
import subprocess
import threading
import time
import urllib.parse
from pathlib import Path


def make_certificates(folder, common_name="stand-in"):
    """A root and a certificate for localhost and 127.0.0.1; {"ca", "cert", "key"}."""
    folder = Path(folder)
    folder.mkdir(exist_ok=True)
    names = {"ca": folder / "ca.pem", "ca_key": folder / "ca.key", "cert": folder / "cert.pem", "key": folder / "key.pem"}
    run = lambda *args: subprocess.run(["openssl", *map(str, args)], check=True, capture_output=True)
    run("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2", "-subj", f"/CN={common_name} root",
        "-addext", "keyUsage=critical,keyCertSign,cRLSign", "-keyout", names["ca_key"], "-out", names["ca"])
    run("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-subj", f"/CN={common_name}",
        "-keyout", names["key"], "-out", folder / "request.pem")
    (folder / "names").write_text("subjectAltName=DNS:localhost,IP:127.0.0.1\nbasicConstraints=critical,CA:FALSE\nauthorityKeyIdentifier=keyid\n")
    run("x509", "-req", "-in", folder / "request.pem", "-CA", names["ca"], "-CAkey", names["ca_key"], "-CAcreateserial", "-days", "2",
        "-extfile", folder / "names", "-out", names["cert"])
    return names


class Fault:
    """What happens to the requests whose path matches, so many times (-1: always), after the first `skip` of them."""

    def __init__(self, pattern, times=1, status=None, headers=None, body=b"", cut_after=None, stall_after=None, seconds_a_piece=0, replace=None, host="any",
                 method=None, raw=None, ignore_range=False, skip=0):
        self.pattern, self.times, self.status, self.headers, self.body = re.compile(pattern), times, status, headers or {}, body
        self.cut_after, self.stall_after, self.seconds_a_piece, self.replace = cut_after, stall_after, seconds_a_piece, replace
        self.host, self.method, self.raw, self.ignore_range, self.skip = host, method, raw, ignore_range, skip


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request, client_address):
        pass


class StandIn:
    """`repos` is {"org/name": {"path": bytes}}. Files of 1 KiB and more are large files (LFS)."""

    COMMIT = "0123456789abcdef0123456789abcdef01234567"

    def __init__(self, folder, repos, tls=True, token=None, blobs=True):
        self.repos, self.token, self.blobs = repos, token, blobs
        self.faults, self.requests, self.lock = [], [], threading.Lock()
        self.stop = threading.Event()
        self.certificates = make_certificates(folder) if tls else None
        self.hub = self._serve("hub")
        self.cdn = self._serve("cdn")
        scheme = "https" if tls else "http"
        self.url = f"{scheme}://127.0.0.1:{self.hub.server_address[1]}"
        # Another host's name for another server: credentials must not come along.
        self.cdn_url = f"{scheme}://localhost:{self.cdn.server_address[1]}"
        self.listing_override = None

    def _serve(self, role):
        stand_in = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *args):
                pass

            def do_GET(self):
                stand_in._answer(self, role)

            do_HEAD = do_GET

        server = Server(("127.0.0.1", 0), Handler)
        if self.certificates:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(self.certificates["cert"], self.certificates["key"])
            server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return server

    def close(self):
        self.stop.set()
        for server in (self.hub, self.cdn):
            server.shutdown()
            server.server_close()

    def __enter__(self):
        return self

    def __exit__(self, *args):
        self.close()

    def environment(self, home, **more):
        env = {"HF_ENDPOINT": self.url, "HF_HOME": str(home), "HF_HUB_DISABLE_TELEMETRY": "1", "HF_HUB_DISABLE_XET": "1",
               "HF_HUB_DISABLE_PROGRESS_BARS": "1", "MODELSCOPE_ENDPOINT": self.url, "BATON_CACHE_DIR": str(home) + "/baton"}
        if self.certificates:
            env["BATON_HUB_CA_FILE"] = str(self.certificates["ca"])
            env["SSL_CERT_FILE"] = env["REQUESTS_CA_BUNDLE"] = str(self.certificates["ca"])
        return {**env, **more}

    # ---- routes ---------------------------------------------------------------------------------------------------------

    def _fault(self, role, handler):
        with self.lock:
            for fault in self.faults:
                if fault.times != 0 and fault.host in ("any", role) and fault.method in (None, handler.command) and fault.pattern.search(handler.path):
                    if fault.skip > 0:
                        fault.skip -= 1
                        continue
                    fault.times -= 1 if fault.times > 0 else 0
                    return fault
        return None

    def _answer(self, handler, role):
        with self.lock:
            self.requests.append((role, handler.command, handler.path, {k.lower(): v for k, v in handler.headers.items()}))
        fault = self._fault(role, handler)
        handler.close_connection = False
        if fault and fault.raw is not None:
            handler.wfile.write(fault.raw)
            handler.close_connection = True
            return
        if fault and fault.status is not None:
            return self._send(handler, fault.status, fault.body, fault.headers)
        url = urllib.parse.urlsplit(handler.path)
        path = urllib.parse.unquote(url.path)
        if role == "cdn":
            content = next((c for files in self.repos.values() for c in files.values() if hashlib.sha256(c).hexdigest() == path[1:]), None)
            return self._content(handler, content, fault, {"ETag": '"cdn"'}) if content is not None else self._send(handler, 404, b"", {})
        self._hub(handler, path, urllib.parse.parse_qs(url.query), fault)

    def _hub(self, handler, path, query, fault):
        if self.token and handler.headers.get("Authorization") != f"Bearer {self.token}":
            return self._error(handler, 401, "", "Invalid username or password.")
        if m := re.fullmatch(r"/api/models/(.+?)(?:/revision/(.+))?", path):
            return self._listing(handler, m[1].split("/tree/")[0], m[2] or "main", "/tree/" in path)
        if m := re.fullmatch(r"/api/v1/models/(.+?)/repo/files", path):
            files = self.repos.get(m[1])
            if files is None:
                return self._send(handler, 404, b'{"Code":10010205001,"Message":"not found"}', {})
            rows = [{"Path": p, "Name": p.rsplit("/", 1)[-1], "Size": len(c), "Sha256": hashlib.sha256(c).hexdigest(), "Type": "blob"} for p, c in files.items()]
            return self._json(handler, {"Code": 200, "Success": True, "Data": {"Files": [{"Path": "sub", "Type": "tree", "Size": 0}] + rows}})
        if m := re.fullmatch(r"/api/v1/models/(.+?)/repo", path):
            content = self.repos.get(m[1], {}).get(query["FilePath"][0])
            return self._content(handler, content, fault, {}) if content is not None else self._send(handler, 404, b"", {})
        if m := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            return self._resolve(handler, *m.groups(), fault)
        self._send(handler, 404, b"", {})

    def _known(self, handler, repo, revision):
        if repo not in self.repos:
            self._error(handler, 404, "RepoNotFound", "Repository not found")
            return False
        if revision not in ("main", "v1", self.COMMIT):
            self._error(handler, 404, "RevisionNotFound", "Invalid rev id")
            return False
        return True

    def _listing(self, handler, repo, revision, tree):
        if not self._known(handler, repo, revision if not tree else "main"):
            return
        if self.listing_override is not None and not tree:
            return self._send(handler, 200, self.listing_override, {"Content-Type": "application/json"})
        rows, tree_rows = [], []
        for path, content in self.repos[repo].items():
            row, blob = {"rfilename": path}, self.etag(content)
            tree_row = {"type": "file", "oid": hashlib.sha1(content).hexdigest(), "size": len(content), "path": path}
            if self.blobs:
                row.update(size=len(content), blobId=blob if len(blob) == 40 else "f" * 40)
                if len(blob) == 64:
                    row["lfs"] = {"sha256": blob, "size": len(content), "pointerSize": 130}
            if len(blob) == 64:
                tree_row["lfs"] = {"oid": blob, "size": len(content), "pointerSize": 130}
            else:
                tree_row["oid"] = blob
            rows.append(row)
            tree_rows.append(tree_row)
        self._json(handler, tree_rows if tree else {"id": repo, "modelId": repo, "sha": self.COMMIT, "siblings": rows, "private": False, "gated": False, "tags": [],
                                                    "downloads": 0, "likes": 0})

    @staticmethod
    def etag(content):
        if len(content) >= 1024:
            return hashlib.sha256(content).hexdigest()
        return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()

    def _resolve(self, handler, repo, revision, path, fault):
        if not self._known(handler, repo, revision):
            return
        content = self.repos[repo].get(path)
        if content is None:
            return self._error(handler, 404, "EntryNotFound", "Entry not found")
        etag = self.etag(content)
        headers = {"X-Repo-Commit": self.COMMIT, "ETag": f'"{etag}"', "Accept-Ranges": "bytes"}
        if len(etag) == 64:
            location = f"{self.cdn_url}/{etag}?Signature=x"
            return self._send(handler, 302, b"Found", {**headers, "X-Linked-Etag": f'"{etag}"', "X-Linked-Size": str(len(content)), "Location": location})
        self._content(handler, content, fault, headers)

    # ---- answers --------------------------------------------------------------------------------------------------------

    def _error(self, handler, status, code, message):
        self._send(handler, status, json.dumps({"error": message}).encode(), {"X-Error-Code": code, "X-Error-Message": message})

    def _json(self, handler, value):
        self._send(handler, 200, json.dumps(value).encode(), {"Content-Type": "application/json"})

    @staticmethod
    def _send(handler, status, body, headers):
        handler.send_response(status)
        for name, value in headers.items():
            handler.send_header(name, value)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        if handler.command != "HEAD":
            handler.wfile.write(body)

    def _content(self, handler, content, fault, headers):
        if fault and fault.replace is not None:
            content = fault.replace
        begin, end, status = 0, len(content), 200
        wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", handler.headers.get("Range", ""))
        if wanted and not (fault and fault.ignore_range):
            begin, end, status = int(wanted[1]), min(int(wanted[2] or len(content) - 1) + 1, len(content)), 206
            headers = {**headers, "Content-Range": f"bytes {begin}-{end - 1}/{len(content)}"}
        handler.send_response(status)
        for name, value in headers.items():
            handler.send_header(name, value)
        handler.send_header("Content-Length", str(end - begin))
        handler.end_headers()
        if handler.command == "HEAD":
            return
        sent, body = 0, content[begin:end]
        while sent < len(body):
            piece = body[sent : sent + 16384]
            if fault and fault.cut_after is not None and sent + len(piece) > fault.cut_after:
                handler.wfile.write(piece[: max(0, fault.cut_after - sent)])
                handler.close_connection = True
                return
            if fault and fault.stall_after is not None and sent >= fault.stall_after:
                self.stop.wait(60)
                return
            handler.wfile.write(piece)
            sent += len(piece)
            if fault and fault.seconds_a_piece and self.stop.wait(fault.seconds_a_piece):
                return

    def seen(self, role=None, pattern=".", method=None):
        with self.lock:
            return [r for r in self.requests if role in (None, r[0]) and method in (None, r[1]) and re.search(pattern, r[2])]


class Proxy:
    """An HTTP proxy that tunnels CONNECT. `asked` lists its targets and their Proxy-Authorization."""

    def __init__(self):
        self.asked = []
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"127.0.0.1:{self.socket.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                client, _ = self.socket.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client):
        head = b""
        while b"\r\n\r\n" not in head:
            piece = client.recv(4096)
            if not piece:
                return
            head += piece
        target = head.split()[1].decode()
        authorization = re.search(rb"(?i)proxy-authorization: (.*?)\r\n", head)
        self.asked.append((head.split()[0].decode(), target, authorization[1].decode() if authorization else None))
        if head.startswith(b"CONNECT"):
            host, port = target.rsplit(":", 1)
            server = socket.create_connection((host, int(port)))
            client.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
        else:
            url = urllib.parse.urlsplit(target)
            server = socket.create_connection((url.hostname, url.port))
            server.sendall(head.replace(target.encode(), target[target.index(url.netloc) + len(url.netloc) :].encode(), 1))
        while True:
            for ready in select.select([client, server], [], [])[0]:
                data = ready.recv(65536)
                if not data:
                    client.close()
                    server.close()
                    return
                (server if ready is client else client).sendall(data)

    def close(self):
        self.socket.close()


def wait_until(condition, seconds=20):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "not in time"
        time.sleep(0.02)
