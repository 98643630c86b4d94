#include "core/kv_layout.h"

#include <gtest/gtest.h>

namespace ibid {
namespace {

constexpr char kText[] =
    "layers=32;kv_heads=8;k_dim=128;v_dim=128;dtype=bf16;block_tokens=16;order=hnd;scales=none";

TEST(KvLayout, ReadsAndWritesCanonicalText) {
  const auto layout = KvLayout::Parse(kText);
  ASSERT_TRUE(layout.ok()) << layout.status();
  EXPECT_EQ(layout->ToString(), kText);
  EXPECT_EQ(layout->PayloadBytes(), size_t{2} << 20);
  EXPECT_EQ(layout->LayerBytes(), size_t{64} << 10);
  EXPECT_EQ(layout->VOffset(3), size_t{3} * 65536 + 32768);
}

TEST(KvLayout, CountsScalesAndMla) {
  const auto int8 = KvLayout::Parse(
      "layers=2;kv_heads=4;k_dim=8;v_dim=8;dtype=int8;block_tokens=16;order=hnd;scales=token_head");
  ASSERT_TRUE(int8.ok()) << int8.status();
  EXPECT_EQ(int8->LayerBytes(), 2u * 4 * 16 * 8 + 2u * 4 * 16 * 4);
  EXPECT_EQ(int8->ScaleOffset(1), int8->LayerBytes() + 2u * 4 * 16 * 8);
  const auto mla = KvLayout::Parse(
      "layers=1;kv_heads=1;k_dim=576;v_dim=0;dtype=bf16;block_tokens=16;order=hnd;scales=none");
  ASSERT_TRUE(mla.ok()) << mla.status();
  EXPECT_EQ(mla->PayloadBytes(), 576u * 16 * 2);
}

TEST(KvLayout, RefusesWhatIsNotCanonicalOrTooLarge) {
  for (const char* text :
       {"", "layers=1",
        "layers=01;kv_heads=8;k_dim=128;v_dim=128;dtype=bf16;block_tokens=16;order=hnd;scales=none",
        "kv_heads=8;layers=32;k_dim=128;v_dim=128;dtype=bf16;block_tokens=16;order=hnd;scales=none",
        "layers=0;kv_heads=8;k_dim=128;v_dim=128;dtype=bf16;block_tokens=16;order=hnd;scales=none",
        "layers=1;kv_heads=8;k_dim=128;v_dim=128;dtype=f64;block_tokens=16;order=hnd;scales=none",
        "layers=1;kv_heads=8;k_dim=128;v_dim=128;dtype=bf16;block_tokens=16;order=hnd;scales=none;",
        "layers=1048576;kv_heads=1048576;k_dim=1048576;v_dim=1048576;dtype=f32;block_tokens="
        "1048576;order=hnd;scales=none",
        "layers=-1;kv_heads=8;k_dim=128;v_dim=128;dtype=bf16;block_tokens=16;order=hnd;scales="
        "none"}) {
    const auto layout = KvLayout::Parse(text);
    EXPECT_FALSE(layout.ok()) << text;
    EXPECT_FALSE(layout.status().message().empty());
  }
}

}  // namespace
}  // namespace ibid
