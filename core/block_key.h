// Identity: under which namespace KV bytes may be shared, and the key of each block of a token
// prefix. Formats: docs/formats.md; the golden values there are a test. They never change silently.
#pragma once

#include <compare>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

#include "core/sha256.h"

namespace ibid {

// Which KV bytes may be shared. Each field is opaque text to the store; an absent field is empty.
struct NamespaceSpec {
  std::string model;   // a digest of config and weights, or the operator's revision string
  std::string engine;  // numerics: changes when a kernel change alters KV bytes
  std::string layout;  // KvLayout::ToString()
  std::string shard = "tp=0/1;pp=0/1";
  std::string adapter;  // digest of LoRA weights, not its name
  std::string salt;     // keeps tenants apart that must not see each other's timing
};

// Distinct types for distinct digests: a namespace is no block.
struct NamespaceId {
  Digest digest{};
  auto operator<=>(const NamespaceId&) const = default;
};

struct BlockKey {
  Digest digest{};
  auto operator<=>(const BlockKey&) const = default;

  template <typename H>
  friend H AbslHashValue(H h, const BlockKey& key) {
    return H::combine(std::move(h), key.digest);
  }
};

template <typename H>
H AbslHashValue(H h, const NamespaceId& id) {
  return H::combine(std::move(h), id.digest);
}

// Something besides tokens that a block depends on, at its place in the block.
struct BlockExtra {
  uint8_t tag = 0;  // 1: content hash of an image or other input
  std::string bytes;
};

// One block of a chain: its key, the key before it and how many tokens it holds.
struct ChainLink {
  BlockKey key;
  BlockKey parent;           // the namespace id's bytes for block 0
  uint32_t token_count = 0;  // block_tokens, or fewer in a tail block
  uint32_t position = 0;     // index of the block in its chain
};

NamespaceId MakeNamespaceId(const NamespaceSpec& spec);

// The `parent` of block 0.
inline BlockKey RootParent(const NamespaceId& ns) { return BlockKey{ns.digest}; }

// REQUIRES: tokens is not empty.
BlockKey MakeBlockKey(const BlockKey& parent, std::span<const uint32_t> tokens,
                      std::span<const BlockExtra> extras = {});

// Key for a block of an engine that hashes by itself.
BlockKey MakeForeignKey(const NamespaceId& ns, absl::string_view foreign_bytes);

// The chain of `tokens`: one link for each full block, and one for the tail if `with_tail` and the
// count is no multiple of `block_tokens`. O(tokens). REQUIRES: block_tokens > 0.
std::vector<ChainLink> MakeChain(const NamespaceId& ns, std::span<const uint32_t> tokens,
                                 uint32_t block_tokens, bool with_tail);

// Appends to `chain`, which covers a prefix of `tokens`, the links of the full blocks that it
// lacks; a tail link at its end is replaced. Cost: O(new tokens).
void ExtendChain(const NamespaceId& ns, std::span<const uint32_t> tokens, uint32_t block_tokens,
                 bool with_tail, std::vector<ChainLink>* chain);

}  // namespace ibid
