// Memory of an accelerator, and copies between it and the host's.
//
// Copies run on streams: those of one stream one after the other, in the order in which they were
// begun; those of different streams in any order, at the same time. An Event is a point of a
// stream. A stream that waits for it begins nothing more before that point is reached: so whoever
// reads or writes device memory waits for the stream of whoever wrote or read it last.
//
// Thread safety: every method, from any thread. Ownership: host bytes given to a copy belong to it
// until its `done` is called. The destructor waits for all copies.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/checksum.h"

namespace ibid {

class DeviceMemory {
 public:
  using Stream = uint32_t;  // below streams_count()
  // Called once, on a thread of the device: it must not wait for another copy. Errors: Unavailable
  // (the device failed: what the copy would have written is undefined).
  using Done = std::function<void(absl::Status)>;
  class Event {  // what it says is the implementation's
   public:
    virtual ~Event() = default;
  };

  virtual ~DeviceMemory() = default;

  virtual absl::string_view kind() const = 0;  // "host", "cuda"
  virtual uint64_t bytes() const = 0;
  virtual uint32_t streams_count() const = 0;

  // Page-locks host memory, so that copies of it run at the speed of the bus and beside other work.
  // Copies of other host memory work too, slower. `memory` must outlive this. Errors:
  // ResourceExhausted (the system does not lock so much).
  virtual absl::Status RegisterHost(MutableByteView memory) = 0;

  // REQUIRES of all three: the range lies in the device's memory.
  virtual void CopyToHost(Stream stream, uint64_t offset, MutableByteView to, Done done) = 0;
  virtual void CopyFromHost(Stream stream, uint64_t offset, ByteView from, Done done) = 0;
  // REQUIRES: the ranges do not overlap.
  virtual void CopyWithin(Stream stream, uint64_t from, uint64_t to, uint64_t bytes, Done done) = 0;

  // Reached once everything begun on `stream` so far is over.
  virtual std::shared_ptr<Event> Record(Stream stream) = 0;
  // What is begun on `stream` from here on waits for `event`. REQUIRES: an event of this memory.
  virtual void WaitFor(Stream stream, std::shared_ptr<Event> event) = 0;
};

// The implementation in the host's own memory: for tests, and for machines without an accelerator.
// It has the same order and the same freedom as a device: a thread a stream. Errors:
// InvalidArgument (no bytes, no streams), ResourceExhausted (memory).
absl::StatusOr<std::unique_ptr<DeviceMemory>> CreateHostDeviceMemory(uint64_t bytes,
                                                                     uint32_t streams_count);

}  // namespace ibid
