"""One client of LMCache's standalone server (python -m lmcache.v1.server), through LMCache's own connector.

A fetched block arrives in a memory object of LMCache's CPU backend, where LMCache's engine would take it from. The server does not
acknowledge what is put: one `exists` after the last block, on the same connection, says that all have come. It cannot forget
blocks either: a later prefix replaces an earlier one of the same client, whose place is the last digit of the seed.
"""

import argparse
import asyncio
import os
import sys

import torch
from lmcache.utils import CacheEngineKey
from lmcache.v1.config import LMCacheEngineConfig
from lmcache.v1.memory_management import MemoryFormat
from lmcache.v1.metadata import LMCacheMetadata
from lmcache.v1.storage_backend.connector.lm_connector import LMCServerConnector
from lmcache.v1.storage_backend.local_cpu_backend import LocalCPUBackend

import driver_loop

BLOCK_TOKENS, KV_HEADS, HEAD_DIM = 16, 8, 128
LAYER_BYTES = 2 * BLOCK_TOKENS * KV_HEADS * HEAD_DIM * 2  # K and V in bfloat16


class LMCacheStore:
    def __init__(self, host, port, bytes_max):
        self.memory = driver_loop.Memory(bytes_max)
        metadata = LMCacheMetadata(
            model_name="compare", world_size=1, local_world_size=1, worker_id=0, local_worker_id=0, kv_dtype=torch.bfloat16,
            kv_shape=(32, 2, BLOCK_TOKENS, KV_HEADS, HEAD_DIM), chunk_size=BLOCK_TOKENS)
        # Room for what is published and what is fetched, and as much again for pieces that do not fit.
        config = LMCacheEngineConfig.from_defaults(max_local_cpu_size=4 * bytes_max / 2**30, chunk_size=BLOCK_TOKENS)
        self.backend = LocalCPUBackend(config, metadata, dst_device="cpu")
        self.loop = asyncio.new_event_loop()
        self.connector = LMCServerConnector(host, port, self.loop, self.backend)
        self.sources, self.fetched = [], {}

    def prepare(self, seed, block_bytes, blocks):
        self.release(self.sources)
        self.release(self.fetched.values())
        self.fetched = {}
        self.memory.fill(seed, block_bytes, blocks)
        self.block_bytes = block_bytes
        shape = torch.Size([2, block_bytes // LAYER_BYTES, BLOCK_TOKENS, KV_HEADS * HEAD_DIM])
        self.keys = [CacheEngineKey("compare", 1, seed % 10, (block_bytes << 16) | block, torch.bfloat16) for block in range(blocks)]
        self.sources = [self.backend.allocate(shape, torch.bfloat16, MemoryFormat.KV_2LTD) for _ in range(blocks)]
        for block, source in enumerate(self.sources):
            self.bytes_of(source)[:] = self.expected(block)

    @staticmethod
    def release(memory_objects):
        for memory_object in memory_objects:
            memory_object.ref_count_down()

    @staticmethod
    def bytes_of(memory_object):
        return memory_object.raw_data.view(torch.uint8).numpy()

    def expected(self, block):
        return self.memory.source[block * self.block_bytes:(block + 1) * self.block_bytes]

    def publish(self):
        async def put_all():
            for key, source in zip(self.keys, self.sources):
                await self.connector.put(key, source)
            return await self.connector.exists(self.keys[-1])
        if not self.loop.run_until_complete(put_all()):
            raise RuntimeError("the last block did not arrive")

    async def get(self, block):
        memory_object = await self.connector.get(self.keys[block])
        if memory_object is None:
            raise RuntimeError("a block is missing")
        self.release([self.fetched[block]] if block in self.fetched else [])
        self.fetched[block] = memory_object

    def fetch(self):
        async def get_all():
            for block in range(len(self.keys)):
                await self.get(block)
        self.loop.run_until_complete(get_all())

    def fetch_one(self, block):
        self.loop.run_until_complete(self.get(block))

    def is_target_right(self):
        return len(self.fetched) == len(self.keys) and all(
            (self.bytes_of(memory_object) == self.expected(block)).all() for block, memory_object in self.fetched.items())

    def drop(self):
        pass


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--address", required=True, help="host:port of the server")
    parser.add_argument("--bytes_max", type=int, default=128 << 20, help="the largest prefix")
    options = parser.parse_args()
    replies = os.fdopen(os.dup(1), "w")  # the library logs to stdout
    os.dup2(2, 1)
    host, port = options.address.split(":")
    driver_loop.serve(LMCacheStore(host, int(port), options.bytes_max), replies)
    return 0


if __name__ == "__main__":
    sys.exit(main())
