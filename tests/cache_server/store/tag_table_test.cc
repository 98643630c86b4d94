#include "cache_server/tag_table.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>

namespace ibid {
namespace {

// Numbers whose hashes the test knows.
class TagTableTest : public ::testing::Test {
 protected:
  void Insert(uint64_t hash, uint32_t number) {
    hashes_[number] = hash;
    table_.Insert(
        hash, number, [this](uint32_t each) { return hashes_.at(each); }, [](uint32_t) {});
  }
  void Erase(uint32_t number) {
    table_.Erase(hashes_.at(number), number);
    hashes_.erase(number);
  }
  uint32_t Find(uint64_t hash, uint32_t number) {
    return table_.Find(hash,
                       [&](uint32_t each) { return each == number && hashes_.at(each) == hash; });
  }
  std::set<uint32_t> All() {
    std::set<uint32_t> all;
    for (size_t at = 0; at < table_.buckets_count(); ++at) {
      table_.ForEachInBucket(at, [&](uint32_t number) { EXPECT_TRUE(all.insert(number).second); });
    }
    return all;
  }

  TagTable table_;
  std::map<uint32_t, uint64_t> hashes_;
};

TEST_F(TagTableTest, FindsWhatIsThereAndNothingElseThroughAMillionChanges) {
  std::mt19937_64 random(1);
  for (int step = 0; step < 1'000'000; ++step) {
    const uint32_t number = static_cast<uint32_t>(random() % 5'000);
    if (!hashes_.contains(number)) {
      // Few distinct places, so that buckets overflow; few tags, so that they are alike.
      Insert(random() % 64 | random() % 4 << 56, number);
    } else if (random() % 2 == 0) {
      const uint64_t hash = hashes_.at(number);
      Erase(number);
      ASSERT_EQ(Find(hash, number), TagTable::kNone);
    } else {
      ASSERT_EQ(Find(hashes_.at(number), number), number);
    }
    ASSERT_EQ(table_.count(), hashes_.size());
  }
  std::set<uint32_t> expected;
  for (const auto& [number, hash] : hashes_) expected.insert(number);
  EXPECT_EQ(All(), expected);
}

TEST_F(TagTableTest, KeysThatAllHashAlikeAreOnlySlow) {
  for (uint32_t number = 0; number < 1'000; ++number) Insert(7, number);
  for (uint32_t number = 0; number < 1'000; ++number) EXPECT_EQ(Find(7, number), number);
  EXPECT_EQ(Find(8, 1), TagTable::kNone);
  for (uint32_t number = 0; number < 1'000; number += 2) Erase(number);
  for (uint32_t number = 0; number < 1'000; ++number) {
    EXPECT_EQ(Find(7, number), number % 2 == 0 ? TagTable::kNone : number);
  }
}

TEST_F(TagTableTest, TakesTheLargestNumber) {
  Insert(~uint64_t{0}, TagTable::kNumberMax);
  EXPECT_EQ(Find(~uint64_t{0}, TagTable::kNumberMax), TagTable::kNumberMax);
  EXPECT_EQ(table_.FirstCandidate(~uint64_t{0}), TagTable::kNumberMax);
}

}  // namespace
}  // namespace ibid
