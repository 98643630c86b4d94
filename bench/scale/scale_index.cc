// Memory a block, matches of long chains, and eviction under overload: one thread on a store whose
// blocks are not touched, so that an arena far larger than the machine costs nothing.
#include <malloc.h>

#include <random>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "bench/scale/scale_bench.h"
#include "core/check.h"

namespace ibid {
namespace {

constexpr uint32_t kBlockBytes = 256;
constexpr uint64_t kSlotBytes = 4096;

class FullStore {
 public:
  // As many chains as fill a host tier of `blocks_count` small blocks.
  // Each is asked for first if `is_asked_for`.
  FullStore(uint64_t blocks_count, uint32_t chain_count, bool has_maintenance_thread = false,
            bool is_asked_for = false)
      : blocks_count_(blocks_count), chain_count_(chain_count), is_asked_for_(is_asked_for) {
    malloc_trim(0);  // what earlier stores left would be taken for free
    bytes_before_ = AnonymousBytes();
    BlockStoreOptions options;
    options.host_bytes_max = blocks_count * kSlotBytes;
    options.populates_arena = false;
    options.has_maintenance_thread = has_maintenance_thread;
    auto store = BlockStore::Open(options);
    IBID_CHECK(store.ok()) << store.status();
    store_ = *std::move(store);
    IBID_CHECK(store_->OpenNamespace(ns_, SmallLayout(kBlockBytes)).ok());
    session_ = *store_->OpenSession("bench");
    const double begin = ThreadCpuSeconds();
    for (uint64_t stored = 0; stored < blocks_count; stored += chain_count) PublishNext();
    publish_ns_ = (ThreadCpuSeconds() - begin) * 1e9 / static_cast<double>(blocks_count);
    IBID_CHECK(store_->stats().tiers[0].blocks == blocks_count) << store_->stats().tiers[0].blocks;
  }

  double BytesPerBlock() const {
    return (AnonymousBytes() - bytes_before_) / static_cast<double>(blocks_count_);
  }
  double publish_ns() const { return publish_ns_; }

  // Publishes one more chain; the oldest blocks leave when the tier is full.
  void PublishNext() {
    const std::vector<ChainLink> chain = MakeScaleChain(ns_, next_seed_++, chain_count_);
    if (is_asked_for_) {
      const auto match = store_->Match(session_, ns_, KeysOf(chain), {.lease = true});
      IBID_CHECK(match.ok() && match->matched_count == 0) << match.status();
    }
    for (const ChainLink& link : chain) {
      absl::StatusOr<Reservation> reservation = store_->Reserve(session_, ns_, link);
      IBID_CHECK(reservation.ok()) << reservation.status();
      std::move(*reservation).Commit(0, 0, /*durable=*/false, [](const absl::Status& status) {
        IBID_CHECK(status.ok()) << status;
      });
    }
  }

  // CPU time for each block that comes and the one that leaves for it.
  double ReplaceNs(uint32_t chains_count) {
    const uint64_t evicted_before = store_->stats().tiers[0].evictions;
    const double begin = ThreadCpuSeconds();
    for (uint32_t i = 0; i < chains_count; ++i) PublishNext();
    const double seconds = ThreadCpuSeconds() - begin;
    const uint64_t evicted = store_->stats().tiers[0].evictions - evicted_before;
    IBID_CHECK(evicted == uint64_t{chains_count} * chain_count_) << evicted;
    return seconds * 1e9 / static_cast<double>(evicted);
  }

  // Wall and CPU time of one match of the first `keys_count` keys of some chain that is stored.
  struct MatchTime {
    double wall_us = 0;
    double cpu_us = 0;
  };
  MatchTime Match(uint32_t keys_count, bool with_lease) {
    const uint32_t stored = static_cast<uint32_t>(blocks_count_ / chain_count_);
    const uint32_t seed = next_seed_ - 1 - static_cast<uint32_t>(random_() % stored);
    std::vector<BlockKey> keys = KeysOf(MakeScaleChain(ns_, seed, keys_count));
    const double begin = WallSeconds();
    const double cpu_begin = ThreadCpuSeconds();
    const auto match = store_->Match(session_, ns_, keys, {.lease = with_lease});
    const MatchTime time{(WallSeconds() - begin) * 1e6, (ThreadCpuSeconds() - cpu_begin) * 1e6};
    IBID_CHECK(match.ok()) << match.status();
    IBID_CHECK(match->matched_count == keys_count) << match->matched_count;
    if (with_lease) store_->ReleaseLeases(session_, {&match->lease, 1});
    return time;
  }

  // From the end of a session with a lease on every block until none is pinned. REQUIRES: a
  // maintenance thread.
  double EndOfHolderMs() {
    const SessionId holder = *store_->OpenSession("holder");
    const uint32_t stored = static_cast<uint32_t>(blocks_count_ / chain_count_);
    for (uint32_t i = 0; i < stored; ++i) {
      const auto keys = KeysOf(MakeScaleChain(ns_, next_seed_ - 1 - i, chain_count_));
      const auto match = store_->Match(holder, ns_, keys, {.lease = true});
      IBID_CHECK(match.ok() && match->matched_count == chain_count_) << match.status();
    }
    IBID_CHECK(store_->stats().leases == stored && store_->stats().pinned_bytes > 0);
    const double begin = WallSeconds();
    store_->EndSession(holder);
    while (store_->stats().pinned_bytes > 0) {
      IBID_CHECK(WallSeconds() - begin < 60) << "a minute after its end a session holds blocks";
      absl::SleepFor(absl::Milliseconds(1));
    }
    return (WallSeconds() - begin) * 1e3;
  }

 private:
  const uint64_t blocks_count_;
  const uint32_t chain_count_;
  const bool is_asked_for_;
  const NamespaceId ns_ = ScaleNamespace();
  std::unique_ptr<BlockStore> store_;
  SessionId session_;
  uint32_t next_seed_ = 1;
  double bytes_before_ = 0;
  double publish_ns_ = 0;
  std::mt19937 random_{1};
};

std::string Millions(uint64_t count) {
  return count >= 1'000'000 ? absl::StrCat(count / 1'000'000, " million")
                            : absl::StrCat(count / 1'000, " thousand");
}

// Beside the wall time, which counts, the CPU time: the same on an idle machine.
void AddMatches(FullStore& store, uint32_t keys_count, bool with_lease, int count, double target_us,
                ScaleReport* report) {
  const std::string name =
      absl::StrCat(with_lease ? "match and lease, " : "match, ", keys_count, " keys");
  ScaleFigure wall{name, "us", {}, ScaleFigure::Target::kAtMost, target_us};
  ScaleFigure cpu{absl::StrCat(name, ", CPU"), "us", {}};
  for (int i = 0; i < count; ++i) {
    const FullStore::MatchTime time = store.Match(keys_count, with_lease);
    wall.values.push_back(time.wall_us);
    cpu.values.push_back(time.cpu_us);
  }
  report->Add(std::move(wall));
  report->Add(std::move(cpu));
}

// Short chains need the most segments and requests a block, and the ghosts of what was evicted come
// on top.
void AddWornMemory(uint64_t blocks_count, ScaleReport* report) {
  constexpr uint32_t kChainCount = 10;
  FullStore store(blocks_count, kChainCount, /*has_maintenance_thread=*/false,
                  /*is_asked_for=*/true);
  (void)store.ReplaceNs(static_cast<uint32_t>(blocks_count / 3 / kChainCount));
  report->Add({absl::StrCat("memory a block, ", Millions(blocks_count),
                            " blocks in chains of 10, a third replaced"),
               "bytes",
               {store.BytesPerBlock()},
               ScaleFigure::Target::kAtMost,
               160});
}

}  // namespace

void RunIndexCases(const ScaleOptions& options, ScaleReport* report) {
  using Target = ScaleFigure::Target;
  const uint64_t many = options.is_quick ? 100'000 : 10'000'000;
  const uint64_t few = options.is_quick ? 50'000 : 1'000'000;
  const uint32_t chain_count = options.is_quick ? 2'500 : 62'500;
  const uint32_t replaced_chains = options.is_quick ? 2 : 4;
  {
    FullStore store(few, chain_count, /*has_maintenance_thread=*/true);
    ScaleFigure end{absl::StrCat("end of a session that holds ", Millions(few), " blocks"),
                    "ms",
                    {},
                    Target::kAtMost,
                    1'000};
    for (int i = 0; i < options.rounds; ++i) end.values.push_back(store.EndOfHolderMs());
    report->Add(std::move(end));
  }
  AddWornMemory(many, report);
  FullStore store(many, chain_count);
  report->Add({absl::StrCat("memory a block, ", Millions(many), " blocks"),
               "bytes",
               {store.BytesPerBlock()},
               Target::kAtMost,
               160});
  report->Add({absl::StrCat("publish into a free tier, ", Millions(many), " blocks, CPU"),
               "ns/block",
               {store.publish_ns()}});
  const int matches_count = 4 * options.rounds;
  for (const bool with_lease : {false, true}) {
    AddMatches(store, chain_count, with_lease, matches_count, 10'000, report);
    AddMatches(store, 1'000, with_lease, 10 * matches_count, 100, report);
  }
  // In turn: a machine that others use is not as fast from one second to the next.
  FullStore small_store(few, chain_count);
  for (int i = 0; i < 10; ++i) (void)small_store.Match(1'000, /*with_lease=*/true);
  std::vector<double> replace_few, replace_many;
  (void)small_store.ReplaceNs(replaced_chains);
  (void)store.ReplaceNs(replaced_chains);
  for (int i = 0; i < 3 * options.rounds; ++i) {
    replace_few.push_back(small_store.ReplaceNs(replaced_chains));
    replace_many.push_back(store.ReplaceNs(replaced_chains));
  }
  const ScaleFigure of_few{absl::StrCat("publish that evicts, ", Millions(few), " blocks, CPU"),
                           "ns/block", replace_few};
  const ScaleFigure of_many{absl::StrCat("publish that evicts, ", Millions(many), " blocks, CPU"),
                            "ns/block", replace_many};
  report->Add(of_few);
  report->Add(of_many);
  report->Add({"cost of an eviction, many blocks to few",
               "ratio",
               {of_many.Median() / of_few.Median()},
               Target::kAtMost,
               1.3});
}

}  // namespace ibid
