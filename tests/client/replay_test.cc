#include "client/replay/replay.h"

#include <bit>
#include <random>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "client/replay/plot.h"
#include "client/replay/report.h"
#include "client/replay/sweep.h"
#include "core/check.h"
#include "core/eviction/eviction_policy.h"
#include "gmock/gmock.h"
#include "nlohmann/json.hpp"

namespace ibid {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

Trace Parse(const std::string& text, const std::string& name = "small.jsonl") {
  std::istringstream lines(text);
  auto trace = ParseTrace(lines, name, /*block_tokens=*/10);
  IBID_CHECK(trace.ok()) << trace.status().ToString();
  return *std::move(trace);
}

// 70 tokens in four requests. The last block of [0, 2] holds 5 tokens.
Trace SmallTrace(const std::string& name = "small.jsonl") {
  return Parse(
      "{\"timestamp\": 0, \"input_length\": 20, \"hash_ids\": [0, 1]}\n"
      "{\"timestamp\": 1, \"input_length\": 15, \"hash_ids\": [0, 2]}\n"
      "{\"timestamp\": 2, \"input_length\": 20, \"hash_ids\": [0, 1]}\n"
      "{\"timestamp\": 3, \"input_length\": 15, \"hash_ids\": [0, 2]}\n",
      name);
}

uint64_t HitTokens(const Trace& trace, absl::string_view policy, uint64_t capacity) {
  const auto result = ReplayTrace(trace, policy, capacity);
  IBID_CHECK(result.ok()) << result.status().ToString();
  EXPECT_EQ(result->input_tokens, trace.input_tokens);
  return result->hit_tokens;
}

TEST(Replay, CountsTheTokensOfLeadingBlocksThatWereThere) {
  const Trace trace = SmallTrace();
  EXPECT_EQ(HitTokens(trace, "infinite", 0), 10u + 20u + 15u);
  EXPECT_EQ(HitTokens(trace, "lru", 3), 10u + 20u + 15u);
  EXPECT_EQ(HitTokens(trace, "lru", 2), 10u + 10u + 10u) << "1 and 2 push each other out";
  EXPECT_EQ(HitTokens(trace, "lru", 1), 10u + 10u + 10u) << "the root stays while it has children";
  const auto result = ReplayTrace(trace, "lru", 2);
  EXPECT_EQ(result->hit_blocks, 3u);
  EXPECT_EQ(result->asked_blocks, 8u);
  EXPECT_EQ(result->evicted_blocks, 3u);
  EXPECT_DOUBLE_EQ(result->token_hit_ratio(), 30.0 / 70);
  EXPECT_DOUBLE_EQ(result->block_hit_ratio(), 3.0 / 8);
}

TEST(Replay, MinKeepsWhatIsAskedForNext) {
  const Trace trace = SmallTrace();
  EXPECT_EQ(HitTokens(trace, "min", 3), 45u);
  EXPECT_EQ(HitTokens(trace, "min", 2), 10u + 20u + 10u);
  EXPECT_EQ(HitTokens(trace, "min", 1), 10u + 10u + 10u);
}

// Of every set of blocks that could be kept after each request.
uint64_t BestByTryingAll(const Trace& trace, uint64_t capacity, size_t request, uint32_t held) {
  if (request == trace.requests.size()) return 0;
  const auto chain = trace.ChainOf(trace.requests[request]);
  uint64_t hits = 0;
  while (hits < chain.size() && (held >> chain[hits] & 1) != 0) ++hits;
  uint32_t have = held;
  for (const EntryId b : chain) have |= uint32_t{1} << b;
  uint64_t best = 0;
  for (uint32_t kept = have;; kept = (kept - 1) & have) {
    if (std::popcount(kept) <= static_cast<int>(capacity)) {
      best = std::max(best, BestByTryingAll(trace, capacity, request + 1, kept));
    }
    if (kept == 0) break;
  }
  return std::min<uint64_t>(hits * trace.block_tokens, trace.requests[request].input_tokens) + best;
}

std::string RandomTraceText(uint32_t seed, int requests, int blocks, int depth_max) {
  std::mt19937 random(seed);
  std::vector<std::vector<int>> chains;  // by its last block
  std::string text;
  for (int r = 0; r < requests; ++r) {
    std::vector<int> chain;
    if (!chains.empty() && random() % 4 != 0) chain = chains[random() % chains.size()];
    const int more = static_cast<int>(random() % 3) + (chain.empty() ? 1 : 0);
    for (int i = 0; i < more; ++i) {
      if (static_cast<int>(chains.size()) == blocks) break;
      if (static_cast<int>(chain.size()) == depth_max) break;
      chain.push_back(static_cast<int>(chains.size()));
      chains.push_back(chain);
    }
    if (chain.empty()) chain = chains[random() % chains.size()];
    nlohmann::json line = {
        {"timestamp", r}, {"input_length", chain.size() * 10}, {"hash_ids", chain}};
    text += line.dump() + "\n";
  }
  return text;
}

TEST(Replay, MinIsTheBestOfAllThatCouldBeKept) {
  for (uint32_t seed = 0; seed < 40; ++seed) {
    const Trace trace = Parse(RandomTraceText(seed, /*requests=*/6, /*blocks=*/6, /*depth_max=*/4));
    for (const uint64_t capacity : {1, 2, 3}) {
      ASSERT_EQ(HitTokens(trace, "min", capacity), BestByTryingAll(trace, capacity, 0, 0))
          << "seed " << seed << " capacity " << capacity;
    }
  }
}

TEST(Replay, NoPolicyExceedsMinAndMinDoesNotExceedInfinite) {
  for (uint32_t seed = 0; seed < 10; ++seed) {
    const Trace trace = Parse(RandomTraceText(seed, 400, 300, 12));
    for (const uint64_t capacity : {1, 7, 40, 150}) {
      const uint64_t min = HitTokens(trace, "min", capacity);
      EXPECT_LE(min, HitTokens(trace, "infinite", 0));
      for (const absl::string_view policy : EvictionPolicyNames()) {
        EXPECT_LE(HitTokens(trace, policy, capacity), min) << policy << " seed " << seed;
      }
    }
    for (const absl::string_view policy : EvictionPolicyNames()) {
      EXPECT_EQ(HitTokens(trace, policy, trace.blocks_count()), HitTokens(trace, "infinite", 0))
          << policy << ": nothing has to leave";
    }
  }
}

TEST(Replay, AnUnknownPolicyAndNoCapacityAreRefused) {
  const Trace trace = SmallTrace();
  EXPECT_THAT(ReplayTrace(trace, "fifo", 3).status().message(),
              HasSubstr("unknown eviction policy"));
  EXPECT_THAT(ReplayTrace(trace, "lru", 0).status().message(),
              HasSubstr("a capacity of no blocks"));
}

// One chain of ten groups, asked for twice.
Trace LongTrace() {
  std::string ids;
  for (uint32_t i = 0; i < 10 * kReplayGroupBlocks; ++i) absl::StrAppend(&ids, i ? "," : "", i);
  std::string text;
  for (int time = 0; time < 2; ++time) {
    absl::StrAppend(&text, "{\"timestamp\": ", time,
                    ", \"input_length\": ", 10 * 10 * kReplayGroupBlocks, ", \"hash_ids\": [", ids,
                    "]}\n");
  }
  return Parse(text);
}

TEST(Replay, SeveralServersWithRoomForAllFindWhatOneFinds) {
  const Trace trace = LongTrace();
  for (const absl::string_view policy : EvictionPolicyNames()) {
    const auto result = ReplayTrace(trace, policy, 4 * trace.blocks_count(), /*servers_count=*/4);
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_EQ(result->hit_tokens, trace.input_tokens / 2) << policy;
    EXPECT_EQ(result->evicted_blocks, 0u);
  }
}

// The groups do not lie evenly, so that one server has too little room and the chain ends there.
TEST(Replay, APrefixEndsWhereTheFirstServerDroppedItsPart) {
  const Trace trace = LongTrace();
  const auto one = ReplayTrace(trace, "lru", trace.blocks_count());
  const auto three = ReplayTrace(trace, "lru", trace.blocks_count(), /*servers_count=*/3);
  ASSERT_TRUE(one.ok() && three.ok());
  EXPECT_EQ(one->hit_tokens, trace.input_tokens / 2);
  EXPECT_GT(three->evicted_blocks, 0u);
  EXPECT_LT(three->hit_tokens, one->hit_tokens);
}

TEST(Sweep, CapacitiesAreSharesOrBytes) {
  EXPECT_EQ(Capacity::Parse("0.05")->fraction, 0.05);
  EXPECT_EQ(Capacity::Parse("1")->fraction, 1);
  EXPECT_EQ(Capacity::Parse("64GiB")->bytes, uint64_t{64} << 30);
  EXPECT_EQ(Capacity::Parse("1.5KiB")->bytes, 1536u);
  for (const char* text :
       {"", "0", "-1", "1.5", "GiB", "4096", "nan", "inf", "infGiB", "3 %", "9e9TiB"}) {
    EXPECT_THAT(Capacity::Parse(text).status().message(), HasSubstr("use a share")) << text;
  }
}

SweepOptions LruAt(std::vector<std::string> capacities, uint64_t bytes_per_token = 0) {
  SweepOptions options;
  options.policies = {"lru"};
  for (const std::string& text : capacities) options.capacities.push_back(*Capacity::Parse(text));
  options.bytes_per_token = bytes_per_token;
  return options;
}

TEST(Sweep, RowsAreByTracePolicyAndCapacityWithTheBoundsLast) {
  const std::vector<Trace> traces = {SmallTrace("a.jsonl"), SmallTrace("b.jsonl")};
  SweepOptions options = LruAt({"1", "0.4"});
  options.policies = {"min", "lru", "lru"};
  const auto rows = RunSweep(traces, options);
  ASSERT_TRUE(rows.ok()) << rows.status();
  std::vector<std::string> places;
  for (const SweepRow& row : *rows) {
    places.push_back(traces[row.trace_index].name + " " + row.policy + " " +
                     std::to_string(row.capacity_blocks));
  }
  EXPECT_THAT(places, ElementsAre("a lru 1", "a lru 3", "a min 1", "a min 3", "a infinite 1",
                                  "a infinite 3", "b lru 1", "b lru 3", "b min 1", "b min 3",
                                  "b infinite 1", "b infinite 3"));
  EXPECT_EQ((*rows)[0].result.hit_tokens, 30u);
  EXPECT_EQ((*rows)[1].result.hit_tokens, 45u);
}

TEST(Sweep, BytesBecomeWholeBlocks) {
  const std::vector<Trace> traces = {SmallTrace()};  // blocks of 1,000 bytes
  const auto rows = RunSweep(traces, LruAt({"2KiB"}, /*bytes_per_token=*/100));
  ASSERT_TRUE(rows.ok()) << rows.status();
  EXPECT_EQ((*rows)[0].capacity_blocks, 2u);
  EXPECT_EQ((*rows)[0].capacity_bytes, 2000u);
  EXPECT_DOUBLE_EQ((*rows)[0].capacity_fraction, 2.0 / 3);
  EXPECT_THAT(RunSweep(traces, LruAt({"2KiB"}, 1000)).status().message(),
              HasSubstr("holds no block"));
  EXPECT_THAT(RunSweep(traces, LruAt({"2KiB"})).status().message(),
              HasSubstr("needs the bytes of a token"));
  EXPECT_THAT(RunSweep(traces, LruAt({"0.5"}, UINT64_MAX)).status().message(),
              HasSubstr("bytes_per_token"));
}

TEST(Sweep, LogarithmicCapacitiesEndAtAllBlocks) {
  const auto capacities = LogarithmicCapacities();
  EXPECT_EQ(capacities.size(), 24u);
  EXPECT_DOUBLE_EQ(capacities.front().fraction, 0.005);
  EXPECT_EQ(capacities.back().fraction, 1);
}

TEST(SweepReport, TheTableHasALineForEachCapacityAndAColumnForEachPolicy) {
  const std::vector<Trace> traces = {SmallTrace()};
  const std::string table = SweepTable(traces, *RunSweep(traces, LruAt({"0.67", "1"}, 100)));
  EXPECT_EQ(table,
            "Share of prompt tokens found in the cache, by its capacity.\n"
            "\n"
            "small: 4 requests for 70 tokens, 3 different blocks of 10 tokens\n"
            "  capacity     blocks       bytes       lru       min  infinite\n"
            "       67%          2     2.0 KiB    0.4286    0.5714    0.6429\n"
            "      100%          3     2.9 KiB    0.6429    0.6429    0.6429\n");
}

TEST(SweepReport, JsonHasARowForEachPlaceOfTheTable) {
  const std::vector<Trace> traces = {SmallTrace()};
  const auto json = nlohmann::json::parse(SweepJson(traces, *RunSweep(traces, LruAt({"0.67"}))));
  EXPECT_EQ(json["traces"][0]["blocks"], 3);
  EXPECT_EQ(json["traces"][0]["requests"], 4);
  ASSERT_EQ(json["rows"].size(), 3u);
  const auto& row = json["rows"][0];
  EXPECT_EQ(row["trace"], "small");
  EXPECT_EQ(row["policy"], "lru");
  EXPECT_EQ(row["capacity_fraction"], 0.67);
  EXPECT_EQ(row["capacity_blocks"], 2);
  EXPECT_TRUE(row["capacity_bytes"].is_null());
  EXPECT_DOUBLE_EQ(row["token_hit_ratio"], 30.0 / 70);
  EXPECT_DOUBLE_EQ(row["block_hit_ratio"], 3.0 / 8);
  EXPECT_EQ(row["evicted_blocks"], 3);
}

TEST(SweepPlot, EachTraceHasAPanelWithALineForEachPolicy) {
  const std::vector<Trace> traces = {SmallTrace("a.jsonl"), SmallTrace("<b>&\"\x80.jsonl")};
  const std::string svg = SweepSvg(traces, *RunSweep(traces, LruAt({"0.4", "0.67", "1"}, 100)));
  size_t lines = 0;
  for (size_t at = svg.find("<polyline"); at != std::string::npos;
       at = svg.find("<polyline", at + 1)) {
    ++lines;
  }
  EXPECT_EQ(lines, 6u);
  EXPECT_THAT(svg, HasSubstr("&lt;b&gt;&amp;\"?"));
  EXPECT_THAT(svg, HasSubstr("infinite cache"));
  EXPECT_THAT(svg, HasSubstr("2.9 KiB"));
  EXPECT_THAT(svg, Not(HasSubstr("nan")));
}

TEST(SweepPlot, OneCapacityIsALevelLine) {
  const std::vector<Trace> traces = {SmallTrace()};
  const std::string svg = SweepSvg(traces, *RunSweep(traces, LruAt({"0.4"})));
  EXPECT_THAT(svg, Not(HasSubstr("nan")));
  EXPECT_THAT(svg, Not(HasSubstr("inf\"")));
  EXPECT_THAT(svg, testing::ContainsRegex("points=\"[0-9.]+,[0-9.]+ [0-9.]+,[0-9.]+\""));
}

}  // namespace
}  // namespace ibid
