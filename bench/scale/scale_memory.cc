// What the store's books take of memory when blocks are in two tiers, and how fast this machine can
// read memory in the way of a match: the floor of that figure.
#include <algorithm>
#include <fstream>
#include <memory>
#include <random>

#include "absl/strings/str_cat.h"
#include "bench/scale/scale_bench.h"
#include "cache_server/block_index.h"
#include "cache_server/eviction_book.h"
#include "cache_server/extent_allocator.h"
#include "core/check.h"
#include "core/huge_page.h"

namespace ibid {
namespace {

constexpr size_t kLineBytes = 64;
constexpr uint64_t kSlotBytes = 4096;
constexpr uint64_t kExtentBytes = uint64_t{64} << 20;

// Lines in huge pages, as the index has them.
class Lines {
 public:
  explicit Lines(size_t count) : count_(count) {
    for (size_t bytes = 0; bytes < count * kLineBytes; bytes += kHugePageBytes) {
      pages_.push_back(MakeHugePage());
      for (size_t at = 0; at < kHugePageBytes; at += kLineBytes)
        pages_.back().get()[at] = std::byte{1};
    }
  }
  size_t count() const { return count_; }
  const std::byte* operator[](size_t line) const {
    const size_t at = line * kLineBytes;
    return pages_[at / kHugePageBytes].get() + at % kHugePageBytes;
  }

 private:
  const size_t count_;
  std::vector<HugePage> pages_;
};

// For each key a line of a table, and one of an entry that is known once the first is there. No
// more than a window of them is asked for before it is read.
double ReadUs(const Lines& table, const Lines& entries, uint32_t keys_count, uint64_t seed) {
  constexpr size_t kWindow = 1'024;
  std::mt19937_64 random(seed);
  std::vector<std::pair<size_t, size_t>> keys(keys_count);
  for (auto& key : keys) key = {random() % table.count(), random() % (entries.count() - 1)};
  size_t sum = 0;
  const double begin = WallSeconds();
  for (size_t from = 0; from < keys.size(); from += kWindow) {
    const size_t to = std::min(from + kWindow, keys.size());
    for (size_t i = from; i < to; ++i) __builtin_prefetch(table[keys[i].first]);
    for (size_t i = from; i < to; ++i) {
      keys[i].second += static_cast<size_t>(*table[keys[i].first]);
      __builtin_prefetch(entries[keys[i].second]);
    }
    for (size_t i = from; i < to; ++i) sum += static_cast<size_t>(*entries[keys[i].second]);
  }
  const double us = (WallSeconds() - begin) * 1e6;
  IBID_CHECK(sum == keys.size());
  return us;
}

// The index, the eviction order of the host and the disk tier, and the slots of both.
double BytesOfABlockInTwoTiers(uint64_t blocks_count, uint32_t chain_count) {
  const double before = AnonymousBytes();
  const uint64_t tier_bytes = (blocks_count * kSlotBytes / kExtentBytes + 1) * kExtentBytes;
  const auto index = std::make_unique<BlockIndex>();
  EvictionBook book("hazard");
  ExtentAllocator host(tier_bytes, kExtentBytes);
  ExtentAllocator disk(tier_bytes, kExtentBytes);
  for (const TierName tier : {TierName::kHost, TierName::kDisk})
    book.SetCapacity(tier, blocks_count);
  uint32_t seed = 1;
  for (uint64_t made = 0; made < blocks_count; made += chain_count) {
    EntryId parent = kNoEntry;
    for (const ChainLink& link : MakeScaleChain(ScaleNamespace(), seed++, chain_count)) {
      IndexShard& shard = index->ShardOf(link.key);
      EntryId id;
      {
        MutexLock lock(shard.mutex);
        id = shard.Insert(1, link.key);
      }
      IBID_CHECK(host.Allocate(1, id).has_value() && disk.Allocate(1, id).has_value());
      for (const TierName tier : {TierName::kHost, TierName::kDisk}) {
        book.Insert(tier, id, parent, 1);
        book.Admit(tier, id, {book.FingerprintOf(link.key), parent, link.position, 16, false});
      }
      parent = id;
    }
  }
  return (AnonymousBytes() - before) / static_cast<double>(blocks_count);
}

}  // namespace

double AnonymousBytes() {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    uint64_t kilobytes = 0;
    if (word == "RssAnon:" && status >> kilobytes) return static_cast<double>(kilobytes << 10);
  }
  return 0;
}

void RunMemoryCase(const ScaleOptions& options, ScaleReport* report) {
  const uint64_t blocks_count = options.is_quick ? 100'000 : 10'000'000;
  const uint32_t chain_count = options.is_quick ? 2'500 : 62'500;
  {
    // A table has ten to twelve blocks in a line.
    const Lines table(blocks_count / 10);
    const Lines entries(blocks_count);
    for (const uint32_t keys_count : {chain_count, 1'000u}) {
      ScaleFigure figure{absl::StrCat("reading two lines a key, ", keys_count, " keys"), "us", {}};
      for (int i = 0; i < 20 * options.rounds; ++i)
        figure.values.push_back(ReadUs(table, entries, keys_count, static_cast<uint64_t>(i)));
      report->Add(std::move(figure));
    }
  }
  report->Add({"memory a block in the host and the disk tier",
               "bytes",
               {BytesOfABlockInTwoTiers(blocks_count, chain_count)},
               ScaleFigure::Target::kAtMost,
               160});
}

}  // namespace ibid
