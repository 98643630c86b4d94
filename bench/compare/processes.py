"""Processes that the comparison starts, and the places that they run in. All end with it: each is told by the kernel when its
parent dies (setpriv), is ended by its process id, and nothing else is touched.
"""

import json
import os
import pathlib
import selectors
import shutil
import socket
import subprocess
import time

START_S = 60.0  # for a server or a client to be ready
REPLY_S = 60.0  # for one command
SERVER_ADDRESS, CLIENT_ADDRESS = "192.0.2.1", "192.0.2.2"  # of the documentation's network, seen by two namespaces only


class CompareError(Exception):
    """What went wrong, for the user; no traceback."""


class Loopback:
    """Servers and clients share the host's network."""

    name = "loopback"
    server_host = client_host = "127.0.0.1"

    def server_prefix(self):
        return []

    client_prefix = server_prefix

    def free_port(self):
        with socket.socket() as probe:
            probe.bind((self.server_host, 0))
            return probe.getsockname()[1]

    def close(self):
        pass


class Namespaces:
    """Servers in one network namespace, clients in another, a veth pair between them. Needs root."""

    name = "two namespaces"
    server_host, client_host = SERVER_ADDRESS, CLIENT_ADDRESS

    def __init__(self):
        self.next_port = 20_000  # nobody else is there
        self.sides = {side: f"ibid-compare-{os.getpid()}-{side}" for side in "sc"}
        try:
            self.make()
        except BaseException as error:
            self.close()
            if isinstance(error, (OSError, subprocess.SubprocessError)):
                raise CompareError(f"cannot make network namespaces: {error}") from error
            raise

    @staticmethod
    def why_not():
        if os.geteuid() != 0:
            return "needs root for network namespaces"
        return None if shutil.which("ip") else "needs the program ip (package iproute2)"

    def make(self):
        for name in self.sides.values():
            self.ip("netns", "add", name)
        ends = {side: f"cmp{os.getpid()}{side}" for side in "sc"}
        self.ip("link", "add", ends["s"], "netns", self.sides["s"], "type", "veth",
                "peer", "name", ends["c"], "netns", self.sides["c"])
        for side, address in (("s", SERVER_ADDRESS), ("c", CLIENT_ADDRESS)):
            self.ip("-n", self.sides[side], "addr", "add", f"{address}/30", "dev", ends[side])
            self.ip("-n", self.sides[side], "link", "set", ends[side], "up")
            self.ip("-n", self.sides[side], "link", "set", "lo", "up")

    @staticmethod
    def ip(*arguments, check=True):
        subprocess.run(["ip", *arguments], check=check, timeout=10, stdout=subprocess.DEVNULL,
                       stderr=None if check else subprocess.DEVNULL)

    def server_prefix(self):
        return ["ip", "netns", "exec", self.sides["s"]]

    def client_prefix(self):
        return ["ip", "netns", "exec", self.sides["c"]]

    def free_port(self):
        self.next_port += 1
        return self.next_port

    def close(self):
        for name in self.sides.values():  # with its end of the pair
            self.ip("netns", "del", name, check=False)


def start(prefix, arguments, log_path, environment=None, **pipes):
    """A child in a session of its own (Ctrl-C is the comparison's), its errors in a log."""
    with open(log_path, "ab") as log:
        pipes.setdefault("stdin", subprocess.DEVNULL)
        pipes.setdefault("stdout", log)
        try:
            return subprocess.Popen([*prefix, "setpriv", "--pdeathsig", "KILL", *map(str, arguments)], stderr=log,
                                    env={**os.environ, **(environment or {})}, start_new_session=True, **pipes)
        except OSError as error:
            raise CompareError(f"cannot start {arguments[0]}: {error.strerror}") from error


def stop(process):
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def end_of(log_path):
    lines = [line for line in pathlib.Path(log_path).read_text(errors="replace").splitlines() if line.strip()]
    return " / ".join(lines[-2:])[-300:]


class Server:
    """A server process; ready once its port answers, or once it has written its port file."""

    def __init__(self, place, arguments, log_path, port=None, port_file=None, environment=None):
        self.process = start(place.server_prefix(), arguments, log_path, environment)
        try:
            self.port = self.wait_for_file(port_file, log_path) if port_file else self.wait_for_port(place, port, log_path)
        except BaseException:
            self.stop()
            raise
        self.address = f"{place.server_host}:{self.port}"

    def waiting(self, log_path):
        until = time.monotonic() + START_S
        while time.monotonic() < until:
            if self.process.poll() is not None:
                raise CompareError(f"the server ended: {end_of(log_path)}")
            yield
            time.sleep(0.05)
        raise CompareError(f"the server was not ready within {START_S:.0f} s: {end_of(log_path)}")

    def wait_for_file(self, port_file, log_path):
        for _ in self.waiting(log_path):
            if port_file.exists():
                return json.loads(port_file.read_text())["port"]

    def wait_for_port(self, place, port, log_path):
        """Asks the kernel, in the place's namespace, whether somebody listens: a connection would be seen by the server."""
        for _ in self.waiting(log_path):
            tables = subprocess.run([*place.server_prefix(), "cat", "/proc/net/tcp", "/proc/net/tcp6"], timeout=10,
                                    stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=False).stdout
            rows = (line.split() for line in tables.splitlines() if ":" in line.split()[0])
            if any(row[3] == "0A" and int(row[1].rsplit(":", 1)[1], 16) == port for row in rows):
                return port

    def stop(self):
        stop(self.process)


class Client:
    """A driver: one client process, asked by lines (the commands are in compare_driver.cc)."""

    def __init__(self, prefix, arguments, log_path, environment=None):
        self.log_path, self.rest = log_path, b""
        self.process = start(prefix, arguments, log_path, environment,
                             stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.selector = selectors.DefaultSelector()
        self.selector.register(self.process.stdout, selectors.EVENT_READ)

    def send(self, *words):
        try:
            self.process.stdin.write((" ".join(map(str, words)) + "\n").encode())
            self.process.stdin.flush()
        except OSError as error:
            raise CompareError(f"a client ended: {end_of(self.log_path)}") from error

    def reply(self, timeout_s=REPLY_S):
        """The numbers of one answer."""
        until = time.monotonic() + timeout_s
        while b"\n" not in self.rest:
            if not self.selector.select(max(0.0, until - time.monotonic())):
                raise CompareError(f"a client did not answer within {timeout_s:.0f} s")
            piece = os.read(self.process.stdout.fileno(), 1 << 20)
            if not piece:
                raise CompareError(f"a client ended: {end_of(self.log_path)}")
            self.rest += piece
        line, self.rest = self.rest.split(b"\n", 1)
        words = line.decode(errors="replace").split()
        if not words or words[0] != "ok":
            raise CompareError(" ".join(words)[:300])
        return [int(word) for word in words[1:]]

    def stop(self):
        try:
            self.process.stdin.close()  # the end of its commands
            self.process.wait(timeout=5)
        except (OSError, subprocess.TimeoutExpired):
            pass
        stop(self.process)
        self.selector.close()
        self.process.stdout.close()
