#include "core/block_key.h"

#include <algorithm>

#include "core/check.h"

namespace ibid {
namespace {

void AddField(Sha256& hash, uint8_t tag, absl::string_view bytes) {
  hash.AddU8(tag).AddU32(static_cast<uint32_t>(bytes.size())).Add(bytes);
}

// The domain strings end in a zero byte, which is part of the format.
constexpr absl::string_view kNamespaceDomain("ibid.namespace.v1\0", 18);
constexpr absl::string_view kBlockDomain("ibid.block.v1\0", 14);
constexpr absl::string_view kForeignDomain("ibid.foreign.v1\0", 16);

BlockKey FinishBlockKey(Sha256& hash, const BlockKey& parent, std::span<const uint32_t> tokens,
                        std::span<const BlockExtra> extras) {
  hash.Add(kBlockDomain).Add(parent.digest).AddU32(static_cast<uint32_t>(tokens.size()));
  hash.Add(tokens.data(), tokens.size_bytes());
  for (const BlockExtra& extra : extras) AddField(hash, extra.tag, extra.bytes);
  return BlockKey{hash.Finish()};
}

}  // namespace

NamespaceId MakeNamespaceId(const NamespaceSpec& spec) {
  Sha256 hash;
  hash.Add(kNamespaceDomain);
  AddField(hash, 1, spec.model);
  AddField(hash, 2, spec.engine);
  AddField(hash, 3, spec.layout);
  AddField(hash, 4, spec.shard);
  AddField(hash, 5, spec.adapter);
  AddField(hash, 6, spec.salt);
  return NamespaceId{hash.Finish()};
}

BlockKey MakeBlockKey(const BlockKey& parent, std::span<const uint32_t> tokens,
                      std::span<const BlockExtra> extras) {
  IBID_CHECK(!tokens.empty()) << "a block has at least one token";
  Sha256 hash;
  return FinishBlockKey(hash, parent, tokens, extras);
}

BlockKey MakeForeignKey(const NamespaceId& ns, absl::string_view foreign_bytes) {
  return BlockKey{Sha256().Add(kForeignDomain).Add(ns.digest).Add(foreign_bytes).Finish()};
}

std::vector<ChainLink> MakeChain(const NamespaceId& ns, std::span<const uint32_t> tokens,
                                 uint32_t block_tokens, bool with_tail) {
  std::vector<ChainLink> chain;
  ExtendChain(ns, tokens, block_tokens, with_tail, &chain);
  return chain;
}

void ExtendChain(const NamespaceId& ns, std::span<const uint32_t> tokens, uint32_t block_tokens,
                 bool with_tail, std::vector<ChainLink>* chain) {
  IBID_CHECK(block_tokens > 0);
  if (!chain->empty() && chain->back().token_count < block_tokens) chain->pop_back();
  IBID_CHECK(chain->size() * block_tokens <= tokens.size())
      << "the chain is longer than the tokens";
  chain->reserve(tokens.size() / block_tokens + 1);
  BlockKey parent = chain->empty() ? RootParent(ns) : chain->back().key;
  Sha256 hash;
  for (size_t begin = chain->size() * block_tokens; begin < tokens.size(); begin += block_tokens) {
    const auto piece = tokens.subspan(begin, std::min<size_t>(block_tokens, tokens.size() - begin));
    if (piece.size() < block_tokens && !with_tail) break;
    const BlockKey key = FinishBlockKey(hash, parent, piece, {});
    chain->push_back(
        {key, parent, static_cast<uint32_t>(piece.size()), static_cast<uint32_t>(chain->size())});
    parent = key;
  }
}

}  // namespace ibid
