// What watchers cost those who publish, inside one store: blocks of 4 KiB are published and, the
// host tier being full, others evicted, while nobody watches, while a watcher does not read, and
// while some read all. And how long a snapshot of a full index takes.
//
//   event_bench --threads=2 --seconds=2 --rounds=3

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>
#include <thread>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "cache_server/block_store.h"
#include "cache_server/block_watch.h"
#include "core/check.h"
#include "core/clock.h"

ABSL_FLAG(int, threads, 2, "threads that publish");
ABSL_FLAG(double, seconds, 2, "for each case of each round");
ABSL_FLAG(int, rounds, 3, "rounds; the median is printed");
ABSL_FLAG(uint64_t, host_mib, 512, "host tier: 256 blocks a MiB");

namespace ibid {
namespace {

struct Case {
  const char* name;
  int watchers_count;
  bool is_reading;
};
constexpr Case kCases[] = {{"no watcher", 0, false},
                           {"one that does not read", 1, false},
                           {"one reader", 1, true},
                           {"four readers", 4, true}};

class Bench {
 public:
  Bench() {
    BlockStoreOptions options;
    options.host_bytes_max = absl::GetFlag(FLAGS_host_mib) << 20;
    auto store = BlockStore::Open(options);
    IBID_CHECK(store.ok()) << store.status().ToString();
    store_ = *std::move(store);
    KvLayout layout;
    layout.layers = layout.kv_heads = 1;
    layout.k_dim = 256;
    layout.v_dim = 0;
    layout.dtype = KvDtype::kInt8;
    IBID_CHECK(store_->OpenNamespace(ns_, layout).ok());
  }

  // Blocks a second.
  double PublishRate(const Case& which) {
    std::vector<std::unique_ptr<BlockWatch>> watches;
    for (int i = 0; i < which.watchers_count; ++i) {
      watches.push_back(*store_->Watch({.has_snapshot = false}));
    }
    std::atomic<bool> is_over{false};
    std::atomic<uint64_t> published{0};
    std::vector<std::thread> threads;
    for (int i = 0; i < absl::GetFlag(FLAGS_threads); ++i) {
      threads.emplace_back([&] { Publish(is_over, published); });
    }
    for (auto& watch : watches) {
      if (which.is_reading) threads.emplace_back([&] { Read(*watch, is_over); });
    }
    const SteadyClock clock;
    const absl::Time began = clock.Now();
    const uint64_t before = published;
    std::this_thread::sleep_for(std::chrono::duration<double>(absl::GetFlag(FLAGS_seconds)));
    const double rate =
        static_cast<double>(published - before) / absl::ToDoubleSeconds(clock.Now() - began);
    is_over = true;
    for (std::thread& thread : threads) thread.join();
    return rate;
  }

  // Held blocks a second of one snapshot, and how many there are.
  std::pair<double, size_t> SnapshotRate() {
    const auto watch = *store_->Watch({});
    const SteadyClock clock;
    const absl::Time began = clock.Now();
    size_t held = 0;
    while (true) {
      const WatchPiece piece = watch->Next();
      held += piece.events.size();
      if (piece.notice == WatchNotice::kSnapshotEnd) break;
    }
    return {static_cast<double>(held) / absl::ToDoubleSeconds(clock.Now() - began), held};
  }

 private:
  void Publish(const std::atomic<bool>& is_over, std::atomic<uint64_t>& published) {
    const SessionId session = *store_->OpenSession("bench");
    while (!is_over) {
      BlockKey key;
      const uint64_t number = next_key_++;
      for (size_t i = 0; i < 4; ++i) {
        const uint64_t word = (number + i + 1) * 0x9E3779B97F4A7C15u;
        std::memcpy(key.digest.data() + i * sizeof(word), &word, sizeof(word));
      }
      auto room = store_->Reserve(session, ns_, ChainLink{key, RootParent(ns_), 16, 0});
      if (!room.ok()) continue;
      std::memset(room->payload().data(), 1, 64);
      std::move(*room).Commit(1, 1, false, [](const absl::Status&) {});
      ++published;
    }
    store_->EndSession(session);
  }

  void Read(BlockWatch& watch, const std::atomic<bool>& is_over) {
    while (!is_over) {
      const WatchPiece piece = watch.Next();
      IBID_CHECK(piece.notice != WatchNotice::kCutOff) << "the reader is too slow";
      if (!piece.is_waiting) continue;
      store_->WaitForEvents(piece.sequence, absl::Milliseconds(10));
      std::this_thread::sleep_for(std::chrono::milliseconds(1));  // as the service gathers events
    }
  }

  const NamespaceId ns_ = MakeNamespaceId(NamespaceSpec{});
  std::unique_ptr<BlockStore> store_;
  std::atomic<uint64_t> next_key_{1};
};

void Run() {
  Bench bench;
  (void)bench.PublishRate(kCases[0]);  // fills the tier
  std::vector<std::vector<double>> rates(std::size(kCases));
  for (int round = 0; round < absl::GetFlag(FLAGS_rounds); ++round) {
    for (size_t i = 0; i < std::size(kCases); ++i) {
      rates[i].push_back(bench.PublishRate(kCases[i]));
    }
  }
  const auto [snapshot_rate, held] = bench.SnapshotRate();
  nlohmann::ordered_json json = {{"threads", absl::GetFlag(FLAGS_threads)}};
  for (size_t i = 0; i < std::size(kCases); ++i) {
    std::sort(rates[i].begin(), rates[i].end());
    json["published_blocks_per_second"][kCases[i].name] = rates[i][rates[i].size() / 2];
  }
  json["snapshot"] = {{"blocks", held}, {"blocks_per_second", snapshot_rate}};
  std::puts(json.dump(2).c_str());
}

}  // namespace
}  // namespace ibid

int main(int argc, char** argv) {
  absl::SetProgramUsageMessage("event_bench: what watchers cost those who publish");
  absl::ParseCommandLine(argc, argv);
  ibid::Run();
}
