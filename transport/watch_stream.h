// The client's end of CacheService.Watch. Private to transport/.
#pragma once

#include <grpcpp/channel.h>

#include <memory>

#include "transport/cache_watch.h"

namespace ibid {

// As CacheChannel::Watch.
std::unique_ptr<CacheWatch> StartCacheWatch(std::shared_ptr<grpc::Channel> channel,
                                            const WatchCall& call);

}  // namespace ibid
