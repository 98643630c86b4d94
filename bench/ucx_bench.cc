// What UcxPort moves between two processes over loopback: this one and a child that it starts from
// itself. In each round every case runs once, beside the same bytes through one plain TCP socket
// and an iperf3 of one flow; the median over the rounds is reported, all values are kept as JSON.

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "core/check.h"
#include "core/host_memory.h"
#include "core/mutex.h"
#include "tests/harness/process.h"
#include "transport/ucx_port.h"

ABSL_FLAG(int, rounds, 7, "rounds; the median is reported");
ABSL_FLAG(std::string, json, "", "file for all values; empty: none");
ABSL_FLAG(bool, iperf3, true, "also run iperf3 where it is installed");
ABSL_FLAG(std::vector<std::string>, ucx_settings, {},
          "UCX settings of both ends: NAME=VALUE,... without UCX_TCP_");
ABSL_FLAG(int, child_tcp_port, 0, "internal: be the child of the bench that listens here");
ABSL_FLAG(int, child_ucx_port, 0, "internal");

namespace ibid {
namespace {

constexpr absl::Duration kTimeout = absl::Seconds(60);
constexpr size_t kMemoryBytes = size_t{128} << 20;

// One case, as the parent sends it to its child.
struct Case {
  uint64_t is_ucx = 0;
  uint64_t is_fetch = 0;  // parent to child; else a publish, child to parent
  uint64_t blocks_count = 0;
  uint64_t block_bytes = 0;
  uint64_t first_tag = 0;
};

void SendAll(int fd, ByteView bytes) {
  for (size_t done = 0; done < bytes.size();) {
    const ssize_t n = send(fd, bytes.data() + done, bytes.size() - done, MSG_NOSIGNAL);
    IBID_CHECK(n > 0) << "the other process is gone";
    done += static_cast<size_t>(n);
  }
}
bool ReceiveAll(int fd, MutableByteView bytes) {
  for (size_t done = 0; done < bytes.size();) {
    const ssize_t n = recv(fd, bytes.data() + done, bytes.size() - done, 0);
    if (n <= 0) return false;
    done += static_cast<size_t>(n);
  }
  return true;
}
template <typename T>
void SendValue(int fd, const T& value) {
  SendAll(fd, std::as_bytes(std::span(&value, 1)));
}
template <typename T>
bool ReceiveValue(int fd, T* value) {
  return ReceiveAll(fd, std::as_writable_bytes(std::span(value, 1)));
}

// Waits for many transfers.
class Pending {
 public:
  UcxDone Done() {
    MutexLock lock(mutex_);
    ++left_;
    return [this](absl::StatusOr<size_t> result) {
      IBID_CHECK(result.ok()) << result.status();
      MutexLock lock(mutex_);
      if (--left_ == 0) changed_.NotifyAll();
    };
  }
  void Wait() {
    MutexLock lock(mutex_);
    while (left_ > 0) changed_.Wait(mutex_);
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  size_t left_ IBID_GUARDED_BY(mutex_) = 0;
};

// One end: its port, its memory and the socket to the other.
struct End {
  std::unique_ptr<UcxPort> port;
  UcxPeerId peer{};
  int fd = -1;
  HostMemory memory;

  MutableByteView Block(const Case& run, uint64_t i) const {
    return memory.view().subspan(i * run.block_bytes, run.block_bytes);
  }
  void Post(const Case& run, bool is_sender, Pending* pending) {
    for (uint64_t i = 0; i < run.blocks_count; ++i) {
      const uint64_t tag = run.first_tag + i;
      const auto id = is_sender
                          ? port->Send(peer, tag, Block(run, i), nullptr, kTimeout, pending->Done())
                          : port->Receive(peer, tag, Block(run, i), kTimeout, pending->Done());
      IBID_CHECK(id.ok()) << id.status();
    }
  }
  // The receiver says when it is ready; the clock runs from there to its word that it has all.
  double Send(const Case& run) {
    uint64_t word = 0;
    IBID_CHECK(ReceiveValue(fd, &word));
    const absl::Time start = absl::Now();
    Pending pending;
    if (run.is_ucx != 0) {
      Post(run, true, &pending);
    } else {
      SendAll(fd, memory.view().first(run.blocks_count * run.block_bytes));
    }
    IBID_CHECK(ReceiveValue(fd, &word));
    const double seconds = absl::ToDoubleSeconds(absl::Now() - start);
    pending.Wait();
    return seconds;
  }
  void Receive(const Case& run) {
    const uint64_t word = 1;
    Pending pending;
    if (run.is_ucx != 0) Post(run, false, &pending);
    SendValue(fd, word);
    if (run.is_ucx == 0)
      IBID_CHECK(ReceiveAll(fd, memory.view().first(run.blocks_count * run.block_bytes)));
    pending.Wait();
    SendValue(fd, word);
  }
};

UcxPortOptions PortOptions() {
  UcxPortOptions options;
  for (const std::string& setting : absl::GetFlag(FLAGS_ucx_settings)) {
    const size_t equals = setting.find('=');
    IBID_CHECK(equals != std::string::npos) << setting;
    options.settings.emplace_back(setting.substr(0, equals), setting.substr(equals + 1));
  }
  return options;
}

HostMemory WarmMemory() {
  auto memory = HostMemory::CreatePrivate(kMemoryBytes);
  IBID_CHECK(memory.ok()) << memory.status();
  std::fill(memory->begin(), memory->begin() + memory->size(), std::byte{1});
  return *std::move(memory);
}

// The words between the two must not wait for the acknowledgement of others: 40 ms.
void SendAtOnce(int fd) {
  const int on = 1;
  IBID_CHECK(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) == 0);
}

sockaddr_in Loopback(int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

int RunChild() {
  End end;
  end.memory = WarmMemory();
  end.fd = socket(AF_INET, SOCK_STREAM, 0);
  const sockaddr_in address = Loopback(absl::GetFlag(FLAGS_child_tcp_port));
  IBID_CHECK(connect(end.fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
  SendAtOnce(end.fd);
  end.port = UcxPort::Create(PortOptions()).value();
  end.peer =
      end.port->Connect(absl::StrCat("127.0.0.1:", absl::GetFlag(FLAGS_child_ucx_port)), kTimeout)
          .value();
  SendValue(end.fd, end.peer);
  Case run;
  while (ReceiveValue(end.fd, &run)) {
    if (run.is_fetch != 0) {
      end.Receive(run);
    } else {
      SendValue(end.fd, end.Send(run));
    }
  }
  return 0;
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// GB/s of one flow for two seconds; 0 where there is no iperf3.
double Iperf3(const std::string& folder, int port) {
  if (access("/usr/bin/iperf3", X_OK) != 0) return 0;
  auto server =
      Process::Start({"/usr/bin/iperf3", "-s", "-1", "-p", absl::StrCat(port)}, folder + "/iperf3");
  IBID_CHECK(server.ok()) << server.status();
  for (int i = 0; i < 50; ++i) {
    const auto client =
        Run({"/usr/bin/iperf3", "-c", "127.0.0.1", "-p", absl::StrCat(port), "-t", "2", "-J"});
    const auto json = client.ok() ? nlohmann::json::parse(client->out, nullptr, false) : nullptr;
    if (json.is_object() && json.contains("end") && json["end"].contains("sum_received"))
      return json["end"]["sum_received"]["bits_per_second"].get<double>() / 8e9;
    absl::SleepFor(absl::Milliseconds(20));  // it does not listen yet
  }
  return 0;
}

int RunParent() {
  TempFolder folder("ibid-ucx-bench");
  const int listener = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = Loopback(0);
  socklen_t length = sizeof address;
  IBID_CHECK(bind(listener, reinterpret_cast<sockaddr*>(&address), length) == 0);
  IBID_CHECK(listen(listener, 1) == 0);
  getsockname(listener, reinterpret_cast<sockaddr*>(&address), &length);
  End end;
  end.memory = WarmMemory();
  UcxPortOptions options = PortOptions();
  options.listen = "127.0.0.1:0";
  end.port = UcxPort::Create(options).value();
  auto child = Process::Start(
      {"/proc/self/exe", absl::StrCat("--child_tcp_port=", ntohs(address.sin_port)),
       absl::StrCat("--child_ucx_port=", end.port->port()),
       absl::StrCat("--ucx_settings=", absl::StrJoin(absl::GetFlag(FLAGS_ucx_settings), ","))},
      folder / "log");
  IBID_CHECK(child.ok()) << child.status();
  end.fd = accept(listener, nullptr, nullptr);
  SendAtOnce(end.fd);
  IBID_CHECK(ReceiveValue(end.fd, &end.peer)) << ReadWholeFile(folder / "log");

  std::map<std::string, std::vector<double>> series;  // GB/s
  uint64_t next_tag = 1;
  const int rounds = absl::GetFlag(FLAGS_rounds);
  for (int round = -1; round < rounds; ++round) {  // the first warms up
    for (const auto& [name, count, bytes] :
         {std::tuple{"2 MiB", uint64_t{64}, uint64_t{2} << 20},
          std::tuple{"64 KiB", uint64_t{512}, uint64_t{64} << 10}}) {
      for (const bool is_fetch : {true, false}) {
        for (const bool is_ucx : {true, false}) {
          const Case run{is_ucx, is_fetch, count, bytes, next_tag};
          next_tag += count;
          SendValue(end.fd, run);
          double seconds = 0;
          if (is_fetch) {
            seconds = end.Send(run);
          } else {
            end.Receive(run);
            IBID_CHECK(ReceiveValue(end.fd, &seconds));
          }
          if (round < 0) continue;
          series[absl::StrCat(is_ucx ? "ucx" : "socket", is_fetch ? " fetch " : " publish ", name)]
              .push_back(static_cast<double>(count * bytes) / seconds / 1e9);
        }
      }
    }
    if (round >= 0 && absl::GetFlag(FLAGS_iperf3))
      series["iperf3"].push_back(Iperf3(folder.path(), 5'290 + round));
  }
  nlohmann::json json{{"unit", "GB/s"}, {"rounds", rounds}};
  for (const auto& [name, values] : series) {
    std::printf("%-22s %6.2f GB/s  (%.2f to %.2f)\n", name.c_str(), Median(values),
                *std::min_element(values.begin(), values.end()),
                *std::max_element(values.begin(), values.end()));
    json["series"][name] = {{"median", Median(values)}, {"values", values}};
  }
  if (!absl::GetFlag(FLAGS_json).empty())
    std::ofstream(absl::GetFlag(FLAGS_json)) << json.dump(1) << "\n";
  close(end.fd);
  child->Wait(absl::Seconds(10));
  return 0;
}

}  // namespace
}  // namespace ibid

int main(int argc, char** argv) {
  absl::ParseCommandLine(argc, argv);
  return absl::GetFlag(FLAGS_child_tcp_port) != 0 ? ibid::RunChild() : ibid::RunParent();
}
