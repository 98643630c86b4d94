// What the tests of the store share: a directory that cleans up, small layouts, blocks whose bytes
// follow from their keys, and the calls that every test makes.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <cstring>
#include <filesystem>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "cache_server/block_store.h"
#include "cache_server/extent_io.h"
#include "core/block_key.h"
#include "core/checksum.h"
#include "core/clock.h"
#include "core/limit.h"

// RocksDB comes without instrumentation: ThreadSanitizer cannot see what it synchronises by.
#if defined(__SANITIZE_THREAD__)
extern "C" inline const char* __tsan_default_suppressions() { return "race:librocksdb.so\n"; }
#endif

namespace ibid {

class TempDir {
 public:
  TempDir() {
    std::string path = std::filesystem::temp_directory_path() / "ibid_store_XXXXXX";
    if (mkdtemp(path.data()) != nullptr) path_ = path;
  }
  ~TempDir() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// A block of `pages` times 4 KiB; with `less_bytes_16ths` 16 bytes each less, so that payloads are
// no whole pages.
inline KvLayout LayoutOfPages(uint32_t pages, uint32_t less_16 = 0) {
  KvLayout layout;
  layout.layers = 1;
  layout.kv_heads = 1;
  layout.k_dim = pages * 256 - less_16;
  layout.v_dim = 0;
  layout.dtype = KvDtype::kInt8;
  layout.block_tokens = 16;
  return layout;
}

inline NamespaceId NamespaceOf(const std::string& name) {
  NamespaceSpec spec;
  spec.model = name;
  return MakeNamespaceId(spec);
}

// The chain of `blocks` full blocks of conversation `seed`; its first `shared` blocks are those of
// every other chain.
inline std::vector<ChainLink> ChainOf(const NamespaceId& ns, uint32_t seed, size_t blocks,
                                      size_t shared = 0) {
  std::vector<uint32_t> tokens(blocks * 16);
  for (size_t i = 0; i < tokens.size(); ++i)
    tokens[i] = (i < shared * 16 ? 0 : seed * 7919) + static_cast<uint32_t>(i);
  return MakeChain(ns, tokens, 16, /*with_tail=*/false);
}

inline std::vector<BlockKey> KeysOf(const std::vector<ChainLink>& chain) {
  std::vector<BlockKey> keys;
  for (const ChainLink& link : chain) keys.push_back(link.key);
  return keys;
}

// The only right payload of a block: every byte depends on the key and its place.
inline std::vector<std::byte> PayloadOf(const BlockKey& key, size_t bytes) {
  uint64_t state;
  std::memcpy(&state, key.digest.data(), sizeof(state));
  std::vector<std::byte> payload(bytes);
  for (size_t i = 0; i < bytes; i += sizeof(state)) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    std::memcpy(payload.data() + i, &state, std::min(sizeof(state), bytes - i));
  }
  return payload;
}

inline bool HasRightBytes(const BlockRef& ref, const BlockKey& key) {
  const std::vector<std::byte> right = PayloadOf(key, ref.payload().size());
  return std::memcmp(right.data(), ref.payload().data(), right.size()) == 0 &&
         ref.checksum() == Checksum(right);
}

inline void Fill(const Reservation& reservation, const BlockKey& key) {
  const std::vector<std::byte> payload = PayloadOf(key, reservation.payload().size());
  std::memcpy(reservation.payload().data(), payload.data(), payload.size());
}

inline absl::Status CommitFilled(Reservation reservation, const BlockKey& key,
                                 bool durable = false) {
  Fill(reservation, key);
  const uint64_t checksum = Checksum(reservation.payload());
  std::promise<absl::Status> promise;
  std::future<absl::Status> result = promise.get_future();
  std::move(reservation).Commit(checksum, checksum, durable, [&promise](absl::Status status) {
    promise.set_value(std::move(status));
  });
  return result.get();
}

inline absl::Status Publish(BlockStore& store, SessionId session, const NamespaceId& ns,
                            const ChainLink& link, bool durable = false) {
  absl::StatusOr<Reservation> reservation = store.Reserve(session, ns, link);
  if (!reservation.ok()) return reservation.status();
  return CommitFilled(*std::move(reservation), link.key, durable);
}

inline void PublishAll(BlockStore& store, SessionId session, const NamespaceId& ns,
                       const std::vector<ChainLink>& chain, bool durable = false) {
  for (const ChainLink& link : chain) {
    absl::Status status = Publish(store, session, ns, link, durable);
    // All of a small host tier may be on its way to disk for a moment.
    for (int i = 0; i < 2'000 && absl::IsResourceExhausted(status); ++i) {
      absl::SleepFor(absl::Milliseconds(1));
      status = Publish(store, session, ns, link, durable);
    }
    ASSERT_TRUE(status.ok()) << status << " at position " << link.position;
  }
}

inline absl::StatusOr<BlockRef> AcquireNow(BlockStore& store, const NamespaceId& ns,
                                           const BlockKey& key) {
  std::promise<absl::StatusOr<BlockRef>> promise;
  std::future<absl::StatusOr<BlockRef>> result = promise.get_future();
  store.Acquire(ns, key,
                [&promise](absl::StatusOr<BlockRef> ref) { promise.set_value(std::move(ref)); });
  return result.get();
}

inline uint32_t MatchedCount(BlockStore& store, const NamespaceId& ns,
                             const std::vector<BlockKey>& keys) {
  const auto result = store.Match({}, ns, keys, {});
  return result.ok() ? result->matched_count : 0;
}

inline const BlockTierStats& TierOf(const BlockStoreStats& stats, absl::string_view tier) {
  for (const BlockTierStats& each : stats.tiers) {
    if (each.tier == tier) return each;
  }
  static const BlockTierStats kNone;
  return kNone;
}

// A store with one namespace of `pages_per_block` and one session. Reopen keeps the disk.
class StoreFixture : public ::testing::Test {
 protected:
  void OpenStore(BlockStoreOptions options, uint32_t pages_per_block = 1) {
    options.clock = &clock_;
    options.has_maintenance_thread = false;
    options_ = options;
    auto store = BlockStore::Open(options);
    ASSERT_TRUE(store.ok()) << store.status();
    store_ = *std::move(store);
    layout_ = LayoutOfPages(pages_per_block);
    ASSERT_TRUE(store_->OpenNamespace(ns_, layout_).ok());
    session_ = *store_->OpenSession("test");
  }

  void Reopen() {
    store_.reset();
    OpenStore(options_, layout_.k_dim / 256);
    WaitForRecovery();
  }

  // Recovery ends by itself; nothing in the store tells when, so this looks again until it has.
  void WaitForRecovery() {
    while (store_->stats().is_recovering) std::this_thread::yield();
  }

  BlockStoreOptions HostOnly(size_t host_pages, size_t extent_pages) {
    BlockStoreOptions options;
    options.host_bytes_max = host_pages * 4096;
    options.extent_bytes = extent_pages * 4096;
    options.leased_percent_per_session_max = 100;  // one session may lease a tier of a few blocks
    return options;
  }

  BlockStoreOptions WithDisk(size_t host_pages, size_t disk_pages, size_t extent_pages) {
    BlockStoreOptions options = HostOnly(host_pages, extent_pages);
    options.disk_directory = directory_.path() + "/tier";
    options.disk_bytes_max = disk_pages * 4096 + options.disk_directory_bytes_reserve;
    return options;
  }

  absl::Status PublishOne(const ChainLink& link, bool durable = false) {
    return Publish(*store_, session_, ns_, link, durable);
  }
  void PublishChain(const std::vector<ChainLink>& chain, bool durable = false) {
    PublishAll(*store_, session_, ns_, chain, durable);
  }
  absl::StatusOr<BlockRef> AcquireOne(const BlockKey& key) { return AcquireNow(*store_, ns_, key); }
  uint32_t Matched(const std::vector<ChainLink>& chain) {
    return MatchedCount(*store_, ns_, KeysOf(chain));
  }
  BlockTierStats Host() { return TierOf(store_->stats(), "host"); }
  BlockTierStats Disk() { return TierOf(store_->stats(), "disk"); }
  bool Flush() { return store_->FlushToDisk(absl::Seconds(30)); }

  TempDir directory_;
  ManualClock clock_;
  BlockStoreOptions options_;
  KvLayout layout_;
  NamespaceId ns_ = NamespaceOf("test");
  SessionId session_;
  std::unique_ptr<BlockStore> store_;
};

}  // namespace ibid
