// Invariants:
// - `word` of a block that the policy knows is its segment. It is among the segment's candidates
//   <=> its place is kPolicy.
// - members_count of a segment counts the blocks of it in the tier, taken ones included, and its
//   ghosts; weight is the sum of their weights. A segment without members is freed, and a request
//   that neither a segment nor expected_ names.
// - all_[class][age] is ordered by began_at. losing_[class][age] holds those of them that have
//   candidates, about in the same order.
#include "core/eviction/hazard_policy.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>

#include "core/check.h"

namespace ibid {
namespace {

// All of these are in units of kUnitTokens, and were chosen on the two traces of
// docs/performance.md.
constexpr double kUnitTokens = 512;
// What decides the type of a request: see the class comment.
constexpr double kSharedRootMax = 1;      // found, and still a first turn
constexpr double kOwnerShortfallMax = 2;  // of the chain it continues, not found
constexpr double kFewNewMax = 3;
constexpr double kSomeNewMax = 7;
// What is remembered: this many times what the tier holds, and at least so much.
constexpr double kGhostsFactor = 8;
constexpr double kGhostUnitsMin = 65'536;
// Rates are computed anew after this share of the tier was looked up.
constexpr double kRefreshShare = 0.02;
constexpr double kRefreshUnitsMin = 16;
constexpr double kHalfLifeUnits = 60'000;
constexpr size_t kPrefetchDistance = 12;
constexpr int kTailClass = ReuseRates::kClassesCount - 1;
constexpr int kAgeOnlyClass = 0;

double UnitsOf(uint32_t block_tokens) { return block_tokens / kUnitTokens; }

// Small blocks are remembered by sample, so that one in each unit is, for all.
bool IsRemembered(uint64_t fingerprint, double unit) {
  return unit >= 1 || (fingerprint >> 40) * 0x1p-24 < unit;
}
double GhostWeight(double unit) { return std::max(1.0, unit); }

}  // namespace

HazardPolicy::HazardPolicy(BlockLists& lists) : lists_(lists) {
  std::iota(order_.begin(), order_.end(), 0);
  RankAll();
  orphans_ = NewRequest();
  requests_[orphans_].type = RequestType::kBranch;
  requests_[orphans_].refs_count = 1;
}

void HazardPolicy::SetCapacity(uint64_t blocks) { capacity_blocks_ = blocks; }

bool HazardPolicy::IsInTier(EntryId b) const {
  const Place place = lists_.PlaceOf(b);
  return place == Place::kPolicy || place == Place::kTaken;
}

HazardPolicy::Known HazardPolicy::Find(const ChainBlock& block, double unit) const {
  Known known;
  if (IsInTier(block.id)) {
    known.segment = lists_[block.id].word;
  } else if (IsRemembered(block.fingerprint, unit)) {
    known.ghost = ghosts_.Find(block.fingerprint);
    if (known.ghost != GhostRing::kNone) known.segment = ghosts_.value(known.ghost);
  }
  return known;
}

// ---- Requests

HazardPolicy::RequestId HazardPolicy::NewRequest() {
  RequestId id = free_request_;
  if (id != kNone) {
    free_request_ = requests_[id].segments[0];
    requests_[id] = Request{};
  } else {
    id = static_cast<RequestId>(requests_.size());
    requests_.emplace_back();
  }
  return id;
}

void HazardPolicy::DropRequestRef(RequestId id) {
  Request& request = requests_[id];
  if (--request.refs_count > 0) return;
  request.segments[0] = free_request_;
  free_request_ = id;
}

// The blocks that a request lacks come later and one by one, those of other requests between them.
// The first is recognised by its fingerprint, the others by their parents.
void HazardPolicy::Expect(uint64_t fingerprint, RequestId id) {
  Expected& expected = expected_[fingerprint % kExpectedCount];
  if (expected.request != kNone) DropRequestRef(expected.request);
  expected = {fingerprint, id};
  ++requests_[id].refs_count;
}

HazardPolicy::RequestId HazardPolicy::RequestOf(const BlockTraits& traits) {
  const Expected& expected = expected_[traits.fingerprint % kExpectedCount];
  if (expected.request != kNone && expected.fingerprint == traits.fingerprint) {
    return expected.request;
  }
  if (traits.parent != kNoEntry && IsInTier(traits.parent)) {
    return segments_[lists_[traits.parent].word].request;
  }
  // Without a parent there is no telling which blocks belong together, and there may be millions of
  // them after a restart.
  if (traits.position > 0) return orphans_;
  return NewRequest();  // kept by the segment that the caller makes
}

HazardPolicy::RequestType HazardPolicy::TypeOf(std::span<const ChainBlock> chain,
                                               uint32_t found_count, double unit,
                                               uint32_t first_position) const {
  const uint32_t found_end = first_position + found_count;
  if (found_end * unit <= kSharedRootMax) return RequestType::kFirst;
  if (found_count == 0) return RequestType::kBranch;
  const Known last = Find(chain[found_count - 1], unit);
  const uint32_t owner_count = requests_[segments_[last.segment].request].blocks_count;
  if ((static_cast<double>(owner_count) - found_end) * unit > kOwnerShortfallMax) {
    return RequestType::kBranch;
  }
  const double new_units = static_cast<double>(chain.size() - found_count) * unit;
  if (new_units <= kFewNewMax) return RequestType::kFewNew;
  return new_units <= kSomeNewMax ? RequestType::kSomeNew : RequestType::kManyNew;
}

HazardPolicy::SegmentId HazardPolicy::SegmentFor(RequestId request_id, Kind kind, double unit) {
  Request& request = requests_[request_id];
  const int k = static_cast<int>(kind);
  // A block that comes much later is not as old as those that came with the request; and orphans
  // are of requests to models with blocks of any size.
  const SegmentId last = request.segments[k];
  if (last != kNone && segments_[last].age == 0 && segments_[last].unit == unit) return last;
  SegmentId id = free_segment_;
  if (id != kNone) {
    free_segment_ = segments_[id].older;
    segments_[id] = Segment{};
  } else {
    id = static_cast<SegmentId>(segments_.size());
    segments_.emplace_back();
  }
  Segment& segment = segments_[id];
  segment.began_at = now_;
  segment.request = request_id;
  segment.kind = kind;
  segment.unit = unit;
  const int learned_class = 2 * static_cast<int>(request.type) + k;
  segment.block_class = static_cast<uint8_t>(kind == Kind::kTail ? kTailClass
                                             : orders_by_age_    ? kAgeOnlyClass
                                                                 : learned_class);
  LinkYoungest(id);
  request.segments[k] = id;
  ++request.refs_count;
  return id;
}

void HazardPolicy::FreeSegment(SegmentId id) {
  Segment& segment = segments_[id];
  StopLosing(id);
  SegmentList& all = AllOf(segment.block_class, segment.age);
  (segment.older == kNone ? all.first : segments_[segment.older].younger) = segment.younger;
  (segment.younger == kNone ? all.last : segments_[segment.younger].older) = segment.older;
  SegmentId& of_kind = requests_[segment.request].segments[static_cast<int>(segment.kind)];
  if (of_kind == id) of_kind = kNone;
  DropRequestRef(segment.request);
  segment = Segment{};
  segment.older = free_segment_;
  free_segment_ = id;
}

// ---- Members

void HazardPolicy::Join(SegmentId id, uint32_t members_count, double weight) {
  Segment& segment = segments_[id];
  segment.members_count += members_count;
  segment.weight += weight;
  segment.entered += weight * now_;
  rates_.Enter(segment.block_class, segment.age, weight, now_);
}

void HazardPolicy::Leave(SegmentId id, uint32_t members_count, double weight) {
  Segment& segment = segments_[id];
  segment.members_count -= members_count;
  if (segment.members_count == 0) weight = segment.weight;  // no rest by rounding
  const double entered_at = segment.entered / segment.weight;
  rates_.Leave(segment.block_class, segment.age, weight, entered_at, now_);
  segment.weight -= weight;
  segment.entered -= weight * entered_at;
  if (segment.members_count == 0) FreeSegment(id);
}

void HazardPolicy::CountReuse(SegmentId id, double weight) {
  rates_.CountReuse(segments_[id].block_class, segments_[id].age, weight);
}

// Its candidates are candidates of the tier. About in the order of age: one that had none for a
// while goes before those that came meanwhile.
void HazardPolicy::StartLosing(SegmentId id) {
  Segment& segment = segments_[id];
  if (segment.is_losing) return;
  segment.is_losing = true;
  SegmentList& list = LosingOf(segment.block_class, segment.age);
  const bool is_first = list.first != kNone && segment.began_at < segments_[list.first].began_at;
  segment.prev_to_lose = is_first ? kNone : list.last;
  segment.next_to_lose = is_first ? list.first : kNone;
  (segment.prev_to_lose == kNone ? list.first : segments_[segment.prev_to_lose].next_to_lose) = id;
  (segment.next_to_lose == kNone ? list.last : segments_[segment.next_to_lose].prev_to_lose) = id;
  MarkRank(segment.block_class, segment.age, /*has_victims=*/true);
}

void HazardPolicy::StopLosing(SegmentId id) {
  Segment& segment = segments_[id];
  if (!segment.is_losing) return;
  segment.is_losing = false;
  SegmentList& list = LosingOf(segment.block_class, segment.age);
  (segment.prev_to_lose == kNone ? list.first : segments_[segment.prev_to_lose].next_to_lose) =
      segment.next_to_lose;
  (segment.next_to_lose == kNone ? list.last : segments_[segment.next_to_lose].prev_to_lose) =
      segment.prev_to_lose;
  segment.prev_to_lose = segment.next_to_lose = kNone;
  if (list.first == kNone) MarkRank(segment.block_class, segment.age, /*has_victims=*/false);
}

void HazardPolicy::MarkRank(int block_class, int age, bool has_victims) {
  const uint16_t rank = rank_of_[block_class][age];
  const uint64_t bit = uint64_t{1} << (rank % 64);
  uint64_t& word = has_victims_[rank / 64];
  word = has_victims ? word | bit : word & ~bit;
}

void HazardPolicy::AddCandidate(SegmentId id, EntryId b, bool is_coldest) {
  Segment& segment = segments_[id];
  lists_[b].word = id;
  if (is_coldest) {
    lists_.PushColdest(segment.candidates, b, Place::kPolicy);
  } else {
    lists_.PushHottest(segment.candidates, b, Place::kPolicy);
  }
  StartLosing(id);
}

void HazardPolicy::DropCandidate(EntryId b) {
  if (lists_.PlaceOf(b) != Place::kPolicy) return;
  const SegmentId id = lists_[b].word;
  lists_.Unlink(segments_[id].candidates, b, Place::kTaken);
  if (segments_[id].candidates.is_empty()) StopLosing(id);
}

void HazardPolicy::Remember(SegmentId id, uint64_t fingerprint) {
  Join(id, 1, GhostWeight(segments_[id].unit));
  const auto forgotten = ghosts_.Insert(fingerprint, id);
  if (forgotten.has_value()) Leave(*forgotten, 1, GhostWeight(segments_[*forgotten].unit));
}

// ---- Time

void HazardPolicy::AdvanceAges() {
  for (int c = 0; c < ReuseRates::kClassesCount; ++c) {
    for (int age = ReuseRates::kAgesCount - 2; age >= 0; --age) {
      const double end = ReuseRates::BeginOf(age + 1);
      for (SegmentId id = AllOf(c, age).first; id != kNone && segments_[id].began_at + end <= now_;
           id = AllOf(c, age).first) {
        GrowOlder(id, segments_[id].began_at + end);
      }
    }
  }
}

// `id` is the oldest of its class and age.
void HazardPolicy::GrowOlder(SegmentId id, double crossed_at) {
  Segment& segment = segments_[id];
  const bool is_losing = segment.is_losing;
  StopLosing(id);
  SegmentList& from = AllOf(segment.block_class, segment.age);
  from.first = segment.younger;
  (from.first == kNone ? from.last : segments_[from.first].older) = kNone;
  rates_.Leave(segment.block_class, segment.age, segment.weight, segment.entered / segment.weight,
               crossed_at);
  ++segment.age;
  rates_.Enter(segment.block_class, segment.age, segment.weight, crossed_at);
  segment.entered = segment.weight * crossed_at;
  LinkYoungest(id);
  if (is_losing) StartLosing(id);
}

// As the youngest of its class and age.
void HazardPolicy::LinkYoungest(SegmentId id) {
  Segment& segment = segments_[id];
  SegmentList& all = AllOf(segment.block_class, segment.age);
  segment.older = all.last;
  segment.younger = kNone;
  (all.last == kNone ? all.first : segments_[all.last].younger) = id;
  all.last = id;
}

void HazardPolicy::CountLookup(bool is_part) {
  ++lookups_count_;
  parts_count_ += is_part ? 1 : 0;
}

void HazardPolicy::RefreshIfDue() {
  if (now_ < refresh_at_) return;
  orders_by_age_ = 2 * uint64_t{parts_count_} > lookups_count_;
  lookups_count_ = parts_count_ = 0;
  const double every = std::max(kRefreshUnitsMin, capacity_units_ * kRefreshShare);
  refresh_at_ = now_ + every;
  rates_.Decay(every, kHalfLifeUnits);
  rates_.Refresh(now_);
  RankAll();
}

void HazardPolicy::RankAll() {
  constexpr int kAges = ReuseRates::kAgesCount;
  std::sort(order_.begin(), order_.end(), [this](uint16_t a, uint16_t b) {
    if (orders_by_age_ && a % kAges != b % kAges) return a % kAges > b % kAges;
    return rates_.index(a / kAges, a % kAges) < rates_.index(b / kAges, b % kAges);
  });
  for (uint16_t rank = 0; rank < order_.size(); ++rank) {
    const int c = order_[rank] / kAges;
    const int age = order_[rank] % kAges;
    rank_of_[c][age] = rank;
    MarkRank(c, age, LosingOf(c, age).first != kNone);
  }
}

// ---- What the owner calls

void HazardPolicy::OnLookup(std::span<const ChainBlock> chain, const LookupTraits& traits) {
  if (chain.empty()) return;
  const double unit = UnitsOf(traits.block_tokens);
  capacity_units_ = static_cast<double>(capacity_blocks_) * unit;
  ghosts_.RaiseLimit(static_cast<uint32_t>(
      std::max(kGhostUnitsMin, kGhostsFactor * capacity_units_) / std::max(1.0, unit)));
  AdvanceAges();
  CountLookup(traits.is_part);
  RefreshIfDue();
  uint32_t found_count = static_cast<uint32_t>(chain.size());
  while (found_count > 0 && Find(chain[found_count - 1], unit).segment == kNone) {
    --found_count;
  }
  const RequestType type = TypeOf(chain, found_count, unit, traits.first_position);
  const RequestId request_id = NewRequest();
  Request& request = requests_[request_id];
  request.type = type;
  request.blocks_count = traits.first_position + static_cast<uint32_t>(chain.size());
  request.found_count = traits.first_position + found_count;
  ++request.refs_count;
  UseFound(chain.first(found_count), unit, request_id);
  const auto missing = std::find_if(
      chain.begin(), chain.end(), [this](const ChainBlock& block) { return !IsInTier(block.id); });
  if (missing != chain.end()) Expect(missing->fingerprint, request_id);
  now_ += static_cast<double>(chain.size()) * unit;
  DropRequestRef(request_id);
}

// Last to first, so that the end of each segment is the first to leave. Blocks that leave one
// segment for another together are counted together.
void HazardPolicy::UseFound(std::span<const ChainBlock> found, double unit, RequestId request_id) {
  SegmentId from = kNone, to = kNone;
  uint32_t moved_count = 0;
  const auto count_moved = [&] {
    if (moved_count == 0) return;
    CountReuse(from, moved_count * unit);
    Join(to, moved_count, moved_count * unit);
    Leave(from, moved_count, moved_count * unit);
    moved_count = 0;
  };
  for (size_t i = found.size(); i > 0; --i) {
    if (i > kPrefetchDistance) lists_.Prefetch(found[i - 1 - kPrefetchDistance].id);
    const ChainBlock& block = found[i - 1];
    const Known known = Find(block, unit);
    if (known.segment == kNone) continue;
    if (known.segment != from || known.ghost != GhostRing::kNone) {
      count_moved();
      from = known.segment;
      const bool is_tail = segments_[from].kind == Kind::kTail;
      to = SegmentFor(request_id, is_tail ? Kind::kTail : Kind::kFound, unit);
    }
    if (known.ghost != GhostRing::kNone) {
      CountReuse(from, GhostWeight(unit));
      ghosts_.Erase(known.ghost);
      Remember(to, block.fingerprint);
      Leave(from, 1, GhostWeight(unit));
      from = kNone;
      continue;
    }
    DropCandidate(block.id);
    AddCandidate(to, block.id, /*is_coldest=*/false);
    ++moved_count;
  }
  count_moved();
}

// Groups whose parents are on other servers. Where a chain's start is missing nobody looks up the
// rest, so that these are what tells the time.
void HazardPolicy::CountOrphan(double unit) {
  const double before = now_;
  now_ += unit;
  if (std::floor(now_) > std::floor(before)) AdvanceAges();
}

void HazardPolicy::OnInsert(EntryId b, const BlockTraits& traits) {
  const double unit = UnitsOf(traits.block_tokens);
  const RequestId request_id = RequestOf(traits);
  Request& request = requests_[request_id];
  if (request_id != orphans_ && traits.position >= request.blocks_count) {
    // No lookup told of it.
    request.blocks_count = traits.position + 1;
    now_ += unit;
  }
  if (request_id == orphans_ && orders_by_age_) CountOrphan(unit);
  const uint32_t ghost =
      IsRemembered(traits.fingerprint, unit) ? ghosts_.Find(traits.fingerprint) : GhostRing::kNone;
  const SegmentId old = ghost == GhostRing::kNone ? kNone : ghosts_.value(ghost);
  const bool is_found = old != kNone || traits.position < request.found_count;
  const Kind kind = traits.is_tail ? Kind::kTail : is_found ? Kind::kFound : Kind::kBrought;
  const SegmentId to = SegmentFor(request_id, kind, unit);
  Join(to, 1, unit);
  if (old != kNone) {
    // Unless the lookup has counted it.
    if (segments_[old].request != request_id) CountReuse(old, GhostWeight(unit));
    ghosts_.Erase(ghost);
    Leave(old, 1, GhostWeight(unit));
  }
  // A request's blocks come first to last: the last is the first to leave. Orphans are of many.
  AddCandidate(to, b, /*is_coldest=*/request_id != orphans_);
}

// A use apart from a lookup: by a request whose lookup was counted, or by one that made none.
void HazardPolicy::OnUse(EntryId b) {
  const SegmentId from = lists_[b].word;
  if (segments_[from].age == 0) {
    if (lists_.PlaceOf(b) == Place::kTaken) PutBack(b);
    return;
  }
  const double unit = segments_[from].unit;
  DropCandidate(b);
  CountReuse(from, unit);
  const SegmentId to = SegmentFor(segments_[from].request, segments_[from].kind, unit);
  Join(to, 1, unit);
  Leave(from, 1, unit);
  AddCandidate(to, b, /*is_coldest=*/false);
}

void HazardPolicy::OnRemove(EntryId b, const LeavingBlock& leaving) {
  DropCandidate(b);
  const SegmentId id = lists_[b].word;
  const double unit = segments_[id].unit;
  const bool stays = leaving.is_eviction && IsRemembered(leaving.fingerprint, unit) &&
                     ghosts_.Find(leaving.fingerprint) == GhostRing::kNone;
  if (stays) Remember(id, leaving.fingerprint);
  Leave(id, 1, unit);
}

EntryId HazardPolicy::TakeVictim() {
  for (size_t i = 0; i < has_victims_.size(); ++i) {
    if (has_victims_[i] == 0) continue;
    const uint16_t at = order_[i * 64 + static_cast<size_t>(std::countr_zero(has_victims_[i]))];
    const SegmentList& list = LosingOf(at / ReuseRates::kAgesCount, at % ReuseRates::kAgesCount);
    const EntryId b = segments_[list.first].candidates.coldest;
    // The one after the next, of which the call after the next would wait.
    const EntryId next = lists_[b].hotter;
    if (next != kNoEntry) lists_.Prefetch(lists_[next].hotter);
    DropCandidate(b);
    return b;
  }
  return kNoEntry;
}

void HazardPolicy::PutBack(EntryId b) {
  const SegmentId id = lists_[b].word;
  AddCandidate(id, b, /*is_coldest=*/true);
}

}  // namespace ibid
