// The client's end of CacheService.Session. Private to transport/.
#pragma once

#include <grpcpp/channel.h>

#include <functional>
#include <memory>
#include <string>

#include "transport/cache_channel.h"

namespace ibid {

// As CacheChannel::OpenSession.
absl::StatusOr<std::unique_ptr<CacheSession>> OpenCacheSession(
    std::shared_ptr<grpc::Channel> channel, absl::string_view client_name, absl::Duration timeout,
    std::function<void(absl::Status)> on_broken);

}  // namespace ibid
