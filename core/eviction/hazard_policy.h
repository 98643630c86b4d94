// The learned policy: evicts the blocks that earn the least per byte and time from here on.
//
// Blocks that one request used last and that are of one class form a segment. For each class and
// age the policy learns how often blocks of it are used again (reuses per block and time, counting
// the blocks that still wait and those that were evicted). From these rates it has an index: the
// highest, over all horizons, of
//   P(used again within the horizon) / E(time held until then)
// (the Gittins index of a block of that class and age). The segment with the lowest index loses its
// end first.
//
// Classes, from what a lookup shows: the partial last block of a request; else by the request's
// type (the first turn of a conversation; a branch off an older one; its continuation by few, some
// or many new tokens) and by whether the request found the block or brings it.
//
// Where chains are spread over servers, most lookups ask for parts, and a prefix is as long as the
// first server that dropped its part makes it: then what each server learns alone would cost more
// than it gains, and the order is by age, which is the same on all of them.
//
// Time is counted in units of 512 tokens looked up, so that it follows the load. State: see
// block_lists.h; a segment is 72 bytes, one a request and class; an evicted block is 20 bytes while
// it is remembered, and of small blocks only one in each 512 tokens is, for all.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "core/eviction/eviction_policy.h"
#include "core/eviction/ghost_ring.h"
#include "core/eviction/reuse_rates.h"

namespace ibid {

class HazardPolicy final : public EvictionPolicy {
 public:
  explicit HazardPolicy(BlockLists& lists);

  void SetCapacity(uint64_t blocks) override;
  void OnLookup(std::span<const ChainBlock> chain, const LookupTraits& traits) override;
  void OnInsert(EntryId b, const BlockTraits& traits) override;
  void OnUse(EntryId b) override;
  void OnRemove(EntryId b, const LeavingBlock& leaving) override;
  EntryId TakeVictim() override;
  void PutBack(EntryId b) override;

  // Evicted blocks that it knows of.
  uint32_t remembered_count() const { return ghosts_.count(); }

 private:
  using SegmentId = uint32_t;
  using RequestId = uint32_t;
  static constexpr uint32_t kNone = 0xFFFFFFFF;
  static constexpr int kKindsCount = 3;  // of segments of one request
  static constexpr size_t kRanksCount = ReuseRates::kClassesCount * ReuseRates::kAgesCount;
  static constexpr size_t kExpectedCount = 256;

  enum class RequestType : uint8_t { kFirst, kBranch, kFewNew, kSomeNew, kManyNew };
  enum class Kind : uint8_t { kFound, kBrought, kTail };

  struct Request {
    uint32_t blocks_count = 0;  // of its chain, as far as it is known
    uint32_t found_count = 0;   // leading blocks that were known when it came
    RequestType type = RequestType::kFirst;
    uint32_t refs_count = 0;  // segments of it, and expected_
    std::array<SegmentId, kKindsCount> segments = {kNone, kNone, kNone};
  };
  struct Segment {
    BlockList candidates;
    double began_at = 0;
    double unit = 0;     // weight of each block in the tier
    double weight = 0;   // of its members
    double entered = 0;  // sum of weight * time of entry into its present age
    RequestId request = kNone;
    uint32_t members_count = 0;                            // in the tier, or remembered
    SegmentId older = kNone, younger = kNone;              // all of its class and age
    SegmentId next_to_lose = kNone, prev_to_lose = kNone;  // those with candidates
    uint8_t block_class = 0;
    uint8_t age = 0;
    Kind kind = Kind::kFound;
    bool is_losing = false;
  };
  static_assert(sizeof(Segment) == 72);
  struct SegmentList {
    SegmentId first = kNone, last = kNone;
  };

  struct Expected {  // the first block that a request lacks
    uint64_t fingerprint = 0;
    RequestId request = kNone;
  };
  struct Known {
    SegmentId segment = kNone;
    uint32_t ghost = GhostRing::kNone;
  };

  Known Find(const ChainBlock& block, double unit) const;
  bool IsInTier(EntryId b) const;

  RequestId NewRequest();
  void DropRequestRef(RequestId id);
  void Expect(uint64_t fingerprint, RequestId id);
  RequestId RequestOf(const BlockTraits& traits);
  RequestType TypeOf(std::span<const ChainBlock> chain, uint32_t found_count, double unit,
                     uint32_t first_position) const;
  void UseFound(std::span<const ChainBlock> found, double unit, RequestId request_id);

  // The one that blocks join now, made if need be.
  SegmentId SegmentFor(RequestId request, Kind kind, double unit);
  void FreeSegment(SegmentId id);
  void LinkYoungest(SegmentId id);
  void GrowOlder(SegmentId id, double crossed_at);
  void CountReuse(SegmentId id, double weight);
  void Join(SegmentId id, uint32_t members_count, double weight);
  void Leave(SegmentId id, uint32_t members_count, double weight);  // may free it
  void AddCandidate(SegmentId id, EntryId b, bool is_coldest);
  void DropCandidate(EntryId b);
  void StartLosing(SegmentId id);
  void StopLosing(SegmentId id);
  void Remember(SegmentId id, uint64_t fingerprint);
  void AdvanceAges();
  void CountLookup(bool is_part);
  void CountOrphan(double unit);
  void RefreshIfDue();
  void RankAll();
  void MarkRank(int block_class, int age, bool has_victims);

  SegmentList& AllOf(int block_class, int age) { return all_[block_class][age]; }
  SegmentList& LosingOf(int block_class, int age) { return losing_[block_class][age]; }

  BlockLists& lists_;
  ReuseRates rates_;
  GhostRing ghosts_{/*places_max=*/1};  // until a lookup tells how large a block is
  std::vector<Segment> segments_;
  std::vector<Request> requests_;
  SegmentId free_segment_ = kNone;  // linked by `older`
  RequestId free_request_ = kNone;  // linked by segments[0]
  RequestId orphans_ = kNone;       // of blocks whose parents the tier does not have
  SegmentList all_[ReuseRates::kClassesCount][ReuseRates::kAgesCount];
  SegmentList losing_[ReuseRates::kClassesCount][ReuseRates::kAgesCount];
  std::array<uint16_t, kRanksCount> order_;  // class * kAgesCount + age, lowest index first
  uint16_t rank_of_[ReuseRates::kClassesCount][ReuseRates::kAgesCount];
  std::array<uint64_t, (kRanksCount + 63) / 64> has_victims_{};  // a bit a rank
  std::array<Expected, kExpectedCount> expected_;
  bool orders_by_age_ = false;
  uint32_t lookups_count_ = 0;  // since RefreshIfDue did something
  uint32_t parts_count_ = 0;    // of them
  double now_ = 0;              // units looked up
  double refresh_at_ = 0;
  double capacity_units_ = 0;
  uint64_t capacity_blocks_ = 0;
};

}  // namespace ibid
