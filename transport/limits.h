// The limits of what crosses a connection, each with its unit. Reaching one is an error that names
// it, or back-pressure.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/time/time.h"
#include "core/kv_layout.h"

namespace ibid {

// The fields of a message of Publish or Fetch besides its payloads, unknown ones included.
inline constexpr size_t kFrameFieldsBytesMax = size_t{64} << 10;
// One gRPC message, either way: the largest block with its fields. gRPC refuses a larger one with
// RESOURCE_EXHAUSTED.
inline constexpr size_t kMessageBytesMax = kBlockPayloadBytesMax + kFrameFieldsBytesMax;
// Keys in one Match, Offer, Fetch or Drop.
inline constexpr size_t kRequestKeysMax = 262'144;
// Shards in one Match; all their keys together are at most kRequestKeysMax.
inline constexpr size_t kMatchShardsMax = 256;
// Keys in one Drop with only_corrupt: the server reads all of these blocks.
inline constexpr size_t kDropCorruptKeysMax = 1'024;
// Lease ids in one Session message.
inline constexpr size_t kReleaseLeasesMax = 65'536;
// Text fields: names, namespace fields.
inline constexpr size_t kTextFieldBytesMax = 4'096;

// Publish, Fetch: frames in one message.
inline constexpr size_t kFramesPerMessageMax = 64;
// Publish: payloads that a client puts into one message. A block of more than half of it travels
// alone.
inline constexpr size_t kPublishMessageBytes = size_t{64} << 10;
// Publish: frames that a client has on their way ahead of their results; of blocks that share
// messages, as many as two messages hold.
inline constexpr size_t kPublishFramesInFlight = 64;
inline constexpr size_t kPublishSmallFramesInFlight = 2 * kFramesPerMessageMax;
// Publish: frames that the server has taken from one stream and not yet answered; then it stops
// reading. The last message may go beyond it.
inline constexpr size_t kPublishFramesUnanswered = 256;
// Fetch: payloads that the server puts into one message. A block of more travels alone.
inline constexpr size_t kFetchMessageBytes = size_t{64} << 10;
// Fetch: blocks of one stream that the server reads from a tier ahead of the one it writes.
inline constexpr size_t kFetchBlocksAhead = 8;

// Namespaces that one Watch asks for; for more, ask for all.
inline constexpr size_t kWatchNamespacesMax = 1'024;

// Streams of one connection, and so the calls of one client to one server at a time; more wait at
// the client.
inline constexpr int kConnectionStreamsMax = 1'024;

// Clients on its host that share memory with one server at a time; more of them use gRPC.
inline constexpr size_t kShmClientsMax = 1'024;
// Staging memory of one client.
inline constexpr uint64_t kShmStagingBytesMax = uint64_t{1} << 30;

// A Match waits no longer than this for pending blocks, whatever it asks for.
inline constexpr absl::Duration kWaitPendingMax = absl::Seconds(30);

}  // namespace ibid
