// The part of ServerLink that agrees with its server on namespaces.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "client/server_link.h"
#include "core/check.h"
#include "core/log.h"

namespace ibid {
namespace {

// A handshake that failed without a refusal is tried again by the first call after this.
constexpr absl::Duration kRetryInterval = absl::Seconds(1);

bool IsRefusal(const absl::Status& status) {
  return absl::IsFailedPrecondition(status) || absl::IsInvalidArgument(status);
}

}  // namespace

absl::Status ServerLink::OpenNamespace(uint32_t index, const NamespaceSpec& spec,
                                       uint64_t payload_bytes, absl::Time deadline) {
  {
    MutexLock lock(mutex_);
    if (index >= namespaces_.size()) namespaces_.resize(index + 1);
    OpenedNamespace& ns = namespaces_[index];
    if (!ns.is_known) {
      ns.is_known = true;
      ns.spec = spec;
      ns.payload_bytes = payload_bytes;
    }
  }
  const absl::StatusOr<LinkCall> call = Admit(deadline, /*needs_closed_breaker=*/false);
  if (!call.ok()) return absl::OkStatus();
  {
    MutexLock lock(mutex_);
    const OpenedNamespace& ns = namespaces_[index];
    if (ns.epoch == call->epoch && ns.handshake == Handshake::kOpen) return absl::OkStatus();
  }
  const absl::Status status = ShakeHands(*call, index);
  return IsRefusal(status) ? status : absl::OkStatus();
}

absl::Status ServerLink::EnsureNamespace(const LinkCall& call, uint32_t index) {
  {
    MutexLock lock(mutex_);
    IBID_CHECK(index < namespaces_.size() && namespaces_[index].is_known)
        << "not a handle of this client";
    const OpenedNamespace& ns = namespaces_[index];
    if (ns.epoch == call.epoch) {
      if (ns.handshake == Handshake::kOpen) return absl::OkStatus();
      if (ns.handshake == Handshake::kRefused || clock_->Now() < ns.retry_at) {
        return absl::UnavailableError(absl::StrCat(address_, ": the namespace is not open there"));
      }
    }
  }
  return ShakeHands(call, index);
}

absl::Status ServerLink::ShakeHands(const LinkCall& call, uint32_t index) {
  NamespaceSpec spec;
  uint64_t payload_bytes = 0;
  {
    MutexLock lock(mutex_);
    spec = namespaces_[index].spec;
    payload_bytes = namespaces_[index].payload_bytes;
  }
  const absl::StatusOr<OpenNamespaceReply> reply =
      call.channel->OpenNamespace(spec, options_->tenant, call.timeout);
  Report(CallKind::kOpenNamespace, reply.status(), call.timeout);
  absl::Status status = reply.status();
  if (reply.ok() && !CheckIncarnation(call, reply->incarnation).ok()) {
    status = absl::UnavailableError(absl::StrCat(address_, ": the server was restarted"));
  } else if (reply.ok() && reply->payload_bytes != payload_bytes) {
    status = absl::FailedPreconditionError(absl::StrCat(
        "the server's blocks have ", reply->payload_bytes, " bytes, the layout's ", payload_bytes));
  }
  NoteHandshake(call, index, status);
  if (!IsRefusal(status)) return status;
  const std::string text = absl::StrCat("cache server ", address_, " refuses namespace ",
                                        DigestToShortHex(MakeNamespaceId(spec).digest), " (layout ",
                                        spec.layout, "): ", status.message());
  IBID_LOG(error, "{}; it is not used for it", text);
  return absl::Status(status.code(), text);
}

void ServerLink::NoteHandshake(const LinkCall& call, uint32_t index, const absl::Status& status) {
  MutexLock lock(mutex_);
  OpenedNamespace& ns = namespaces_[index];
  if (ns.epoch > call.epoch) return;
  ns.epoch = call.epoch;
  ns.handshake = status.ok()         ? Handshake::kOpen
                 : IsRefusal(status) ? Handshake::kRefused
                                     : Handshake::kNotDone;
  ns.retry_at = clock_->Now() + kRetryInterval;
}

}  // namespace ibid
