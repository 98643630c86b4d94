// What a publish, a fetch and a match cost through real processes: this one with the client
// library, `ibid-server` as a child, between them shared memory and gRPC on loopback. In each round
// every case runs once, one after the other, beside a memcpy of the same bytes; the median over the
// rounds is reported, and all values are kept as JSON.

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/client.h"
#include "core/check.h"
#include "core/host_memory.h"
#include "core/log.h"
#include "tests/harness/process.h"

ABSL_FLAG(std::string, bin, "build/release/bin", "folder of ibid-server");
ABSL_FLAG(int, rounds, 5, "rounds; the median is reported");
ABSL_FLAG(std::string, json, "", "file for all values; empty: none");

namespace ibid {
namespace {

struct Shape {
  std::string name;
  std::string layout;
  uint32_t blocks_count;  // in one publish or fetch
};

const Shape kShapes[] = {
    {"2 MiB",
     "layers=32;kv_heads=8;k_dim=128;v_dim=128;dtype=bf16;block_tokens=16;order=hnd;scales=none",
     64},
    {"64 KiB",
     "layers=8;kv_heads=2;k_dim=64;v_dim=64;dtype=bf16;block_tokens=16;order=hnd;scales=none", 512},
};
constexpr char kMatchLayout[] =
    "layers=1;kv_heads=1;k_dim=64;v_dim=64;dtype=bf16;block_tokens=16;order=hnd;scales=none";
constexpr uint32_t kMatchKeys = 1000;

// All values of one case, one a round.
struct Series {
  std::string name, shape, unit;
  std::vector<double> values;
  double Median() const {
    std::vector<double> sorted = values;
    std::sort(sorted.begin(), sorted.end());
    return sorted[sorted.size() / 2];
  }
};

class Results {
 public:
  void Add(const std::string& name, const std::string& shape, const std::string& unit,
           double value) {
    for (Series& series : all_) {
      if (series.name == name && series.shape == shape) return series.values.push_back(value);
    }
    all_.push_back({name, shape, unit, {value}});
  }
  const std::vector<Series>& all() const { return all_; }

 private:
  std::vector<Series> all_;
};

double Seconds(const std::function<void()>& work) {
  const absl::Time start = absl::Now();
  work();
  return absl::ToDoubleSeconds(absl::Now() - start);
}

// One `ibid-server` with a disk tier in a folder of its own.
class Server {
 public:
  Server() : folder_("ibid-bench") { Start("127.0.0.1:0"); }

  void Restart() {
    IBID_CHECK(process_->Terminate(absl::Seconds(60)) == 0) << ReadWholeFile(folder_ / "log");
    Start(address_);
  }
  const std::string& address() const { return address_; }

 private:
  void Start(const std::string& listen) {
    std::remove((folder_ / "ports").c_str());
    auto process = Process::Start(
        {absl::GetFlag(FLAGS_bin) + "/ibid-server", "--listen=" + listen,
         "--http_listen=127.0.0.1:0", "--host_bytes_max=3GiB", "--disk_dir=" + (folder_ / "disk"),
         "--disk_bytes_max=6GiB", "--port_file=" + (folder_ / "ports"), "--log_level=warn"},
        folder_ / "log");
    IBID_CHECK(process.ok()) << process.status();
    process_.emplace(std::move(*process));
    const auto ports = WaitForPorts(*process_, folder_ / "ports", folder_ / "log");
    IBID_CHECK(ports.ok()) << ports.status();
    address_ = absl::StrCat("127.0.0.1:", ports->at("port"));
  }

  TempFolder folder_;
  std::string address_;
  std::optional<Process> process_;
};

constexpr const char* kTransports[] = {"shm", "grpc"};

std::unique_ptr<Client> ConnectTo(const Server& server, absl::string_view transport) {
  ClientOptions options;
  options.transport = *TransportChoiceOf(transport);
  options.servers = {server.address()};
  options.client_name = "store_bench";
  options.fetch_timeout = options.publish_timeout = absl::Seconds(60);
  auto client = Client::Connect(options);
  IBID_CHECK(client.ok()) << client.status();
  for (int i = 0; i < 1000 && !(*client)->is_any_reachable(); ++i)
    absl::SleepFor(absl::Milliseconds(10));
  IBID_CHECK((*client)->Stats().front().transport == transport) << "not by " << transport;
  return *std::move(client);
}

NamespaceHandle Open(Client& client, const std::string& layout) {
  NamespaceSpec spec;
  spec.model = "store_bench";
  spec.engine = "none";
  spec.layout = layout;
  auto handle = client.OpenNamespace(spec);
  IBID_CHECK(handle.ok()) << handle.status();
  return *handle;
}

// The blocks of one chain; `seed` makes its keys and bytes differ from those of other chains.
struct Chain {
  std::vector<ChainLink> links;
  std::vector<ByteView> payloads;
};
Chain MakeBlocks(const NamespaceHandle& ns, uint32_t blocks_count, uint32_t seed,
                 HostMemory& memory) {
  const size_t bytes = ns.layout.PayloadBytes();
  std::vector<uint32_t> tokens(size_t{blocks_count} * ns.layout.block_tokens);
  std::iota(tokens.begin(), tokens.end(), seed * 1'000'003u);
  Chain chain{MakeChain(ns.id, tokens, ns.layout.block_tokens, false), {}};
  for (uint32_t i = 0; i < blocks_count; ++i) {
    std::memcpy(memory.begin() + i * bytes, &tokens[i * ns.layout.block_tokens], 64);
    chain.payloads.push_back(ByteView(memory.begin() + i * bytes, bytes));
  }
  return chain;
}

std::vector<MutableByteView> Destinations(HostMemory& memory, uint32_t blocks_count, size_t bytes) {
  std::vector<MutableByteView> into;
  for (uint32_t i = 0; i < blocks_count; ++i) into.push_back({memory.begin() + i * bytes, bytes});
  return into;
}

HostMemory TouchedMemory(size_t bytes) {
  auto memory = HostMemory::CreatePrivate(bytes);
  IBID_CHECK(memory.ok()) << memory.status();
  std::memset(memory->begin(), 1, bytes);
  return *std::move(memory);
}

void PublishAll(Client& client, const NamespaceHandle& ns, const Chain& chain, bool durable) {
  const PublishResult result =
      client.Publish(ns, chain.links, chain.payloads, {.durable = durable});
  IBID_CHECK(result.stored_count == chain.links.size())
      << result.stored_count << " stored: " << result.status;
}

// Fetches all of `chain` and checks its tier and its bytes.
double FetchAll(Client& client, const NamespaceHandle& ns, const Chain& chain, bool from_disk,
                HostMemory& memory) {
  const auto into = Destinations(memory, chain.links.size(), ns.layout.PayloadBytes());
  double seconds = 0;
  const PrefixMatch match = client.Match(ns, chain.links);
  IBID_CHECK(match.blocks_count() == chain.links.size()) << match.blocks_count() << " matched";
  IBID_CHECK((from_disk ? match.disk_blocks() : match.host_blocks()) == chain.links.size())
      << "other tier than meant";
  FetchResult result;
  seconds = Seconds([&] { result = client.Fetch(match, 0, into); });
  IBID_CHECK(result.leading_ok == chain.links.size())
      << result.leading_ok << " fetched: " << result.status;
  return seconds;
}

// Asks where all of `chain` is, and reads its first bytes; then looks at every byte.
void ReadInPlace(Client& client, const NamespaceHandle& ns, const Chain& chain, const Shape& shape,
                 Results& results) {
  const double blocks_count = static_cast<double>(chain.links.size());
  const PrefixMatch match = client.Match(ns, chain.links);
  IBID_CHECK(match.blocks_count() == chain.links.size()) << match.blocks_count() << " matched";
  BlocksInPlace blocks;
  const double found = Seconds([&] {
    blocks = client.FetchInPlace(match, 0, match.blocks_count());
    for (size_t i = 0; i < blocks.size(); ++i) {
      IBID_CHECK(!blocks.block(i).empty() && blocks.block(i)[0] == chain.payloads[i][0] &&
                 blocks.is_current(i));
    }
  });
  results.Add("in place, a block", shape.name, "us", 1e6 * found / blocks_count);
  const double verified = Seconds([&] {
    for (size_t i = 0; i < blocks.size(); ++i) IBID_CHECK(blocks.Verify(i));
  });
  results.Add("and its checksum", shape.name, "us", 1e6 * verified / blocks_count);
}

double OneBlockMicroseconds(Client& client, const NamespaceHandle& ns, const Chain& chain,
                            HostMemory& target) {
  std::vector<double> one_block;
  for (int i = 0; i < 50; ++i) {
    const PrefixMatch match = client.Match(ns, chain.links);
    const auto into = Destinations(target, 1, ns.layout.PayloadBytes());
    one_block.push_back(1e6 *
                        Seconds([&] { IBID_CHECK(client.Fetch(match, 0, into).leading_ok == 1); }));
  }
  std::sort(one_block.begin(), one_block.end());
  return one_block[25];
}

// A client of one transport, and what it publishes.
struct Side {
  std::string transport;
  std::unique_ptr<Client> client;
  NamespaceHandle ns;
  uint32_t seed = 0;  // of its chains

  std::string Name(absl::string_view what) const { return absl::StrCat(what, ", ", transport); }
};

std::vector<Side> ConnectAll(const Server& server, const Shape& shape) {
  std::vector<Side> sides;
  for (const char* transport : kTransports) {
    Side& side = sides.emplace_back();
    side.transport = transport;
    side.client = ConnectTo(server, transport);
    side.ns = Open(*side.client, shape.layout);
    side.seed = 1'000 * static_cast<uint32_t>(sides.size());
  }
  return sides;
}

// The disk tier is measured on chains that were written before the server's restart: nothing of
// them is in its memory.
void RunShape(Server& server, const Shape& shape, int rounds, Results& results) {
  std::vector<Side> sides = ConnectAll(server, shape);
  const size_t total = sides[0].ns.layout.PayloadBytes() * shape.blocks_count;
  const double gigabytes = static_cast<double>(total) / 1e9;
  HostMemory source = TouchedMemory(total), target = TouchedMemory(total);
  for (int round = 0; round < rounds; ++round) {
    for (const Side& side : sides) {
      const Chain chain = MakeBlocks(side.ns, shape.blocks_count, side.seed + 100 + round, source);
      PublishAll(*side.client, side.ns, chain, /*durable=*/true);
    }
  }
  sides.clear();
  server.Restart();
  sides = ConnectAll(server, shape);
  for (const Side& side : sides) {  // warms both ends
    const Chain chain = MakeBlocks(side.ns, shape.blocks_count, side.seed + 99, source);
    PublishAll(*side.client, side.ns, chain, false);
    FetchAll(*side.client, side.ns, chain, false, target);
  }
  for (int round = 0; round < rounds; ++round) {
    results.Add("memcpy", shape.name, "GB/s",
                gigabytes / Seconds([&] { std::memcpy(target.begin(), source.begin(), total); }));
    for (const Side& side : sides) {
      Client& client = *side.client;
      const Chain chain = MakeBlocks(side.ns, shape.blocks_count, side.seed + 200 + round, source);
      results.Add(side.Name("publish"), shape.name, "GB/s",
                  gigabytes / Seconds([&] { PublishAll(client, side.ns, chain, false); }));
      results.Add(side.Name("fetch"), shape.name, "GB/s",
                  gigabytes / FetchAll(client, side.ns, chain, false, target));
      IBID_CHECK(std::memcmp(source.begin(), target.begin(), total) == 0) << "fetched bytes differ";
      results.Add(side.Name("fetch again"), shape.name, "GB/s",
                  gigabytes / FetchAll(client, side.ns, chain, false, target));
      if (side.transport == "shm") ReadInPlace(client, side.ns, chain, shape, results);
      results.Add(side.Name("fetch of one block, p50"), shape.name, "us",
                  OneBlockMicroseconds(client, side.ns, chain, target));
      const Chain on_disk =
          MakeBlocks(side.ns, shape.blocks_count, side.seed + 100 + round, source);
      results.Add(side.Name("fetch from disk"), shape.name, "GB/s",
                  gigabytes / FetchAll(client, side.ns, on_disk, true, target));
    }
  }
}

void RunMatch(Server& server, int rounds, Results& results) {
  auto client = ConnectTo(server, "grpc");
  const NamespaceHandle ns = Open(*client, kMatchLayout);
  HostMemory source = TouchedMemory(ns.layout.PayloadBytes() * kMatchKeys);
  const Chain chain = MakeBlocks(ns, kMatchKeys, 1, source);
  PublishAll(*client, ns, chain, false);
  for (int round = 0; round < rounds; ++round) {
    for (const bool lease : {false, true}) {
      MatchCallOptions options;
      options.lease = lease;
      std::vector<double> us;
      for (int i = 0; i < 50; ++i) {
        us.push_back(1e6 * Seconds([&] {
                       IBID_CHECK(client->Match(ns, chain.links, options).blocks_count() ==
                                  kMatchKeys);
                     }));
      }
      std::sort(us.begin(), us.end());
      results.Add(lease ? "match and lease, p50" : "match without lease, p50", "1,000 keys", "us",
                  us[25]);
    }
  }
}

void Report(const Results& results) {
  std::map<std::string, double> memcpy_of;
  std::printf("%-30s %-11s %10s %6s %9s\n", "case", "blocks", "median", "unit", "/memcpy");
  nlohmann::json rows = nlohmann::json::array();
  for (const Series& series : results.all()) {
    if (series.name == "memcpy") memcpy_of[series.shape] = series.Median();
    std::string ratio;
    if (series.unit == "GB/s") {
      char text[16];
      std::snprintf(text, sizeof text, "%.2f", series.Median() / memcpy_of[series.shape]);
      ratio = text;
    }
    std::printf("%-30s %-11s %10.2f %6s %9s\n", series.name.c_str(), series.shape.c_str(),
                series.Median(), series.unit.c_str(), ratio.c_str());
    rows.push_back({{"case", series.name},
                    {"blocks", series.shape},
                    {"unit", series.unit},
                    {"median", series.Median()},
                    {"values", series.values}});
  }
  if (absl::GetFlag(FLAGS_json).empty()) return;
  std::ofstream(absl::GetFlag(FLAGS_json))
      << nlohmann::json{{"bench", "store_bench"},
                        {"cores", std::thread::hardware_concurrency()},
                        {"rounds", absl::GetFlag(FLAGS_rounds)},
                        {"results", rows}}
             .dump(1)
      << "\n";
}

}  // namespace
}  // namespace ibid

int main(int argc, char** argv) {
  absl::SetProgramUsageMessage("Measures publish, fetch and match through real processes.");
  absl::ParseCommandLine(argc, argv);
  IBID_CHECK(ibid::InitLog("store_bench", "warn").ok());
  const int rounds = std::clamp(absl::GetFlag(FLAGS_rounds), 1, 20);
  ibid::Results results;
  {
    ibid::Server server;
    for (const ibid::Shape& shape : ibid::kShapes) ibid::RunShape(server, shape, rounds, results);
    ibid::RunMatch(server, rounds, results);
  }
  ibid::Report(results);
  return 0;
}
