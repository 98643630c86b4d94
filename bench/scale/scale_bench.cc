#include "bench/scale/scale_bench.h"

#include <time.h>

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "core/check.h"

namespace ibid {
namespace {

double SecondsOf(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

uint64_t Mix(uint64_t x) {
  x += 0x9E3779B97F4A7C15u;
  x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
  x = (x ^ x >> 27) * 0x94D049BB133111EBu;
  return x ^ x >> 31;
}

BlockKey KeyOf(uint32_t seed, uint32_t position) {
  const uint64_t number = uint64_t{seed} << 32 | position;
  const uint64_t words[4] = {Mix(number), Mix(number ^ 0x5555), Mix(~number), Mix(number * 3 + 1)};
  BlockKey key;
  std::memcpy(key.digest.data(), words, sizeof(words));
  return key;
}

}  // namespace

double ScaleFigure::Median() const {
  std::vector<double> sorted = values;
  std::sort(sorted.begin(), sorted.end());
  return sorted[sorted.size() / 2];
}

bool ScaleFigure::is_met() const {
  switch (kind) {
    case Target::kNone:
      return true;
    case Target::kAtMost:
      return Median() <= target;
    case Target::kAtLeast:
      return Median() >= target;
  }
  return true;
}

void ScaleReport::Add(ScaleFigure figure) {
  IBID_CHECK(!figure.values.empty()) << figure.name;
  std::string target;
  if (figure.kind != ScaleFigure::Target::kNone) {
    char text[64];
    std::snprintf(text, sizeof text, "%s %g: %s",
                  figure.kind == ScaleFigure::Target::kAtMost ? "at most" : "at least",
                  figure.target, figure.is_met() ? "met" : "MISSED");
    target = text;
  }
  std::printf("%-58s %12.3f %-10s %s\n", figure.name.c_str(), figure.Median(), figure.unit.c_str(),
              target.c_str());
  std::fflush(stdout);
  figures_.push_back(std::move(figure));
}

bool ScaleReport::is_all_met() const {
  return std::all_of(figures_.begin(), figures_.end(),
                     [](const ScaleFigure& figure) { return figure.is_met(); });
}

nlohmann::json ScaleReport::ToJson() const {
  nlohmann::json rows = nlohmann::json::array();
  for (const ScaleFigure& figure : figures_) {
    nlohmann::json row = {{"case", figure.name},
                          {"unit", figure.unit},
                          {"median", figure.Median()},
                          {"values", figure.values}};
    if (figure.kind != ScaleFigure::Target::kNone) {
      row[figure.kind == ScaleFigure::Target::kAtMost ? "at_most" : "at_least"] = figure.target;
      row["is_met"] = figure.is_met();
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

KvLayout SmallLayout(uint32_t bytes) {
  KvLayout layout;
  layout.layers = 1;
  layout.kv_heads = 1;
  layout.k_dim = layout.v_dim = bytes / 32;
  layout.dtype = KvDtype::kInt8;
  layout.block_tokens = 16;
  IBID_CHECK(layout.PayloadBytes() == bytes) << layout.PayloadBytes();
  return layout;
}

NamespaceId ScaleNamespace() {
  NamespaceSpec spec;
  spec.model = "store_scale_bench";
  return MakeNamespaceId(spec);
}

std::vector<ChainLink> MakeScaleChain(const NamespaceId& ns, uint32_t seed, uint32_t count) {
  std::vector<ChainLink> chain(count);
  BlockKey parent = RootParent(ns);
  for (uint32_t i = 0; i < count; ++i) {
    chain[i] = {KeyOf(seed, i), parent, 16, i};
    parent = chain[i].key;
  }
  return chain;
}

std::vector<BlockKey> KeysOf(const std::vector<ChainLink>& chain) {
  std::vector<BlockKey> keys;
  keys.reserve(chain.size());
  for (const ChainLink& link : chain) keys.push_back(link.key);
  return keys;
}

double WallSeconds() { return SecondsOf(CLOCK_MONOTONIC); }
double ThreadCpuSeconds() { return SecondsOf(CLOCK_THREAD_CPUTIME_ID); }

}  // namespace ibid
