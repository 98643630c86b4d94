#include "core/block_key.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

namespace ibid {
namespace {

NamespaceSpec DemoSpec() {
  NamespaceSpec spec;
  spec.model = "demo";
  spec.engine = "ibid-cpu-1";
  spec.layout =
      "layers=3;kv_heads=2;k_dim=64;v_dim=64;dtype=bf16;block_tokens=16;order=hnd;scales=none";
  return spec;
}

std::vector<uint32_t> Tokens(uint32_t begin, uint32_t end) {
  std::vector<uint32_t> tokens(end - begin);
  std::iota(tokens.begin(), tokens.end(), begin);
  return tokens;
}

// The golden values of docs/formats.md.
TEST(NamespaceId, HasTheGoldenValues) {
  NamespaceSpec spec = DemoSpec();
  EXPECT_EQ(DigestToHex(MakeNamespaceId(spec).digest),
            "697e237f2f45f4bba69852fed6b762fb71958cd9a0ec5525a0dfa83e36d567d1");
  spec.salt = "tenant-b";
  EXPECT_EQ(DigestToHex(MakeNamespaceId(spec).digest),
            "c93b4aa06dc874d48ce90c1d1c5cdf96e687f2e3fdff2adc1faa2199ed3d8120");
  spec.salt.clear();
  spec.adapter = "tenant-b";
  EXPECT_EQ(DigestToHex(MakeNamespaceId(spec).digest),
            "f7cca314c376362529baaac196b2fce202bdf7ccdc88f3c2f63a4f0f3a68e350");
}

TEST(BlockKey, HasTheGoldenValues) {
  const NamespaceId ns = MakeNamespaceId(DemoSpec());
  const std::vector<ChainLink> chain = MakeChain(ns, Tokens(0, 35), 16, /*with_tail=*/true);
  ASSERT_EQ(chain.size(), 3u);
  EXPECT_EQ(DigestToHex(chain[0].key.digest),
            "d764aed051dabb1bf4e2495c92bcfea4a3a80bf65328b4b2c13b3293407b51da");
  EXPECT_EQ(DigestToHex(chain[1].key.digest),
            "2dd21954995bd2196bdf2f8b21fb8cb88dc469353ca828b8c821aeffcd8baf9a");
  EXPECT_EQ(DigestToHex(chain[2].key.digest),
            "96a30e0ea446e72c8e2b61d0f4df225926f5316a78e3d8a6b54c8ddb82497add");
  EXPECT_EQ(chain[2].token_count, 3u);
  const BlockExtra image{1, "image:cat"};
  EXPECT_EQ(DigestToHex(MakeBlockKey(chain[0].key, Tokens(16, 32), {&image, 1}).digest),
            "94f56619c83893bbc951c9b1373a7d065e963781fa8ed2bc68bd3ec91f34f66d");
}

// Computed by hand: SHA-256 of "ibid.foreign.v1\0", the namespace id and the bytes.
TEST(BlockKey, TakesInTheHashesOfOtherEngines) {
  const NamespaceId ns = MakeNamespaceId(DemoSpec());
  EXPECT_EQ(DigestToHex(MakeForeignKey(ns, "engine-hash-1").digest),
            "4daebbf68844d203f9cb079f37d906718e7fb7f03c3a4de54bcacdb7a35e892c");
  EXPECT_NE(MakeForeignKey(ns, "engine-hash-2"), MakeForeignKey(ns, "engine-hash-1"));
  EXPECT_NE(MakeForeignKey(NamespaceId{}, "engine-hash-1"), MakeForeignKey(ns, "engine-hash-1"));
}

TEST(BlockKey, LinksEachBlockToItsParent) {
  const NamespaceId ns = MakeNamespaceId(DemoSpec());
  const std::vector<ChainLink> chain = MakeChain(ns, Tokens(0, 48), 16, true);
  ASSERT_EQ(chain.size(), 3u);
  EXPECT_EQ(chain[0].parent, RootParent(ns));
  EXPECT_EQ(chain[1].parent, chain[0].key);
  EXPECT_EQ(chain[2].parent, chain[1].key);
  EXPECT_EQ(chain[2].position, 2u);
}

// docs/testing.md 5, 14: a changed early token, another namespace or another tail length is another
// key.
TEST(BlockKey, DiffersWhenAnythingBeforeItDiffers) {
  const NamespaceId ns = MakeNamespaceId(DemoSpec());
  std::vector<uint32_t> tokens = Tokens(0, 40);
  const auto chain = MakeChain(ns, tokens, 16, true);
  tokens[0] = 7;
  const auto changed = MakeChain(ns, tokens, 16, true);
  for (size_t i = 0; i < chain.size(); ++i) EXPECT_NE(chain[i].key, changed[i].key);
  NamespaceSpec salted = DemoSpec();
  salted.salt = "s";
  EXPECT_NE(MakeChain(MakeNamespaceId(salted), Tokens(0, 16), 16, true)[0].key, chain[0].key);
  EXPECT_NE(MakeBlockKey(chain[1].key, Tokens(32, 39)), chain[2].key);
}

TEST(BlockKey, ExtendingAChainEqualsMakingItWhole) {
  const NamespaceId ns = MakeNamespaceId(DemoSpec());
  const std::vector<uint32_t> tokens = Tokens(0, 100);
  for (size_t first = 0; first <= tokens.size(); ++first) {
    std::vector<ChainLink> chain =
        MakeChain(ns, std::span(tokens).first(first), 16, first % 2 == 0);
    ExtendChain(ns, tokens, 16, true, &chain);
    const auto whole = MakeChain(ns, tokens, 16, true);
    ASSERT_EQ(chain.size(), whole.size());
    EXPECT_EQ(chain.back().key, whole.back().key);
    EXPECT_EQ(chain.back().token_count, 4u);
  }
}

TEST(Digest, ParsesOnlyWholeHexadecimalText) {
  const Digest digest = MakeNamespaceId(DemoSpec()).digest;
  EXPECT_EQ(*DigestFromHex(DigestToHex(digest)), digest);
  EXPECT_FALSE(DigestFromHex("12").ok());
  EXPECT_FALSE(DigestFromHex(std::string(64, 'g')).ok());
  EXPECT_FALSE(DigestFromBytes("short", "key").ok());
}

}  // namespace
}  // namespace ibid
