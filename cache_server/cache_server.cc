#include "cache_server/cache_server.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cache_server/host_arena.h"
#include "cache_server/status_page.h"
#include "cache_server/tenant_table.h"
#include "cache_server/tenants_file.h"
#include "core/check.h"
#include "core/limit.h"
#include "core/log.h"

namespace ibid {
namespace {

// What a cancelled call or a connection that is being closed may need to let go of the store's
// memory.
constexpr absl::Duration kHoldsTimeout = absl::Seconds(5);
// What the page has place for.
constexpr size_t kPrefixesShown = 10;
constexpr size_t kSessionsShown = 20;
constexpr size_t kTenantsShown = 20;

}  // namespace

CacheServer::CacheServer(const ServerOptions& options) : options_(options) {}

absl::StatusOr<std::unique_ptr<CacheServer>> CacheServer::Start(const ServerOptions& options,
                                                                const Clock* clock) {
  IBID_RETURN_IF_ERROR(options.Validate());
  std::unique_ptr<CacheServer> server(new CacheServer(options));
  IBID_RETURN_IF_ERROR(server->Open(clock));
  return server;
}

absl::Status CacheServer::Open(const Clock* clock) {
  clock_ = clock == nullptr ? &steady_clock_ : clock;
  metrics_ = std::make_unique<MetricsRegistry>();
  BlockStoreOptions store_options = options_.StoreOptions();
  store_options.clock = clock;
  store_options.metrics = metrics_.get();
  IBID_ASSIGN_OR_RETURN(store_, BlockStore::Open(std::move(store_options)));

  if (!options_.tenants_file.empty()) {
    IBID_RETURN_IF_ERROR(ReloadQuotas());
  }

  if (options_.SharesMemory()) ShareMemory();
  CacheServiceOptions service_options;
  service_options.shm = shm_.get();
  service_options.store = store_.get();
  service_options.session_ttl = options_.session_ttl;
  service_options.lease_ttl = options_.lease_ttl;
  service_options.version = IBID_VERSION;
  service_options.metrics = metrics_.get();
  service_ = CacheService::Create(service_options);
  AdminServiceOptions admin_options;
  admin_options.state = service_->state();
  admin_options.is_loopback_only = options_.tls_ca.empty();
  admin_options.drain = [this](absl::Duration timeout, const std::function<bool()>& is_stopped) {
    return Drain(timeout, is_stopped);
  };
  admin_options.undrain = [this] { return Undrain(); };
  admin_options.reload_quotas = [this] { return ReloadQuotas(); };
  admin_ = AdminService::Create(admin_options);
  grpc::Service* const services[] = {service_->grpc_service(), admin_->grpc_service()};
  IBID_ASSIGN_OR_RETURN(grpc_server_, GrpcServer::Start(options_.GrpcSetup(), services));

  if (options_.http_listen.empty()) return absl::OkStatus();
  HttpPort::Handlers handlers;
  handlers["/metrics"] = [this] { return HttpReply{200, SerializeMetrics(*metrics_)}; };
  handlers["/"] = [] { return HttpReply{200, kStatusPage, "text/html; charset=utf-8"}; };
  handlers["/stats.json"] = [this] { return HttpReply{200, Status(), "application/json"}; };
  handlers["/healthz"] = [this] { return Health(); };
  IBID_ASSIGN_OR_RETURN(http_port_, HttpPort::Start(options_.http_listen, std::move(handlers)));
  return absl::OkStatus();
}

CacheServer::~CacheServer() { Shutdown(absl::ZeroDuration()); }

void CacheServer::ShareMemory() {
  ShmListenerOptions options;
  options.incarnation = store_->incarnation();
  options.socket = options_.shm_socket;
  if (options.socket.empty()) options.socket = absl::StrFormat("@ibid-%016x", options.incarnation);
  options.arena = &store_->arena().memory();
  options.generations = &store_->arena().generations();
  options.uids = *options_.ShmUids();  // Validate has seen them
  auto listener = ShmListener::Start(std::move(options));
  if (listener.ok()) {
    shm_ = *std::move(listener);
  } else {
    IBID_LOG(warn, "clients on this host use gRPC: {}", listener.status().message());
  }
}

std::string CacheServer::address() const {
  return absl::StrCat(options_.listen.substr(0, options_.listen.rfind(':')), ":", port());
}

HttpReply CacheServer::Health() const {
  if (is_stopping_) return HttpReply{503, "stopping\n"};
  if (is_draining_) return HttpReply{503, "draining\n"};
  const BlockStoreStats stats = store_->stats();
  std::string text = stats.is_recovering ? "recovering\n" : "ok\n";
  // A tier in trouble is no reason to stop sending requests here: misses are served well.
  for (const BlockTierStats& tier : stats.tiers) {
    if (tier.state != "ok") absl::StrAppend(&text, tier.tier, ": ", tier.state, "\n");
  }
  return HttpReply{200, std::move(text)};
}

KeepResult CacheServer::Drain(absl::Duration timeout, const std::function<bool()>& is_stopped) {
  {
    MutexLock lock(draining_mutex_);
    if (!is_draining_) {
      IBID_LOG(info, "draining: no new sessions and blocks; writing what only memory has");
    }
    SetDraining(true);
  }
  return store_->KeepOnDisk(timeout, is_stopped);
}

absl::Status CacheServer::ReloadQuotas() {
  if (options_.tenants_file.empty()) {
    return absl::FailedPreconditionError(
        "the server has no file of quotas; start it with --tenants_file");
  }
  IBID_ASSIGN_OR_RETURN(const TenantQuotas quotas, ReadTenantsFile(options_.tenants_file));
  const absl::Status set = store_->tenants().SetAll(quotas);
  if (set.ok()) return set;
  absl::Status named(set.code(),
                     absl::StrCat("--tenants_file=", options_.tenants_file, ": ", set.message()));
  if (const auto limit = LimitOf(set); limit.has_value()) SetLimit(*limit, &named);
  return named;
}

absl::Status CacheServer::Undrain() {
  MutexLock lock(draining_mutex_);
  if (is_stopping_) return absl::UnavailableError("the server is shutting down");
  if (is_draining_) IBID_LOG(info, "draining no more: sessions and blocks are taken again");
  SetDraining(false);
  return absl::OkStatus();
}

void CacheServer::SetDraining(bool is_draining) {
  is_draining_ = is_draining;
  is_draining ? service_->RefuseSessions() : service_->TakeSessions();
  is_draining ? store_->RefuseBlocks() : store_->TakeBlocks();
  grpc_server_->SetServing(!is_draining);
}

std::string CacheServer::Status() const {
  StatusFacts facts;
  facts.version = IBID_VERSION;
  facts.uptime = steady_clock_.Now() - began_;
  facts.now = clock_->Now();
  facts.incarnation = store_->incarnation();
  facts.store = store_->stats();
  facts.state = is_stopping_                ? "stopping"
                : is_draining_              ? "draining"
                : facts.store.is_recovering ? "recovering"
                                            : "serving";
  facts.methods = service_->state()->metrics.Counts();
  facts.history = store_->History();
  facts.prefixes = store_->HottestPrefixes(kPrefixesShown);
  facts.sessions = store_->Sessions(kSessionsShown);
  facts.tenants = store_->Tenants();
  const auto used = [](const TenantInfo& tenant) {
    return tenant.host_used_bytes + tenant.disk_used_bytes + tenant.gpu_used_bytes;
  };
  std::stable_sort(facts.tenants.begin(), facts.tenants.end(),
                   [&](const auto& a, const auto& b) { return used(a) > used(b); });
  if (facts.tenants.size() > kTenantsShown) facts.tenants.resize(kTenantsShown);
  return StatusJson(facts);
}

void CacheServer::Shutdown(absl::Duration timeout) {
  {
    // From here on nothing is taken again by an Undrain.
    MutexLock lock(draining_mutex_);
    if (is_stopping_.exchange(true)) return;
  }
  const SteadyClock clock;
  const absl::Time until = clock.Now() + timeout;
  const auto left = [&] { return std::max(until - clock.Now(), absl::ZeroDuration()); };
  if (grpc_server_ != nullptr) {
    admin_->Stop();
    service_->Drain();
    // A reader that is slow must not cost the blocks that only memory has.
    grpc_server_->Shutdown(timeout / 2);
  }
  if (store_ != nullptr && timeout > absl::ZeroDuration()) KeepBlocks(left());
  http_port_.reset();
  if (service_ != nullptr && !service_->WaitForNoHolds(kHoldsTimeout)) {
    // Freeing memory that gRPC may still read would be worse than leaking it in a process that
    // ends.
    IBID_LOG(error,
             "calls or connections still hold blocks {} after the stop; their memory is left to "
             "the process's end",
             absl::FormatDuration(kHoldsTimeout));
    (void)admin_.release();
    (void)service_.release();
    (void)shm_.release();
    (void)store_.release();
    (void)metrics_.release();
    (void)grpc_server_.release();
    return;
  }
  grpc_server_.reset();
  admin_.reset();
  service_.reset();
  shm_.reset();
  store_.reset();
}

// The last words of a server that has a disk tier: what it kept.
void CacheServer::KeepBlocks(absl::Duration timeout) {
  store_->RefuseBlocks();
  const SteadyClock clock;
  const absl::Time until = clock.Now() + timeout;
  const KeepResult kept = store_->KeepOnDisk(timeout);
  if (options_.disk_dir.empty()) return;
  IBID_LOG(info, "stopping: {} blocks written to disk", kept.written_blocks);
  const bool is_flushed = store_->FlushToDisk(std::max(until - clock.Now(), absl::ZeroDuration()));
  if (kept.remaining_blocks == 0 && is_flushed) return;
  IBID_LOG(warn, "stopping: {} blocks are not on disk; they will be misses", kept.remaining_blocks);
}

}  // namespace ibid
