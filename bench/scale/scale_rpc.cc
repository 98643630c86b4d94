// Offer and commit of small blocks by many clients, over gRPC on loopback: a real ibid-server
// beside a bare gRPC server that answers the same messages and stores nothing, in turn, with the
// same clients. The bare server is the ceiling of what gRPC carries in this pattern.
#include <grpcpp/grpcpp.h>

#include <atomic>
#include <fstream>
#include <map>
#include <optional>
#include <thread>

#include "absl/strings/str_cat.h"
#include "bench/scale/scale_bench.h"
#include "core/check.h"
#include "core/process.h"
#include "ibid/v1/cache.grpc.pb.h"
#include "tests/harness/process.h"
#include "transport/cache_channel.h"
#include "transport/channel.h"
#include "transport/limits.h"
#include "transport/message_bytes.h"
#include "transport/server_setup.h"

namespace ibid {
namespace {

constexpr uint32_t kBlockBytes = 256;
constexpr uint32_t kClientsCount = 8;
constexpr uint32_t kOfferKeys = 512;  // a multiple of kFramesPerMessageMax

// To the messages of one publish; the buffers share their bytes.
const std::vector<grpc::ByteBuffer>& AnswersToAChain() {
  static const auto* const answers = [] {
    auto* const made = new std::vector<grpc::ByteBuffer>;
    for (uint32_t index = 0; index < kOfferKeys;) {
      v1::PublishResponse response;
      response.set_incarnation(1);
      for (uint32_t i = 0; i < kFramesPerMessageMax; ++i, ++index) {
        v1::PublishResult* const result = response.add_results();
        result->set_index(index);
        result->set_outcome(v1::BLOCK_OUTCOME_OK);
      }
      made->push_back(SerializeMessage(response));
    }
    return made;
  }();
  return *answers;
}

// Answers each message with as many results as the clients have put frames into it. Reads and
// writes at once, as the real one does.
class BareStream final : public grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  BareStream() : answers_(AnswersToAChain()) { StartRead(&incoming_); }
  void OnReadDone(bool ok) override {
    {
      MutexLock lock(mutex_);
      is_ended_ = !ok;
      if (ok) ++due_count_;
    }
    WriteNext(/*is_after_write=*/false);
    if (ok) StartRead(&incoming_);
  }
  void OnWriteDone(bool) override { WriteNext(/*is_after_write=*/true); }
  void OnDone() override { delete this; }

 private:
  void WriteNext(bool is_after_write) {
    bool writes = false;
    bool finishes = false;
    {
      MutexLock lock(mutex_);
      if (is_after_write) is_writing_ = false;
      writes = !is_writing_ && due_count_ > 0;
      finishes = !is_writing_ && due_count_ == 0 && is_ended_ && !is_finished_;
      is_finished_ |= finishes;
      if (writes) {
        --due_count_;
        is_writing_ = true;
      }
    }
    if (writes) StartWrite(&answers_[next_answer_++]);
    if (finishes) Finish(grpc::Status::OK);
  }

  grpc::ByteBuffer incoming_;
  std::vector<grpc::ByteBuffer> answers_;
  size_t next_answer_ = 0;  // of the one that writes
  Mutex mutex_;
  uint32_t due_count_ IBID_GUARDED_BY(mutex_) = 0;
  bool is_writing_ IBID_GUARDED_BY(mutex_) = false;
  bool is_ended_ IBID_GUARDED_BY(mutex_) = false;
  bool is_finished_ IBID_GUARDED_BY(mutex_) = false;
};

class BareService final
    : public v1::CacheService::WithCallbackMethod_Offer<
          v1::CacheService::WithRawCallbackMethod_Publish<v1::CacheService::Service>> {
 public:
  grpc::ServerUnaryReactor* Offer(grpc::CallbackServerContext* context,
                                  const v1::OfferRequest* request,
                                  v1::OfferResponse* response) override {
    for (size_t i = 0; i < request->keys().size() / sizeof(Digest); ++i) {
      response->add_outcomes(v1::BLOCK_OUTCOME_WANTED);
    }
    grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }
  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* Publish(
      grpc::CallbackServerContext*) override {
    return new BareStream;
  }
};

// One connection, through the channel of the client library, that offers and publishes chains, one
// after the other.
class LoadClient {
 public:
  LoadClient(const std::string& address, uint32_t number, bool is_bare) : next_seed_(number << 20) {
    auto channel = CacheChannel::Create(address, {});
    IBID_CHECK(channel.ok()) << channel.status();
    channel_ = *std::move(channel);
    IBID_CHECK(channel_->WaitUntilConnected(kTimeout)) << address;
    if (!is_bare) {
      auto session = channel_->OpenSession("store_scale_bench", kTimeout, nullptr);
      IBID_CHECK(session.ok()) << session.status();
      session_ = *std::move(session);
    }
    payload_.assign(kBlockBytes, std::byte{'p'});
  }

  // Blocks stored until `until`.
  uint64_t RunUntil(double until) {
    uint64_t stored = 0;
    while (WallSeconds() < until) stored += PublishChain();
    return stored;
  }

 private:
  uint64_t PublishChain() {
    const std::vector<ChainLink> chain = MakeScaleChain(ns_, next_seed_++, kOfferKeys);
    const uint64_t session_id = session_ == nullptr ? 0 : session_->session_id();
    const auto offered = channel_->Offer(session_id, ns_, KeysOf(chain), kTimeout);
    IBID_CHECK(offered.ok()) << offered.status();
    IBID_CHECK(offered->outcomes.size() == chain.size());
    std::vector<PublishBlock> blocks;
    for (size_t i = 0; i < chain.size(); ++i) {
      IBID_CHECK(offered->outcomes[i] == BlockOutcome::kWanted);
      blocks.push_back({chain[i], payload_, std::nullopt, nullptr});
    }
    const auto published = channel_->Publish({session_id, ns_, /*durable=*/false}, blocks, kTimeout,
                                             [](const PublishBlockResult& result) {
                                               IBID_CHECK(result.outcome == BlockOutcome::kOk)
                                                   << result.detail;
                                             });
    IBID_CHECK(published.ok()) << published.status();
    return chain.size();
  }

  static constexpr absl::Duration kTimeout = absl::Seconds(10);

  const NamespaceId ns_ = MakeNamespaceId(SpecOf());
  std::unique_ptr<CacheChannel> channel_;
  std::unique_ptr<CacheSession> session_;
  uint32_t next_seed_;
  std::vector<std::byte> payload_;

 public:
  static NamespaceSpec SpecOf() {
    NamespaceSpec spec;
    spec.model = "store_scale_bench";
    spec.layout = SmallLayout(kBlockBytes).ToString();
    return spec;
  }
};

// A server as a child, and the clients that load it.
class LoadedServer {
 public:
  LoadedServer(std::vector<std::string> arguments, bool is_bare) : folder_("ibid-scale-bench") {
    arguments.push_back((is_bare ? "--serve_bare=" : "--port_file=") + (folder_ / "ports"));
    auto process = Process::Start(arguments, folder_ / "log");
    IBID_CHECK(process.ok()) << process.status();
    process_.emplace(std::move(*process));
    const auto ports = WaitForPorts(*process_, folder_ / "ports", folder_ / "log");
    IBID_CHECK(ports.ok()) << ports.status();
    const std::string address = absl::StrCat("127.0.0.1:", ports->at("port"));
    if (!is_bare) OpenNamespace(address);
    for (uint32_t i = 0; i < kClientsCount; ++i) {
      clients_.push_back(std::make_unique<LoadClient>(address, i + 1, is_bare));
    }
  }

  double BlocksPerSecond(double seconds) {
    const double begin = WallSeconds();
    std::atomic<uint64_t> stored{0};
    std::vector<std::thread> threads;
    for (const auto& client : clients_) {
      threads.emplace_back([&] { stored += client->RunUntil(begin + seconds); });
    }
    for (std::thread& thread : threads) thread.join();
    return static_cast<double>(stored.load()) / (WallSeconds() - begin);
  }

 private:
  static void OpenNamespace(const std::string& address) {
    const NamespaceSpec spec = LoadClient::SpecOf();
    const NamespaceId ns = MakeNamespaceId(spec);
    std::vector<uint32_t> tokens(16);
    for (uint32_t i = 0; i < 16; ++i) tokens[i] = i;
    const BlockKey golden = MakeBlockKey(RootParent(ns), tokens);
    v1::OpenNamespaceRequest request;
    request.set_namespace_id(ns.digest.data(), ns.digest.size());
    request.mutable_fields()->set_model(spec.model);
    request.mutable_fields()->set_layout(spec.layout);
    request.mutable_fields()->set_shard(spec.shard);
    request.set_golden_key(golden.digest.data(), golden.digest.size());
    v1::OpenNamespaceResponse response;
    grpc::ClientContext context;
    const auto stub = v1::CacheService::NewStub(*MakeChannel(address, {}));
    const grpc::Status status = stub->OpenNamespace(&context, request, &response);
    IBID_CHECK(status.ok()) << status.error_message();
  }

  TempFolder folder_;
  std::optional<Process> process_;
  std::vector<std::unique_ptr<LoadClient>> clients_;
};

}  // namespace

int ServeBareGrpc(const std::string& port_file) {
  const StopSignals signals;
  BareService service;
  grpc::Service* const services[] = {&service};
  const auto server = GrpcServer::Start({}, services);
  IBID_CHECK(server.ok()) << server.status();
  IBID_CHECK(WritePortFile(port_file, (*server)->port(), 0).ok());
  (void)signals.Wait();
  return 0;
}

void RunRpcCase(const ScaleOptions& options, ScaleReport* report) {
  const double seconds = options.is_quick ? 0.2 : 3;
  LoadedServer bare({options.self}, /*is_bare=*/true);
  LoadedServer real({options.bin + "/ibid-server", "--listen=127.0.0.1:0",
                     "--http_listen=", "--host_bytes_max=1GiB", "--log_level=error"},
                    /*is_bare=*/false);
  (void)bare.BlocksPerSecond(seconds / 3);
  (void)real.BlocksPerSecond(seconds / 3);
  ScaleFigure ceiling{"bare gRPC, messages of offer and publish", "blocks/s", {}};
  ScaleFigure stored{"offer and commit, 8 clients", "blocks/s", {}};
  for (int i = 0; i < options.rounds; ++i) {
    ceiling.values.push_back(bare.BlocksPerSecond(seconds));
    stored.values.push_back(real.BlocksPerSecond(seconds));
  }
  stored.kind = ScaleFigure::Target::kAtLeast;
  stored.target = std::min(200'000.0, ceiling.Median());
  report->Add(ceiling);
  report->Add(stored);
}

}  // namespace ibid
