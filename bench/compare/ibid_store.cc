// ibid through its public client, as an engine would use it: a fetch is a match with a lease and
// the copy, a publish offers and sends. The client verifies every block's checksum in the call.

#include <numeric>
#include <optional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "bench/compare/compared_store.h"
#include "client/client.h"

namespace ibid {
namespace {

constexpr uint64_t kLayerBytes = 64 * 1024;  // of one block in the layout below

std::string LayoutOf(uint64_t block_bytes) {
  return absl::StrCat("layers=", block_bytes / kLayerBytes,
                      ";kv_heads=8;k_dim=128;v_dim=128;dtype=bf16;block_tokens=16;order=hnd;"
                      "scales=none");
}

absl::Status ChooseTransport(const std::string& transport, ClientOptions& options) {
  const std::optional<TransportChoice> choice = TransportChoiceOf(transport);
  if (!choice.has_value()) {
    return absl::InvalidArgumentError(absl::StrCat("this client has no transport ", transport));
  }
  options.transport = *choice;
  return absl::OkStatus();
}

class IbidStore : public ComparedStore {
 public:
  explicit IbidStore(std::unique_ptr<Client> client) : client_(std::move(client)) {}

  absl::Status Prepare(const PrefixShape& shape) override {
    NamespaceSpec spec;
    spec.model = "compare";
    spec.engine = "none";
    spec.layout = LayoutOf(shape.block_bytes);
    absl::StatusOr<NamespaceHandle> ns = client_->OpenNamespace(spec);
    if (!ns.ok()) return ns.status();
    if (ns->layout.PayloadBytes() != shape.block_bytes) {
      return absl::InvalidArgumentError("ibid: blocks must be multiples of 64 KiB");
    }
    std::vector<uint32_t> tokens(size_t{shape.blocks_count} * ns->layout.block_tokens);
    std::iota(tokens.begin(), tokens.end(), shape.seed * 1'000'003u);
    links_ = MakeChain(ns->id, tokens, ns->layout.block_tokens, false);
    ns_ = *std::move(ns);
    return absl::OkStatus();
  }

  absl::Status Publish(std::span<const ByteView> blocks) override {
    const PublishResult result = client_->Publish(*ns_, links_, blocks);
    if (result.stored_count == blocks.size()) return absl::OkStatus();
    return absl::UnavailableError(absl::StrCat("ibid: ", result.stored_count, " of ", blocks.size(),
                                               " blocks stored: ", result.status.ToString()));
  }

  absl::Status Fetch(uint32_t first, std::span<const MutableByteView> into) override {
    const std::span<const ChainLink> links(&links_[first], into.size());
    const PrefixMatch match = client_->Match(*ns_, links);
    if (match.blocks_count() != into.size()) {
      return absl::NotFoundError(
          absl::StrCat("ibid: ", match.blocks_count(), " of ", into.size(), " blocks matched"));
    }
    const FetchResult result = client_->Fetch(match, 0, into);
    if (result.leading_ok == into.size()) return absl::OkStatus();
    return absl::NotFoundError(absl::StrCat("ibid: ", result.leading_ok, " of ", into.size(),
                                            " blocks fetched: ", result.status.ToString()));
  }

  absl::Status Drop() override {
    std::vector<BlockKey> keys;
    for (const ChainLink& link : links_) keys.push_back(link.key);
    return client_->Drop(&ns_->id, keys).status();
  }

 private:
  std::unique_ptr<Client> client_;
  std::optional<NamespaceHandle> ns_;
  std::vector<ChainLink> links_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<ComparedStore>> ConnectIbid(const ComparedStoreOptions& options) {
  ClientOptions client_options;
  client_options.servers = {options.address};
  client_options.client_name = "compare";
  client_options.fetch_timeout = client_options.publish_timeout = absl::Seconds(30);
  if (absl::Status status = ChooseTransport(options.transport, client_options); !status.ok()) {
    return status;
  }
  auto client = Client::Connect(client_options);
  if (!client.ok()) return client.status();
  for (int i = 0; i < 1000 && !(*client)->is_any_reachable(); ++i) {
    absl::SleepFor(absl::Milliseconds(10));
  }
  if (!(*client)->is_any_reachable()) {
    return absl::UnavailableError(absl::StrCat("ibid at ", options.address, " does not answer"));
  }
  if (const ServerStats stats = (*client)->Stats().front(); stats.transport != options.transport) {
    return absl::UnavailableError(absl::StrCat("ibid at ", options.address, " moves bytes by ",
                                               stats.transport, ": ", stats.transport_reason));
  }
  return std::make_unique<IbidStore>(*std::move(client));
}

}  // namespace ibid
