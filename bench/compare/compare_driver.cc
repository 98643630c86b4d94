// One client of one of the compared systems, for bench/compare/run. It obeys commands on stdin,
// one a line, and answers each with a line that begins with `ok`, or with `error` and a reason:
//
//   prepare SEED BLOCK_BYTES COUNT   writes the prefix's bytes, spoils the target; not timed
//   publish AT_NS                    -> START_NS END_NS
//   fetch AT_NS                      -> START_NS END_NS
//   check                            the target holds the prefix's bytes; not timed
//   drop                             not timed
//   latency COUNT                    -> ns of each fetch of one block, one after the other
//   rate SECONDS AT_NS               -> COUNT START_NS END_NS of fetches of one block, back to back
//   load PER_SECOND COUNT SEED AT_NS -> ns of each fetch of one block since it was due (open loop)
//   quit
//
// Times are of the monotonic clock, which all processes of a machine share: a command waits for
// AT_NS, so that several clients begin at once.

#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>
#include <iostream>
#include <map>
#include <random>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "absl/strings/str_cat.h"
#include "bench/compare/compared_store.h"
#include "core/check.h"
#include "core/host_memory.h"
#include "core/log.h"

ABSL_FLAG(std::string, system, "ibid", "ibid, redis, memcached or memcpy");
ABSL_FLAG(std::string, address, "", "host:port of the server");
ABSL_FLAG(std::string, transport, "grpc", "ibid: how bytes travel");
ABSL_FLAG(uint64_t, bytes_max, 128 << 20, "the largest prefix, in bytes");

namespace ibid {
namespace {

constexpr size_t kFetchesMax = 20'000;                    // of one command
constexpr int64_t kLoadNsMax = int64_t{10} * 1000000000;  // of one `load`

int64_t NowNs() { return std::chrono::steady_clock::now().time_since_epoch().count(); }

void WaitUntil(int64_t at_ns) {
  std::this_thread::sleep_until(
      std::chrono::steady_clock::time_point(std::chrono::nanoseconds(at_ns)));
}

HostMemory TouchedMemory(size_t bytes) {
  auto memory = HostMemory::CreatePrivate(bytes);
  IBID_CHECK(memory.ok()) << memory.status();
  std::memset(memory->begin(), 1, bytes);
  return *std::move(memory);
}

class Driver {
 public:
  Driver(std::unique_ptr<ComparedStore> store, uint64_t bytes_max)
      : store_(std::move(store)),
        source_(TouchedMemory(bytes_max)),
        target_(TouchedMemory(bytes_max)),
        bytes_max_(bytes_max) {}

  // The reply to one line.
  std::string Obey(const std::string& line) {
    std::istringstream words(line);
    std::string verb;
    words >> verb;
    reply_ = "ok";
    const absl::Status status = Dispatch(verb, words);
    return status.ok() ? reply_ : absl::StrCat("error ", status.ToString());
  }

 private:
  absl::Status Dispatch(const std::string& verb, std::istringstream& words) {
    if (verb == "prepare") return Prepare(words);
    if (verb == "publish") return Timed(words, [this] { return store_->Publish(payloads_); });
    if (verb == "fetch") return Timed(words, [this] { return store_->Fetch(0, into_); });
    if (verb == "check") return Check();
    if (verb == "drop") return store_->Drop();
    if (verb == "latency") return Latency(words);
    if (verb == "rate") return Rate(words);
    if (verb == "load") return Load(words);
    return absl::InvalidArgumentError(absl::StrCat("no command '", verb, "'"));
  }

  // Every word of the prefix depends on the seed, the block and its place in it.
  absl::Status Prepare(std::istringstream& words) {
    words >> shape_.seed >> shape_.block_bytes >> shape_.blocks_count;
    const uint64_t bytes = shape_.block_bytes * shape_.blocks_count;
    if (!words || bytes == 0 || bytes > bytes_max_) return absl::InvalidArgumentError("prepare");
    payloads_.clear();
    into_.clear();
    for (uint32_t block = 0; block < shape_.blocks_count; ++block) {
      const uint64_t offset = block * shape_.block_bytes;
      auto* word = reinterpret_cast<uint64_t*>(source_.begin() + offset);
      const uint64_t start = (uint64_t{shape_.seed} << 32 | block) * 0x9E3779B97F4A7C15u;
      for (uint64_t i = 0; i < shape_.block_bytes / sizeof *word; ++i) {
        word[i] = start + i * 0xBF58476D1CE4E5B9u;
      }
      payloads_.push_back(ByteView(source_.begin() + offset, shape_.block_bytes));
      into_.push_back(MutableByteView(target_.begin() + offset, shape_.block_bytes));
    }
    std::memset(target_.begin(), 0xEE, bytes);
    return store_->Prepare(shape_);
  }

  absl::Status Timed(std::istringstream& words, const std::function<absl::Status()>& work) {
    int64_t at_ns = 0;
    words >> at_ns;
    WaitUntil(at_ns);
    const int64_t start_ns = NowNs();
    const absl::Status status = work();
    absl::StrAppend(&reply_, " ", start_ns, " ", NowNs());
    return status;
  }

  absl::Status Check() {
    for (size_t i = 0; i < into_.size(); ++i) {
      if (std::memcmp(into_[i].data(), payloads_[i].data(), into_[i].size()) != 0) {
        return absl::DataLossError(absl::StrCat("block ", i, " has other bytes"));
      }
    }
    return absl::OkStatus();
  }

  absl::Status FetchOne() {
    const uint32_t block = random_() % shape_.blocks_count;
    return store_->Fetch(block, {&into_[block], 1});
  }

  absl::Status Latency(std::istringstream& words) {
    size_t count = 0;
    words >> count;
    for (size_t i = 0; i < std::min(count, kFetchesMax); ++i) {
      const int64_t start_ns = NowNs();
      if (absl::Status status = FetchOne(); !status.ok()) return status;
      absl::StrAppend(&reply_, " ", NowNs() - start_ns);
    }
    return absl::OkStatus();
  }

  absl::Status Rate(std::istringstream& words) {
    double seconds = 0;
    int64_t at_ns = 0;
    words >> seconds >> at_ns;
    WaitUntil(at_ns);
    const int64_t start_ns = NowNs();
    const int64_t until_ns = start_ns + static_cast<int64_t>(std::min(seconds, 10.0) * 1e9);
    size_t count = 0;
    for (; count < kFetchesMax && NowNs() < until_ns; ++count) {
      if (absl::Status status = FetchOne(); !status.ok()) return status;
    }
    absl::StrAppend(&reply_, " ", count, " ", start_ns, " ", NowNs());
    return absl::OkStatus();
  }

  // Arrivals are a Poisson process that does not wait for answers: one that comes while another is
  // served has waited since it was due.
  absl::Status Load(std::istringstream& words) {
    double per_second = 0;
    size_t count = 0;
    uint32_t seed = 0;
    int64_t at_ns = 0;
    words >> per_second >> count >> seed >> at_ns;
    if (!words || per_second <= 0) return absl::InvalidArgumentError("load");
    std::mt19937_64 arrivals(seed);
    std::exponential_distribution<double> gap_seconds(per_second);
    double due_ns = static_cast<double>(at_ns);
    for (size_t i = 0; i < std::min(count, kFetchesMax) && NowNs() < at_ns + kLoadNsMax; ++i) {
      due_ns += gap_seconds(arrivals) * 1e9;
      WaitUntil(static_cast<int64_t>(due_ns));
      if (absl::Status status = FetchOne(); !status.ok()) return status;
      absl::StrAppend(&reply_, " ", NowNs() - static_cast<int64_t>(due_ns));
    }
    return absl::OkStatus();
  }

  std::unique_ptr<ComparedStore> store_;
  HostMemory source_, target_;
  const uint64_t bytes_max_;
  PrefixShape shape_;
  std::vector<ByteView> payloads_;
  std::vector<MutableByteView> into_;
  std::mt19937 random_{1};
  std::string reply_;
};

absl::StatusOr<std::unique_ptr<ComparedStore>> Connect() {
  const ComparedStoreOptions options = {
      .system = absl::GetFlag(FLAGS_system),
      .address = absl::GetFlag(FLAGS_address),
      .transport = absl::GetFlag(FLAGS_transport),
      .bytes_max = absl::GetFlag(FLAGS_bytes_max),
  };
  if (options.system == "ibid") return ConnectIbid(options);
  if (options.system == "memcpy") return MakeMemcpy(options);
  if (options.system == "redis" || options.system == "memcached") return ConnectText(options);
  return absl::InvalidArgumentError(absl::StrCat("no system '", options.system, "'"));
}

int Run() {
  auto store = Connect();
  if (!store.ok()) {
    std::cout << "error " << store.status() << std::endl;
    return 1;
  }
  Driver driver(*std::move(store), absl::GetFlag(FLAGS_bytes_max));
  std::cout << "ok" << std::endl;
  std::string line;
  while (std::getline(std::cin, line) && line != "quit")
    std::cout << driver.Obey(line) << std::endl;
  return 0;
}

}  // namespace
}  // namespace ibid

int main(int argc, char** argv) {
  absl::SetProgramUsageMessage("One client of one system, driven by bench/compare/run.");
  absl::ParseCommandLine(argc, argv);
  IBID_CHECK(ibid::InitLog("compare_driver", "error").ok());
  return ibid::Run();
}
