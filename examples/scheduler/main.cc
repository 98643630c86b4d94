// Which worker should take a prompt? The one with the least predicted work: tokens of the prompt
// that the store does not have for it, and what waits there already. A worker that does not answer
// is out, whatever is stored for it.
#include <iostream>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "client/client.h"
#include "client/inference_channel.h"
#include "core/log.h"

int main(int argc, char** argv) {
  if (argc < 4) {
    std::cerr << "usage: scheduler SERVER,... TOKEN,... WORKER...   (host:port each)\n";
    return 2;
  }
  if (!ibid::InitLog("scheduler", "warn").ok()) return 2;
  ibid::ClientOptions options;
  options.servers = absl::StrSplit(argv[1], ',');
  std::vector<uint32_t> tokens;
  for (absl::string_view id : absl::StrSplit(argv[2], ',')) {
    if (!absl::SimpleAtoi(id, &tokens.emplace_back()))
      return std::cerr << id << " is no token id\n", 2;
  }
  const auto store = ibid::Client::Connect(options);
  if (!store.ok()) return std::cerr << store.status().message() << "\n", 2;

  constexpr uint64_t kTokensPerRequest = 500;  // a guess of what each request ahead still costs
  std::string best;
  uint64_t best_work = UINT64_MAX;
  for (int i = 3; i < argc; ++i) {
    const auto worker = ibid::InferenceChannel::Create(argv[i]);
    if (!worker.ok()) return std::cerr << worker.status().message() << "\n", 2;
    const auto stats = (*worker)->GetStats(absl::Seconds(1));
    if (!stats.ok() || stats->block_tokens == 0) {
      std::cerr << argv[i] << ": does not answer\n";
      continue;
    }
    const auto chain = ibid::MakeChain(stats->ns, tokens, stats->block_tokens, /*with_tail=*/false);
    const uint64_t stored =
        uint64_t{(*store)->Probe(stats->ns, chain).blocks} * stats->block_tokens;
    const uint64_t ahead = (stats->running_requests + stats->waiting_requests) * kTokensPerRequest;
    const uint64_t work = tokens.size() - stored + (stats->is_store_reachable ? 0 : stored) + ahead;
    std::cerr << argv[i] << ": " << stored << " of " << tokens.size() << " tokens stored, work "
              << work << "\n";
    if (work < best_work) best = argv[i], best_work = work;
  }
  if (best.empty()) return std::cerr << "no worker answers\n", 1;
  std::cout << best << "\n";
}
