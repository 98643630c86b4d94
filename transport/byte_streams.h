// The calls that move block bytes, from the client's end; what they promise stands at
// CacheChannel::Fetch, Locate and Publish. Private to transport/.
#pragma once

#include <grpcpp/channel.h>

#include <memory>
#include <span>

#include "transport/cache_channel.h"
#include "transport/staging.h"

namespace ibid {

absl::StatusOr<FetchReply> FetchBlocks(grpc::Channel* channel, const FetchCall& call,
                                       std::span<const BlockKey> keys,
                                       std::span<const MutableByteView> into,
                                       absl::Duration timeout,
                                       const std::function<void(uint32_t, BlockOutcome)>& on_block);

absl::StatusOr<LocateReply> LocateBlocks(grpc::Channel* channel, const FetchCall& call,
                                         std::span<const BlockKey> keys, uint64_t payload_bytes,
                                         absl::Duration timeout);

absl::StatusOr<uint64_t> PublishBlocks(
    const std::shared_ptr<grpc::Channel>& channel, StagingPool* staging, const PublishCall& call,
    std::span<const PublishBlock> blocks, absl::Duration timeout,
    const std::function<void(const PublishBlockResult&)>& on_result);

}  // namespace ibid
