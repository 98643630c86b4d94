"""The systems that are compared: how each is started, and what it says of itself."""

import pathlib
import shutil
import subprocess

from processes import Client, CompareError, Server

FOLDER = pathlib.Path(__file__).resolve().parent
IBID_TRANSPORTS = ["grpc"]  # one column each
PREFIX_BYTES_MAX = 128 << 20
STORE_BYTES = 1536 << 20  # of each store: twice what is stored at a time
CLIENTS_MAX = 4
# Freed memory is kept, so that what is stored later is not slowed down by the first touch of its memory.
KEEP_FREED = {"MALLOC_CONF": "dirty_decay_ms:-1,muzzy_decay_ms:-1"}


class System:
    """One system in one place: its servers and its clients. `name` heads its column, `says` its line under the table."""

    is_shared = True  # a client finds what another one published

    def __init__(self, options, place, folder):
        self.options, self.place = options, place
        self.folder = folder / f"{place.name.replace(' ', '-')}-{self.name.replace(' ', '-')}"
        self.folder.mkdir()
        self.servers, self.clients = [], []

    @classmethod
    def why_not(cls, options):
        """Why it cannot run here; None if it can."""
        return None

    def start(self, clients_count):
        self.start_servers()
        for index in range(clients_count):
            self.clients.append(self.start_client(self.folder / f"client-{index}.log"))
        for client in self.clients:
            client.reply()

    def start_servers(self):
        pass

    def start_client(self, log_path):
        return self.driver(log_path, f"--system={self.name}", f"--address={self.servers[0].address}")

    def driver(self, log_path, *flags):
        arguments = [self.options.bin / "compare_driver", *flags, f"--bytes_max={PREFIX_BYTES_MAX}"]
        return Client(self.place.client_prefix(), arguments, log_path)

    def serve(self, arguments, port=None, **rest):
        self.servers.append(Server(self.place, arguments, self.folder / f"server-{len(self.servers)}.log", port, **rest))

    def stop(self):
        for process in [*self.clients, *reversed(self.servers)]:
            process.stop()
        self.clients, self.servers = [], []


class Memcpy(System):
    name, is_shared = "memcpy", False
    says = "no store: a copy within the client's process, of the same bytes in the same round"

    def start_client(self, log_path):
        return self.driver(log_path, "--system=memcpy")


class Ibid(System):
    says = ("C++ client; a fetch is Match with a lease and Fetch; checksums are verified within the timed part, by the server for each "
            "publish and by the client for each fetch")
    transport = "grpc"

    def start_servers(self):
        port_file = self.folder / "ports"
        self.serve([self.options.bin / "ibid-server", f"--listen={self.place.server_host}:0", "--http_listen=",
                    f"--host_bytes_max={STORE_BYTES >> 20}MiB", f"--port_file={port_file}", "--log_level=warn"],
                   port_file=port_file)

    def start_client(self, log_path):
        return self.driver(log_path, "--system=ibid", f"--transport={self.transport}",
                           f"--address={self.servers[0].address}")


def ibid_over(transport):
    return type(f"Ibid_{transport}", (Ibid,), {"name": f"ibid {transport}", "transport": transport})


class Redis(System):
    name = "redis"
    says = ("plain-socket C++ client that receives into the caller's memory, 1 MiB (at least 2 requests) on their way; no persistence; "
            "its allocator keeps freed memory; no checksum")

    @classmethod
    def why_not(cls, options):
        return None if shutil.which("redis-server") else "redis-server is not installed (bench/compare/install_peers)"

    def start_servers(self):
        port = self.place.free_port()
        self.serve(["redis-server", "--port", port, "--bind", self.place.server_host, "--save", "", "--appendonly", "no",
                    "--protected-mode", "no", "--dir", self.folder, "--daemonize", "no"], port, environment=KEEP_FREED)


class Memcached(System):
    name = "memcached"
    says = "the same client as Redis's; -I 4m, 4 threads; no checksum"

    @classmethod
    def why_not(cls, options):
        return None if shutil.which("memcached") else "memcached is not installed (bench/compare/install_peers)"

    def start_servers(self):
        port = self.place.free_port()
        self.serve(["memcached", "-u", "nobody", "-U", "0", "-p", port, "-l", self.place.server_host, "-I", "4m",
                    "-m", STORE_BYTES >> 20], port)


class PythonPeer(System):
    """A system whose client is a library in the peers' Python environment."""

    imports = ""  # what must be there

    @classmethod
    def why_not(cls, options):
        if not options.peers:
            return "no Python environment given with --peers (bench/compare/install_peers makes one)"
        done = subprocess.run([options.peers / "bin/python", "-c", f"import {cls.imports}"], capture_output=True, text=True,
                              timeout=120, check=False)
        lines = done.stderr.strip().splitlines()
        return None if done.returncode == 0 else f"import {cls.imports}: {lines[-1] if lines else done.returncode}"

    def python(self, script, *flags):
        return [self.options.peers / "bin/python", FOLDER / script, *flags]


class Mooncake(PythonPeer):
    name, imports = "mooncake", "mooncake.store, numpy"
    says = ("Mooncake Store over TCP: mooncake_master and one process whose memory is the store; batch_put_from and batch_get_into "
            "over registered buffers, one call a prefix; whether it has checksums of its own was not looked into")

    def start_servers(self):
        port, metrics_port = self.place.free_port(), self.place.free_port()
        self.serve([self.options.peers / "bin/mooncake_master", f"--rpc_port={port}", f"--metrics_port={metrics_port}"], port)
        self.node = Client(self.place.server_prefix(), self.python(
            "mooncake_driver.py", f"--host={self.place.server_host}", f"--master={self.servers[0].address}",
            f"--node_bytes={STORE_BYTES}"), self.folder / "node.log")
        self.servers.append(self.node)
        self.node.reply()

    def start_client(self, log_path):
        return Client(self.place.client_prefix(), self.python("mooncake_driver.py", f"--host={self.place.client_host}",
                                              f"--master={self.servers[0].address}", f"--bytes_max={PREFIX_BYTES_MAX}"), log_path)


class LMCache(PythonPeer):
    name, imports = "lmcache", "lmcache.v1.storage_backend.connector.lm_connector"
    says = ("its standalone server (lmcache.v1.server, Python) and its own connector; blocks arrive in memory objects of its CPU "
            "backend; a publish is acknowledged by one `exists` at its end; no checksum")

    def start_servers(self):
        port = self.place.free_port()
        self.serve([self.options.peers / "bin/python", "-m", "lmcache.v1.server", self.place.server_host, port, "cpu"], port,
                   environment={"LMCACHE_TRACK_USAGE": "false"})

    def start_client(self, log_path):
        return Client(self.place.client_prefix(), self.python("lmcache_driver.py", f"--address={self.servers[0].address}",
                                              f"--bytes_max={PREFIX_BYTES_MAX}"), log_path, {"LMCACHE_TRACK_USAGE": "false"})


def all_systems():
    return [Memcpy, *map(ibid_over, IBID_TRANSPORTS), Redis, Memcached, Mooncake, LMCache]
